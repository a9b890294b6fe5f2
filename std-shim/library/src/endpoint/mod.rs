//! Endpoints: virtual queue pairs with their completion queues, built and connected in a few calls.
//!
//! An [`Endpoint`] is one virtual queue pair with its own completion queues; an [`EndpointSet`] has
//! many, which share completion queues; an [`EndpointQp`] is the part that both have in common.
//!
//! # Lists and batches
//!
//! | | how |
//! |---|---|
//! | one request from, or into, several buffers | [`post_list`](EndpointQp::post_list): fragments may cross buffers, with up to [`max_sge`](EndpointBuilder::max_sge) entries each |
//! | one receive into several buffers | [`post_recv_list`](EndpointQp::post_recv_list) |
//! | several requests with one call | [`post_many`](EndpointQp::post_many): rings the doorbell of each rail once |
//!
//! Virtual queue pairs of a set have the same methods.
//!
//! # Rails that fail
//!
//! With [`RailFailure::Reroute`](polyrail_core::virtual_qp::RailFailure::Reroute), chosen at both
//! [ends](EndpointBuilder::rail_failure), an endpoint works as long as [enough
//! rails](EndpointBuilder::min_rails) are in service, and [repairs](crate::heal::Healing) rails
//! automatically: some of its polls detect failed rails, give them new queue pairs, and bring them
//! back. If the two ends are in different processes, the program carries the repair messages
//! between them ([`HealingLink`]); over TCP, [`link`](crate::link) has a message for them. Nothing
//! has to be carried between endpoints of one process that [`connect_endpoints`] connected. Events
//! can be [read](EndpointQp::take_rail_event), and are also reported by [`trace`](crate::trace).
//!
//! # Peers of another implementation
//!
//! [`card`](crate::card) describes the options for a peer that runs the reference implementation.

// Files:
//
// `builder` has the options, and `make` builds an endpoint on any backend. `address` is the data
// for the peer, and `connect` connects two endpoints. `health` has counters and failures, and
// `stall` detects silent rails. `cancel` takes requests back. `control`, `rail_log` and `rail_event` handle rails that fail while the endpoint
// goes on; `repair`, `replace` and `devices` are what `heal` needs to repair them. `wait` waits for
// completions, on `channels`. `members` holds the virtual queue pairs of a set, and `membership`
// adds and removes them. `qp`, `single` and `set` are the data path, which works on any hardware.
// `place` assigns queue pairs to devices, `weights` decides how much each
// rail carries, by rates that `service` measures, and `sizes` has the sizes of queue pairs and
// counts the resources that they share.

mod address;
mod build_error;
mod builder;
mod cancel;
mod channels;
mod connect;
mod control;
mod devices;
mod ends;
mod health;
mod make;
mod members;
mod membership;
mod place;
mod qp;
mod rail_event;
mod rail_log;
mod repair;
mod replace;
mod service;
mod set;
mod single;
mod sizes;
mod stall;
mod wait;
mod weights;

pub use crate::queue_pair::RailAddress;
pub use address::Address;
pub use build_error::BuildError;
pub use builder::EndpointBuilder;
pub use connect::{ConnectError, connect_endpoints};
pub use ends::RailMismatch;
pub use health::{EndpointError, NamedRailError, RailReport};
pub use qp::EndpointQp;
pub use rail_event::NamedRailEvent;
pub use set::EndpointSet;
pub use single::{Endpoint, PollBatch};
pub use sizes::{DEPTH, ENDPOINT_ROUTES, EngineQp, MAX_DEVICES, SET_ROUTES, WRS};
pub use stall::StallWatch;
pub use wait::WaitError;
pub use weights::RailWeights;

pub(crate) use channels::Channels;
pub(crate) use make::MOST_GRANTED;
pub(crate) use place::{StandbyDevices, places, refused};
pub(crate) use service::Carrying;
pub(crate) use sizes::most_requests;
pub(crate) use wait::{Armed, arm};
pub(crate) use weights::{WeightOptions, Weights};

/// A [repair message](crate::heal::HealingMessage) of an endpoint.
pub type HealingMessage = crate::heal::HealingMessage<polyrail_core::virtual_qp::RailId>;
/// The [repair messages](crate::heal::HealingLink) of an endpoint, and of its peer.
pub type HealingLink = crate::heal::HealingLink<polyrail_core::virtual_qp::RailId>;
/// The [address](crate::heal::ReplacementAddress) of a queue pair that replaces a failed one.
pub type ReplacementAddress = crate::heal::ReplacementAddress<polyrail_core::virtual_qp::RailId>;
/// The endpoint was not polled for long, or the peer sends too many messages: see
/// [`heal`](crate::heal::NotHandled).
pub type NotHandled = crate::heal::NotHandled<polyrail_core::virtual_qp::RailId>;
