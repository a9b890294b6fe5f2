//! The receiving end of a connection.
//!
//! `end` has the fields of a receiver, its configuration and its queries.
//!
//! 1. `irecv` takes the slot of its number, reserves receives (`pool`), and writes entries into the
//!    sender's memory.
//! 2. `arrive` handles the immediates of polls. The first immediate of a slot has the mask of the
//!    rails that deliver one; when all have arrived, the sizes are known (`slot`).
//! 3. `test`, in `irecv`, returns the buffers to the caller. `flush` makes the message visible to
//!    other devices.
//!
//! `reroute` has what becomes of queue pairs that fail, and `cancel` of receives that are taken back.

mod arrive;
mod cancel;
mod end;
mod flush;
mod irecv;
mod reroute;
mod slot;

pub use end::{Receiver, ReceiverConfig};
pub use flush::FlushHandle;
pub use irecv::{Received, RecvBuffer, RecvHandle};
