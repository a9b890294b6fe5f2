//! A connection, as NCCL uses it: one way, with requests that are tested, and memory that is
//! registered for it.
//!
//! `requests` are the requests of a connection, `memory` its registrations, `arrived` the messages
//! that can be flushed; `connection` combines them, with the calls of NCCL in `calls`; `all` has
//! all connections, `news` the events of their links, and `caretaker` is the thread that serves
//! connections that NCCL does not call.

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
