//! Connections for messages.
//!
//! `set` has the connections on one backend, `message` is the data path, `cancel` takes messages
//! back, and `under_way` has the messages that are not done.

mod cancel;
mod message;
pub(super) mod set;
mod under_way;

pub use cancel::*;
pub use message::*;
