//! Connections for requests.
//!
//! `set` has the connections on one backend; `post` and `poll` are the data path, and `cancel` takes
//! requests back.

mod cancel;

mod post;

mod poll;

pub(super) mod set;

pub use cancel::*;
pub use poll::*;
pub use post::*;
