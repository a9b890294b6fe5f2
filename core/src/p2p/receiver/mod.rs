//! The receiving end of a connection.
//!
//! `config` is plain data, `end` has the parts of a receiver and what its owner may look at.
//!
//! 1. `irecv` takes the slot of its number, promises receives (`pool`), and writes entries into the
//!    sender's memory.
//! 2. `arrive` takes the immediates that polls bring: the first of a slot tells which rails will bring one;
//!    when all are in, the sizes are known (`slot`).
//! 3. `test`, which is beside `irecv`, gives the buffers back to the caller; `flush` makes what arrived
//!    visible to devices that need it.

mod arrive;
mod config;
mod end;
mod flush;
mod flush_lane;
mod irecv;
mod reroute;
mod slot;

pub use config::ReceiverConfig;
pub use end::Receiver;
pub use flush::FlushHandle;
pub use irecv::{Received, RecvBuffer, RecvHandle};
