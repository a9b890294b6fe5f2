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
//! has ended. If it breaks, the sender comes back by the receiver's door, and says which connection is its own.
//!
//! `handle` is what travels through NCCL, `terms` what both ends have to agree on, `link` carries frames, `hello` and
//! `welcome` are the first of them; `interface` chooses an address, `reach` goes there, `site` is where an end is made,
//! `met` what comes of it; `listen` and `connect` are the two ends. `way` is the link of a connection, which is made
//! anew; `session` is which connection that is, `door` where it is found. `secret` is what both ends know.

mod connect;
pub(crate) mod door;
mod handle;
mod hello;
mod interface;
mod link;
mod listen;
mod met;
mod reach;
mod secret;
mod session;
mod site;
mod terms;
mod way;
mod welcome;

pub(crate) use connect::Attempt;
pub(crate) use handle::Handle;
pub(crate) use link::{Frame, Kind, Link};
pub(crate) use listen::Listener;
pub(crate) use met::Met;
pub(crate) use session::Session;
pub(crate) use site::Site;
pub(crate) use terms::Terms;
pub(crate) use way::{Turn, Way};
