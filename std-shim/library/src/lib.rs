//! Multi-rail RDMA for ordinary programs: the polyrail engine with owned memory, set-up in a few
//! calls, and a NIC in software to try it on.
//!
//! The engine is [`polyrail_core`], which does not allocate and does not depend on an operating
//! system. Its modules are re-exported here ([`verbs`], [`virtual_qp`], [`virtual_cq`],
//! [`hardware`]). This crate adds everything that needs `std`. Using it needs no `unsafe`, with
//! memory of this crate or of yours; only [pointers](memory::ForeignBuffer) and dma-bufs do.
//!
//! # Example
//!
//! This example moves a megabyte over four rails between two hosts, both in this process, and
//! notifies the receiver:
//!
//! ```
//! use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
//! use polyrail::memory::RegisteredBuffer;
//! use polyrail::nic::{DeviceConfig, Fabric};
//! use polyrail::verbs::{AccessFlags, RecvWr, SendWr, WcStatus};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const LENGTH: u32 = 1 << 20;
//! let fabric = Fabric::threaded();
//! let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
//! let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
//! let mut sender = EndpointBuilder::new().rails(4).build(&[&here])?;
//! let mut receiver = EndpointBuilder::new().rails(4).build(&[&there])?;
//! connect_endpoints(&mut sender, &mut receiver)?;
//!
//! let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let from = RegisteredBuffer::new(LENGTH as usize, AccessFlags::empty(), &[&here])?;
//! let to = RegisteredBuffer::new(LENGTH as usize, writable, &[&there])?;
//! from.write_at(0, &[7; LENGTH as usize])?;
//!
//! receiver.post_recv(&RecvWr::notification(1))?;
//! let keys = from.toward(&to.remote())?;
//! sender.post_send(&SendWr::write_with_imm(2, from.local(0, LENGTH)?, to.addr(), 42, &keys))?;
//! let notification = loop {
//!     for done in sender.poll(16).completions {
//!         if done.status != WcStatus::SUCCESS {
//!             return Err(sender.explain(done.status).into());
//!         }
//!     }
//!     if let Some(notification) = receiver.poll(16).completions.pop() {
//!         break notification;
//!     }
//! };
//! assert_eq!((notification.wr_id, notification.imm), (1, Some(42)));
//! let mut last = [0];
//! to.read_at(LENGTH as usize - 1, &mut last)?;
//! assert_eq!(last, [7]);
//! # Ok(())
//! # }
//! ```
//!
//! [How to embed it](embedding) compares the types in full, and lists the requirements for a
//! backend and the differences between one rail and several. [Rails](rails) explains notifications,
//! order, failing rails and limits, [waits] what ends each wait, and [trust] what others can do to
//! a program that listens.
//!
//! # Which type to use
//!
//! | you have | use |
//! |---|---|
//! | a few peers | [`Endpoint`](endpoint::Endpoint) |
//! | many peers | [`EndpointSet`](endpoint::EndpointSet): shared completion queues, one poll for all |
//! | a receiver that decides where data goes | [`P2pEndpoint`](p2p::P2pEndpoint): messages, with `isend` and `irecv` |
//! | many peers that exchange messages | [`P2pEndpointSet`](p2p::P2pEndpointSet) |
//! | many posting threads, or async code | [`ProgressThread`](progress::ProgressThread), or [`P2pThread`](progress::messages::P2pThread) for messages |
//! | two processes to connect | [`Link`](link::Link) and [`bring_up`](link::bring_up) |
//! | devices that are chosen when the program runs | [`AnyDomain`](any::AnyDomain) and [`open_devices`](any::open_devices) |
//! | memory to send or receive | [`RegisteredBuffer`](memory::RegisteredBuffer), or your own in an [`OwnedBuffer`](memory::OwnedBuffer) or [`SharedBuffer`](memory::SharedBuffer) |
//! | your own verbs layer, or no operating system | the engine, [`polyrail_core`]: [`VirtualQp`](virtual_qp::VirtualQp), [`VirtualCq`](virtual_cq::VirtualCq) |
//! | hardware that no backend supports | the traits [`Domain`](backend::Domain) and [`Connect`](backend::Connect) |
//!
//! # Reading order
//!
//! 1. [`polyrail_software_nic`], here [`nic`]: the software NIC, a verbs device in memory;
//! 2. [`backend`]: the interface between endpoints and hardware; `tcp` is the backend between any
//!    two Linux hosts ([over TCP](over_tcp)); `rdma` (feature `verbs`) is the backend for real
//!    NICs, and `devices` lists them; [`any`] has devices of every backend behind one type;
//!    [`place`] finds where in the machine a device is, and [`cpus`] pins threads near it;
//! 3. [`memory`]: registered buffers, of this crate or of yours, and buffers of a peer; [`card`]:
//!    the descriptions of queue pairs that two ends exchange;
//! 4. [`endpoint`]: a virtual queue pair with its completion queues, or many that share completion
//!    queues, with set-up, connection and repair;
//! 5. [`p2p`]: the same for messages, whose receiver offers the buffers; [`heal`] repairs the rails
//!    of both kinds of endpoints;
//! 6. [`progress`]: a thread that owns a set of endpoints, for programs that post from many
//!    threads; [`idle`] decides how a polling thread rests;
//! 7. [`link`]: the TCP protocol with which two processes connect their endpoints and repair rails;
//!    [`interfaces`] lists the addresses at which other hosts reach a listener; [`pairing`] puts
//!    the devices of the end that answers into the order of the other end's;
//! 8. [`trace`] lists the spans and events of connections, and [`metrics`] what they count;
//! 9. [`printable`] makes text from peers safe to print; [`chain`] formats errors with their
//!    sources; [`service_variables`] recognizes environment variables of Kubernetes.
//!
//! The program `polyrail`, which copies files and measures, is the crate `polyrail-program`.

pub mod any;
pub mod backend;
#[doc = include_str!("../docs/cancel.md")]
pub mod cancel {}
pub mod card;
pub mod chain;
pub mod cpus;
#[cfg(feature = "verbs")]
pub mod devices;
#[doc = include_str!("../docs/embedding.md")]
pub mod embedding {}
pub mod endpoint;
pub mod heal;
mod hex;
pub mod idle;
pub mod interfaces;
mod ip_net;
mod json;
pub mod link;
pub mod memory;
pub mod metrics;
pub mod nic;
#[cfg(feature = "tcp")]
#[doc = include_str!("../docs/over-tcp.md")]
pub mod over_tcp {}
pub mod p2p;
pub mod pairing;
pub mod place;
pub mod printable;
pub mod progress;
mod queue_pair;
#[doc = include_str!("../docs/rails.md")]
pub mod rails {}
#[cfg(feature = "verbs")]
pub mod rdma;
pub mod service_variables;
mod sync;
#[cfg(feature = "tcp")]
pub mod tcp;
#[doc = include_str!("../docs/trust.md")]
pub mod trust {}
#[cfg_attr(
    not(feature = "tracing"),
    allow(unused_variables, unused_imports, reason = "without `tracing`, events are dropped")
)]
pub mod trace;
#[doc = include_str!("../docs/waits.md")]
pub mod waits {}

pub use polyrail_core::{hardware, verbs, virtual_cq, virtual_qp};

/// The README's example compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
