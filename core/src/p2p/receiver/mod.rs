//! The receiving end of a connection.
//!
//! `end` has the parts of a receiver, what can be chosen about it, and what its owner may look at.
//!
//! 1. `irecv` takes the slot of its number, promises receives (`pool`), and writes entries into the
//!    sender's memory.
//! 2. `arrive` takes the immediates that polls bring: the first of a slot tells which rails will bring one;
//!    when all are in, the sizes are known (`slot`).
//! 3. `test`, which is beside `irecv`, gives the buffers back to the caller; `flush` makes what arrived
//!    visible to devices that need it.

mod arrive;
mod end;
mod flush;
mod irecv;
mod reroute;
mod slot;

pub use end::{Receiver, ReceiverConfig};
pub use flush::FlushHandle;
pub use irecv::{Received, RecvBuffer, RecvHandle};
