//! Connections for requests with many peers.
//!
//! `object` is what is behind a handle, on either backend; `members` is how peers come and go, `connect` how they are
//! connected, `post` and `poll` are the data path, `drive` is what happens beside it, and `health` what can be asked.

mod connect;
mod drive;
mod health;
mod meets;
mod members;
mod object;
mod poll;
mod post;

pub(crate) use health::rail_state;
pub(crate) use members::build_failure;

pub use connect::*;
pub use drive::*;
pub use health::*;
pub use members::*;
pub use poll::*;
pub use post::*;

#[cfg(test)]
mod tests;
