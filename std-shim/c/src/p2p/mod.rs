//! Connections for messages with many peers.
//!
//! `object` is what is behind a handle, on either backend; `members` is how peers come and go, `connect` how they are
//! connected, `requests` and `message` are messages under way, `drive` is what happens beside them, and `health` what
//! can be asked.

mod connect;
mod drive;
mod health;
mod meets;
mod members;
mod message;
mod object;
mod requests;

pub use connect::*;
pub use drive::*;
pub use health::*;
pub use members::*;
pub use message::*;

#[cfg(test)]
mod tests;
