//! How two ends find each other, over a [link](polyrail::link), without ever waiting.
//!
//! ```text
//!  sender                               receiver
//!                                       listen: a port, a token and a number, in the handle
//!  connect ── knock, challenge, proof, proof: both have the token
//!          ── hello: number, terms, ──► accept
//!             address                   makes its end, connects it
//!          ◄── hello: address; ready ──
//!  connects its end
//!          ─── ready ─────────────────► has a connection
//!  has a connection
//! ```
//!
//! Only then the receiver offers buffers. The link stays open: it carries the messages about rails
//! that fail, and when it is closed, the peer has ended. If it breaks, the sender resumes it at the
//! receiver's door.
//!
//! `handle` is passed through NCCL, `terms` has what both ends must agree on, `call` is the request
//! in a sender's hello; `site` makes an end; `door` accepts senders, `listen` and `connect` are the
//! two ends.

mod call;
mod connect;
pub(crate) mod door;
mod handle;
mod listen;
mod site;
mod terms;

pub(crate) use call::{Link, Message};
pub(crate) use connect::Attempt;
pub(crate) use handle::Handle;
pub(crate) use listen::Listener;
pub(crate) use site::{Met, Site};
pub(crate) use terms::Terms;
