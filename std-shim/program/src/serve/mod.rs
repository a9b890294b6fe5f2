//! The server: serves copies and measurements to peers that connect, a few at a time.
//!
//! `server` runs a thread for each peer that is served; `door` accepts connections, reads the
//! request of each peer, and keeps the peers that wait for their turn; `visitor` is a peer with its
//! request: [`transfer`](crate::transfer) receives its file, [`perf`](crate::perf) is the far end
//! of its measurement. `devices` is what a server needs of its devices.

mod devices;
mod door;
#[cfg(test)]
mod rt_tests;
mod server;
mod visitor;

pub use crate::visit::ServeOptions;
pub use devices::{Devices, Offers};
pub use server::{DEFAULT_PORT, Server};
pub use visitor::{ServeError, Served, Visitor};
