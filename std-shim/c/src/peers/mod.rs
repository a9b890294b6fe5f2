//! Connections with many peers, for requests or for messages, behind one kind of handle.
//!
//! `object` is the object behind a handle. `connections` is the interface of both kinds of
//! connections, and `common` the state that both kinds have. `open`, `connect`, `drive`, `health`
//! and `ending` are the functions for both kinds. `requests` and `messages` implement the
//! interface, each with its data path.

// In the order of the header.
mod open;

mod connect;

mod drive;

mod requests;

mod messages;

mod health;

mod ending;

mod common;
mod connections;
mod object;

pub use connect::*;
pub use drive::*;
pub use ending::*;
pub use health::*;
pub use messages::*;
pub use open::*;
pub use requests::*;

#[cfg(test)]
mod rt_tests;
