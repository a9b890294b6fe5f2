//! Real NICs, through libibverbs, as a [backend](crate::backend) of endpoints.
//!
//! [`open_devices`] opens devices by name, or all that could carry data, as [`VerbsDomain`]s.
//! Endpoints, buffers, the copy path and the program take them as they take the software NIC's
//! protection domains; rails go to the devices in turn.
//!
//! ```no_run
//! use polyrail::endpoint::EndpointBuilder;
//! use polyrail::rdma::{OpenOptions, VerbsDomain, open_devices};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let names = ["mlx5_0".parse()?, "mlx5_1:1".parse()?];
//! let domains = open_devices(&names, &OpenOptions::default())?;
//! let domains: Vec<&VerbsDomain> = domains.iter().collect();
//! let endpoint = EndpointBuilder::new().build(&domains)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Which address
//!
//! A RoCE port has several addresses (GIDs). Unless told otherwise, rails take the first of
//!
//! 1. RoCE v2 over IPv4, which is routed and needs nothing but the interface's address;
//! 2. RoCE v2 over IPv6 that is valid beyond its own link;
//! 3. RoCE v2 over IPv6, link-local;
//! 4. whatever the port has, in the order of its table: RoCE v1, InfiniBand.
//!
//! Both ends of a rail need addresses of the same kind: a program that overrides it on one side
//! probably has to on the other. IPv4 and IPv6 do not meet, which is an error when the two sides
//! connect ([`RailMismatch::Gids`](crate::endpoint::RailMismatch::Gids)). On InfiniBand packets go by
//! LID, and carry the address only to another subnet.
//!
//! # Events
//!
//! A context has one queue of asynchronous events, and gives each of them once. The domain of the context
//! owns that queue: endpoints read from it what happens to ports and devices
//! ([`next_event`](crate::backend::Domain::next_event)), and whoever wants the others too, such as those of
//! queue pairs of their own on [`pd`](VerbsDomain::pd), reads them all by a cursor of their own
//! ([`next_async_event`](VerbsDomain::next_async_event)). Nobody loses an event to another reader; but who
//! calls [`Context::next_event`](polyrail_ffi::Context::next_event) takes it from all of them. The
//! context's file descriptor becomes readable for whoever comes first, so do not wait for it.
//!
//! Domains that are opened separately, even of the same device, have contexts of their own, each with all
//! events of the ports and the device.
//!
//! Leave `RDMAV_ALLOW_DISASSOC_DESTROY` out of the environment, unless all endpoints of a device live on one
//! thread: see [`Context::next_event`](polyrail_ffi::Context::next_event).
//!
//! # Files
//!
//! `gid` chooses addresses; `port` is about ports as they are now; `events` keeps what happens to a device
//! for all its readers; `open` makes domains of devices; `domain` is what endpoints ask of a device;
//! `connect` brings queue pairs through their states.

mod connect;
mod domain;
mod events;
mod gid;
mod open;
mod port;

pub use domain::{VerbsDomain, VerbsRegion};
pub use open::{OpenError, OpenOptions, Unusable, open_devices};
pub use polyrail_ffi::{
    Argument, AsyncEvent, CompletionQueue, QueuePair, SharedReceiveQueue, SrqId, VerbsError,
};
