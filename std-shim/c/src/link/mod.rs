//! Links: two sides meet over TCP, and exchange messages afterwards.
//!
//! `listener` accepts links, `addresses` lists where peers reach it and checks the form of
//! addresses, `handle` is a link that does not belong to a peer yet, `meeting` the purpose in a
//! hello, `peer` is a link that belongs to a peer, `drive` drives it, `failure` returns the code of
//! an error, and `notes` separates the messages of the program from those of rails.

// In the order of the header.
mod listener;

mod addresses;

mod handle;

mod drive;
mod failure;
mod meeting;
mod notes;
mod peer;

pub use addresses::polyrail_addresses;
pub(crate) use drive::drive;
pub use handle::{
    polyrail_link_close, polyrail_link_hello, polyrail_link_open, polyrail_link_peer_address,
    polyrail_link_refuse,
};
pub(crate) use handle::{reach_of_accepted, take};
pub use listener::{
    polyrail_listener_accept, polyrail_listener_address, polyrail_listener_close,
    polyrail_listener_next_refused, polyrail_listener_open,
};
pub(crate) use meeting::OurMessage as Message;
#[cfg(test)]
pub(crate) use meeting::{Meeting, OurHello, OurLink};
pub(crate) use notes::RAILS;
pub(crate) use peer::{Meets, NotConnected, PeerLink, say};
