//! The side that waits: serves files and measurements to peers that connect, a few at a time.
//!
//! `server` waits for peers; `door` is where they connect and ask for something, many at once;
//! `visitor` is one that has asked: [`transfer`](crate::transfer) receives its file,
//! [`perf`](crate::perf) is the far end of its measurement.

mod door;
mod server;
#[cfg(test)]
mod tests;
mod visitor;

pub use crate::visit::ServeOptions;
pub use server::{DEFAULT_PORT, Server};
pub use visitor::{ServeError, Served, Visitor};
