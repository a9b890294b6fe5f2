//! Endpoints: virtual queue pairs with their completion queues, made and connected in a few calls.
//!
//! An [`Endpoint`] is one virtual queue pair with completion queues of its own; an [`EndpointSet`] is
//! many that share theirs; an [`EndpointQp`] is what both have in common. `builder` has the options and
//! `make` makes one, on any [backend](crate::backend), `address` is what a peer has to know of it,
//! `connect` brings two together, `health` is about counters and failures, `stall` finds rails that
//! fall silent; `control` and `rail_event` are about rails that fail while the endpoint goes on; `qp`, `single` and `set` are the data path, which works on any hardware; `sizes` has
//! the sizes.
//!
//! [`card`](crate::card) tells what to choose for a peer that runs the reference implementation.

mod address;
mod build_error;
mod builder;
mod connect;
mod control;
mod devices;
mod heal;
mod health;
mod make;
mod poll_batch;
mod qp;
mod rail_event;
mod replace;
mod replace_error;
mod replacement;
mod set;
mod single;
mod sizes;
mod stall;

pub use address::{Address, RailAddress};
pub use build_error::BuildError;
pub use builder::EndpointBuilder;
pub use connect::{ConnectError, connect_endpoints};
pub use heal::{heal_endpoints, heal_members};
pub use health::{EndpointError, NamedRailError, RailReport};
pub use poll_batch::PollBatch;
pub use qp::EndpointQp;
pub use rail_event::NamedRailEvent;
pub use replace_error::ReplaceError;
pub use replacement::{
    MAX_REPLACEMENT_BYTES, Replacement, ReplacementAddress, ReplacementAddressError,
};
pub use set::EndpointSet;
pub use single::Endpoint;
pub use sizes::{DEPTH, ENDPOINT_ROUTES, EngineQp, MAX_DEVICES, WRS};
pub use stall::StallWatch;
