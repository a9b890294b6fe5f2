//! The sending end of a connection.
//!
//! `end` has the parts of a sender, what can be chosen about it, and what its owner may look at.
//!
//! 1. `isend` looks at the entry that is next, copies it, and finds the buffer with the tag; when
//!    each buffer of the receive has found its send, the message is split and given to the rails.
//! 2. `post` makes requests of a rail's share (`slot`) and posts them, as far as there are credits;
//!    what is left is posted by later polls.
//! 3. `complete` takes what a poll brings: a share whose requests have ended has arrived.
//! 4. `test`, which is beside `isend`, gives the buffers back to the callers.
//!
//! `reroute` has what becomes of queue pairs that fail, and `cancel` of messages that are taken back.

mod cancel;
mod complete;
mod end;
mod isend;
mod post;
mod reroute;
mod slot;

pub use end::{Sender, SenderConfig};
pub use isend::SendHandle;
