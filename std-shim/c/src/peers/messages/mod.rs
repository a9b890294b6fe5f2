//! Connections for messages.
//!
//! `set` has the connections on one backend, `open` creates them, `message` is the data path, and
//! `under_way` has the messages that are not done.

mod message;
mod open;
pub(super) mod set;
mod under_way;

pub use message::*;
pub use open::*;
