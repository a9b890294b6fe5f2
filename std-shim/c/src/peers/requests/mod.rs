//! Connections for requests.
//!
//! `set` are the connections on one backend, `open` makes them, `post` and `poll` are the data path.

mod open;
mod poll;
mod post;
pub(super) mod set;

pub use open::*;
pub use poll::*;
pub use post::*;
