//! Links: how two sides meet over TCP, and what they tell each other afterwards.
//!
//! `meeting` is what a hello of ours says, `handle` is a link before it belongs to a peer, `listener` accepts them,
//! `peer` is one that does, `drive` what becomes of it, and `notes` says whose its messages are.

mod drive;
mod handle;
mod listener;
mod meeting;
mod notes;
mod peer;

pub(crate) use drive::drive;
pub(crate) use handle::take;
pub use handle::{polyrail_link_close, polyrail_link_hello, polyrail_link_open};
pub use listener::{
    polyrail_listener_accept, polyrail_listener_address, polyrail_listener_close,
    polyrail_listener_open,
};
pub(crate) use meeting::OurMessage as Message;
pub(crate) use notes::RAILS;
pub(crate) use peer::{Meets, PeerLink, say};
