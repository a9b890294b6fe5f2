//! Endpoints: virtual queue pairs with their completion queues, made and connected in a few calls.
//!
//! An [`Endpoint`] is one virtual queue pair with completion queues of its own; an [`EndpointSet`] is
//! many that share theirs; an [`EndpointQp`] is what both have in common. `builder` has the options and
//! `make` makes one, on any [backend](crate::backend), `address` is what a peer has to know of it,
//! `connect` brings two together, `rail_mismatch` is about rails whose two ends do not go together, `health`
//! about counters and failures, `stall` finds rails that fall silent; `control`, `rail_log` and `rail_event`
//! are about rails that fail while the endpoint goes on, `replacement`, `joining`, `devices` and `replace` about their
//! return, and `healing` drives all of it;
//! `wait` is waiting instead of polling, on `channels`; `members` are those of a set, `membership` is how they come and go, `needs` what they take;
//! `qp`, `single` and `set` are the data path, which works on any hardware; `place` is where queue pairs are,
//! `shape` how large they are made, `sizes` has the sizes.
//!
//! # Lists and batches
//!
//! | | how |
//! |---|---|
//! | one request from, or into, several buffers | [`post_list`](EndpointQp::post_list): fragments pass the borders of buffers, and have up to [`max_sge`](EndpointBuilder::max_sge) of them |
//! | one receive into several buffers | [`post_recv_list`](EndpointQp::post_recv_list) |
//! | several requests with one call | [`post_many`](EndpointQp::post_many): each rail's doorbell rings once |
//!
//! Members of a set have them too.
//!
//! # Rails that fail
//!
//! With [`RailFailure::Reroute`](polyrail_core::virtual_qp::RailFailure::Reroute), chosen at both
//! [ends](EndpointBuilder::rail_failure), an endpoint goes on as long as
//! [enough rails](EndpointBuilder::min_rails) are left, and [heals](Healing) by itself: some of its polls look
//! for rails that are out of order, give those that failed new queue pairs, and bring them back. Its owner
//! carries what it tells the other end ([`HealingLink`]); between endpoints of one process that
//! [`connect_endpoints`] has connected, nothing is to be carried, and over TCP
//! [`exchange`](crate::exchange) has a message for it. What happened can be
//! [read](EndpointQp::take_rail_event), and is told by [`trace`](crate::trace) too.
//!
//! # Peers of another implementation
//!
//! [`card`](crate::card) tells what to choose for a peer that runs the reference implementation.

mod address;
mod build_error;
mod builder;
mod channels;
mod connect;
mod control;
mod devices;
mod healing;
mod health;
mod joining;
mod make;
mod members;
mod membership;
mod needs;
mod place;
mod poll_batch;
mod qp;
mod rail_event;
mod rail_log;
mod rail_mismatch;
mod replace;
mod replace_error;
mod replacement;
mod set;
mod shape;
mod single;
mod sizes;
mod stall;
mod wait;
mod wait_error;

pub use crate::heal::Healing;
pub use address::{Address, RailAddress};
pub use build_error::BuildError;
pub use builder::EndpointBuilder;
pub use connect::{ConnectError, connect_endpoints};
pub use healing::{HealingLink, HealingMessage, HealingMessageError, MAX_HEALING_BYTES, NotHeard};
pub use health::{EndpointError, NamedRailError, RailReport};
pub use poll_batch::PollBatch;
pub use qp::EndpointQp;
pub use rail_event::NamedRailEvent;
pub use rail_log::Noticed;
pub use rail_mismatch::RailMismatch;
pub use replacement::ReplacementAddress;
pub use set::EndpointSet;
pub use single::Endpoint;
pub use sizes::{DEPTH, ENDPOINT_ROUTES, EngineQp, MAX_DEVICES, SET_ROUTES, WRS};
pub use stall::StallWatch;
pub use wait_error::WaitError;

pub(crate) use channels::Channels;
pub(crate) use connect::join;
pub(crate) use make::{MOST_GRANTED, random_psn};
pub(crate) use place::{Place, places, refused};
pub(crate) use replacement::rail_address;
pub(crate) use sizes::most_requests;
pub(crate) use wait::{Armed, arm};
