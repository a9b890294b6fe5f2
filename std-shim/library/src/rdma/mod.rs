//! Real NICs, through libibverbs, as a [backend](crate::backend) of endpoints.
//!
//! [`open_devices`] opens devices by name, or all usable devices, as [`VerbsDomain`]s. Endpoints,
//! buffers, the copy path and the program use them like the software NIC's protection domains.
//! Rails are distributed over the devices in turn.
//!
//! ```no_run
//! use polyrail::endpoint::EndpointBuilder;
//! use polyrail::rdma::{OpenOptions, open_devices};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let names = ["mlx5_0".parse()?, "mlx5_1:1".parse()?];
//! let domains = open_devices(&names, &OpenOptions::default())?;
//! let endpoint = EndpointBuilder::new().build(&domains)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Which address
//!
//! A RoCE port has several addresses (GIDs). A device may be visible in several network namespaces,
//! and its tables have the addresses of all of them. Without an index, rails use only addresses of
//! interfaces in the namespace of this process; if some are known to belong to such an interface at
//! present, only these. Of them they use the first of
//!
//! 1. RoCE v2 over IPv4, which can be routed and only requires an address of the interface;
//! 2. RoCE v2 over IPv6 that is not link-local;
//! 3. RoCE v2 over link-local IPv6;
//! 4. any other entry, in the order of the table: RoCE v1, InfiniBand.
//!
//! An index selects an entry, whatever its interface: of one device or port by its name
//! (`mlx5_0@3`, `mlx5_0:1@3`), or of all others by [`gid_index`](OpenOptions::gid_index). Hosts
//! whose NICs differ need different indices. Both ends of a rail need addresses of the same kind,
//! so a program that sets the index at one end usually has to set it at the other. IPv4 and IPv6
//! cannot connect, which is an error when the two ends connect
//! ([`RailMismatch::Gids`](crate::endpoint::RailMismatch::Gids)). InfiniBand packets are addressed
//! by LID, and carry the GID only to another subnet.
//!
//! # Events
//!
//! A context has one queue of asynchronous events, which returns each event once. The domain of the
//! context reads that queue. Endpoints read port and device events from the domain
//! ([`next_event`](crate::backend::Domain::next_event)). Programs that need other events, such as
//! those of queue pairs that they created on [`pd`](VerbsDomain::pd), read all events with a
//! separate cursor ([`next_async_event`](VerbsDomain::next_async_event)). Readers do not take
//! events from each other. [`Context::next_event`](polyrail_ffi::Context::next_event), however,
//! takes the event from all of them. Do not wait for the context's file descriptor: another reader
//! may already have read the event that made it readable.
//!
//! `IBV_EVENT_DEVICE_SPEED_CHANGE` (rdma-core 62 and later) is
//! [`SpeedChange`](crate::backend::DeviceEvent::SpeedChange): a port lost a plane or a bonded port,
//! the rate of a virtual function was changed, or all is as before.
//! [`port_mbps`](crate::backend::Domain::port_mbps) returns the present rate. Endpoints that repair
//! their rails [report](crate::trace) it; their rails stay in service with their shares.
//!
//! Domains that are opened separately, even of the same device, have separate contexts. Each
//! receives all events of the ports and the device.
//!
//! Leave `RDMAV_ALLOW_DISASSOC_DESTROY` out of the environment, unless all endpoints of a device
//! are on one thread: see [`Context::next_event`](polyrail_ffi::Context::next_event).

// Files:
//
// `gid` selects addresses; `port` reads the present attributes of ports; `events` distributes the
// events of a device to its readers; `open` opens devices; `domain` implements the device, and
// `connect` the state transitions of queue pairs.

mod connect;
mod domain;
mod events;
mod gid;
mod open;
mod port;

pub use domain::{VerbsDomain, VerbsRegion};
pub use open::{OpenError, OpenOptions, Unusable, open_devices, open_devices_with};
pub use polyrail_ffi::{
    Argument, AsyncEvent, CompletionQueue, QueuePair, SharedReceiveQueue, SrqId, VerbsError,
};
