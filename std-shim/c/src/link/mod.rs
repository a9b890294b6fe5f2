//! Links: two sides meet over TCP, and exchange messages afterwards.
//!
//! `meeting` is the purpose in a hello, `handle` a link that does not belong to a peer yet, `listener`
//! accepts links and `addresses` lists where peers reach it, `peer` is a link that belongs to a peer,
//! `drive` drives it, `failure` returns the code of an error, and `notes` separates the messages of
//! the program from those of rails.

mod addresses;
mod drive;
mod failure;
mod handle;
mod listener;
mod meeting;
mod notes;
mod peer;

pub use addresses::polyrail_addresses;
pub(crate) use drive::drive;
pub(crate) use handle::take;
pub use handle::{
    polyrail_link_close, polyrail_link_hello, polyrail_link_open, polyrail_link_peer_address,
    polyrail_link_refuse,
};
pub use listener::{
    polyrail_listener_accept, polyrail_listener_address, polyrail_listener_close,
    polyrail_listener_next_refused, polyrail_listener_open,
};
pub(crate) use meeting::OurMessage as Message;
#[cfg(test)]
pub(crate) use meeting::{Meeting, OurHello, OurLink};
pub(crate) use notes::RAILS;
pub(crate) use peer::{Meets, NotConnected, PeerLink, say};
