//! Devices of any backend behind one type, so that the backend is chosen when the program runs, and
//! one endpoint may have rails of several backends.
//!
//! [`AnyDomain`] is a [`Domain`](crate::backend::Domain) of the [software NIC](crate::nic), of
//! `tcp` (feature `tcp`) or of `rdma` (feature `verbs`). [`open_devices`] opens devices by their
//! names; each domain of a backend can also be converted by [`From`]. The queue pairs, completion
//! queues, shared receive queues and regions that it creates are enums as well.
//!
//! ```
//! use polyrail::any::{OpenOptions, open_devices};
//! use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = OpenOptions::default();
//! let here = open_devices(["software:a0", "software:a1"], &options)?;
//! let there = open_devices(["software:b0", "software:b1"], &options)?;
//! let mut sender = EndpointBuilder::new().build(&here)?;
//! let mut receiver = EndpointBuilder::new().build(&there)?;
//! connect_endpoints(&mut sender, &mut receiver)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Types
//!
//! A struct of a program names these:
//!
//! | | type |
//! |---|---|
//! | an open device | [`AnyDomain`] |
//! | an endpoint, a set | [`Endpoint<AnyQueuePair, AnyCompletionQueue>`](crate::endpoint::Endpoint), [`EndpointSet<AnyQueuePair, AnyCompletionQueue>`](crate::endpoint::EndpointSet) |
//! | a member of a set | [`EndpointQp<AnyQueuePair>`](crate::endpoint::EndpointQp) |
//! | a message endpoint, a set | [`P2pEndpoint<AnyDomain>`](crate::p2p::P2pEndpoint), [`P2pEndpointSet<AnyDomain>`](crate::p2p::P2pEndpointSet) |
//! | threads that poll | [`ProgressThread<AnyQueuePair, AnyCompletionQueue>`](crate::progress::ProgressThread), [`P2pThread<AnyDomain>`](crate::progress::messages::P2pThread) |
//! | memory | [`RegisteredBuffer<AnyRegion>`](crate::memory::RegisteredBuffer), [`OwnedBuffer<Vec<u8>, AnyRegion>`](crate::memory::OwnedBuffer) |
//!
//! # Rails of several backends
//!
//! The devices of an endpoint may be of different backends, for example RDMA NICs and a network
//! interface (`mlx5_0`, `mlx5_1`, `tcp:eth0`):
//!
//! - The i-th device here connects to the i-th device of the peer, so both ends need the same
//!   backends in the same order. If one of the two is over TCP and the other is not, connecting
//!   fails with [`RailMismatch::Backends`](crate::endpoint::RailMismatch::Backends).
//! - Memory is registered with each device, and requests need the keys of all of them, as on
//!   several devices of one backend.
//! - With [`RailFailure::Reroute`](crate::virtual_qp::RailFailure::Reroute), the rails of one
//!   backend carry what those of another lost. Rail 0 and the notify queue pair move to a device of
//!   another backend while their own is away.
//! - Scatter/gather entries per request are limited by the least capable device. A device that
//!   does not support [`max_inline_data`](crate::endpoint::EndpointBuilder::max_inline_data),
//!   [`queue_depth`](crate::endpoint::EndpointBuilder::queue_depth) or
//!   [`max_msg_size`](crate::endpoint::EndpointBuilder::max_msg_size) is an error of
//!   [`build`](crate::endpoint::EndpointBuilder::build).
//! - Both ends need the same [`imm_order`](crate::endpoint::EndpointBuilder::imm_order), which is
//!   checked when they connect.
//!
//! # Cost
//!
//! Each call on the data path chooses between the backends. Nothing allocates. A WRITE of which both
//! ends are told takes 113 instructions more on the software NIC, 5% (post, post of a receive, polls
//! at both ends; row `any_software_nic` of the benches). A program whose devices are always of one
//! backend saves this by using the backend's own types.

mod batch;
mod completion_queue;
mod dispatch;
mod domain;
mod open;
mod queue_pair;
mod receive_queue;
mod region;

pub use batch::{AnyRecvBatch, AnySendBatch, AnySharedRecvBatch};
pub use completion_queue::AnyCompletionQueue;
pub use domain::AnyDomain;
pub use open::{OpenError, OpenOptions, open_device, open_devices};
pub use queue_pair::AnyQueuePair;
pub use receive_queue::AnySharedReceiveQueue;
pub use region::AnyRegion;
