//! A connection, as NCCL uses it: one way, with requests that are tested, and memory that is registered for it.
//!
//! `requests` are what NCCL has of a connection, `memory` what is registered with it, `arrived` what can be flushed;
//! `connection` is all of it, with its calls in `calls`; `all` has every one, `news` is what their links tell, and
//! `caretaker` is the thread that sees to connections which NCCL does not call.

mod all;
mod arrived;
mod calls;
pub(crate) mod caretaker;
mod connection;
mod memory;
mod news;
mod requests;

pub(crate) use all::CONNECTIONS;
pub(crate) use calls::Buffer;
pub(crate) use connection::{Connection, Role};
