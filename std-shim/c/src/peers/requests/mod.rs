//! Connections for requests.
//!
//! `set` has the connections on one backend, `open` creates them, and `post` and `poll` are the
//! data path.

mod open;
mod poll;
mod post;
pub(super) mod set;

pub use open::*;
pub use poll::*;
pub use post::*;
