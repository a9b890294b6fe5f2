//! Connections with many peers, for requests or for messages, behind one kind of handle.
//!
//! `object` is the object behind a handle. `connections` is the interface of both kinds of
//! connections, and `common` the state that both kinds have. `members`, `connect`, `drive` and
//! `health` are the functions for both kinds. `requests` and `messages` implement the interface,
//! each with its data path.

mod common;
mod connect;
mod connections;
mod drive;
mod health;
mod members;
mod messages;
mod object;
mod requests;

pub use connect::*;
pub use drive::*;
pub use health::*;
pub use members::*;
pub use messages::*;
pub use requests::*;

#[cfg(test)]
mod tests;
