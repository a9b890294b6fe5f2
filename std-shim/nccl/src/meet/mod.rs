//! How two ends find each other: over TCP, without ever waiting.
//!
//! ```text
//!  sender                              receiver
//!                                      listen: a port, and a token, in the handle
//!  connect ── Hello: token, terms, ──► accept
//!             address                  makes its end, connects it
//!          ◄── Welcome: address ──────
//!  connects its end
//!          ─── Ready ────────────────► has a connection
//!  has a connection
//! ```
//!
//! Only then the receiver offers buffers. The link stays: rails that fail are told of over it, and that the peer
//! has ended.
//!
//! `handle` is what travels through NCCL, `terms` what both ends have to agree on, `link` carries frames, `hello` is the
//! first of them; `interface` chooses an address, `site` is where an end is made, `met` what comes of it; `listen` and `connect` are the two
//! ends.

mod connect;
mod handle;
mod hello;
mod interface;
mod link;
mod listen;
mod met;
mod site;
mod terms;

pub(crate) use connect::Attempt;
pub(crate) use handle::Handle;
pub(crate) use link::{Frame, Kind, Link, Read};
pub(crate) use listen::Listener;
pub(crate) use met::Met;
pub(crate) use site::Site;
pub(crate) use terms::Terms;
