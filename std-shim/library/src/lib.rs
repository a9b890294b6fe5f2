//! Multi-rail RDMA for ordinary programs: the polyrail engine with owned memory, set-up in a few
//! calls, and a NIC in software to try it on.
//!
//! The engine is [`polyrail_core`], which allocates nothing and knows no operating system; its
//! words are re-exported here ([`verbs`], [`virtual_qp`], [`virtual_cq`], [`hardware`]). This crate
//! adds what needs `std`. No `unsafe` is needed to use it.
//!
//! # Example
//!
//! A megabyte moves over four rails of two hosts, both in this process, and its receiver is told:
//!
//! ```
//! use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
//! use polyrail::nic::{DeviceConfig, Fabric, RegisteredBuffer};
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
//! [How to embed it](embedding) says what to build on, what a backend must do, and how one rail and several differ.
//! [Rails](rails) is about notifications, order, rails that fail, and limits.
//!
//! # Reading order
//!
//! 1. [`polyrail_software_nic`], here [`nic`]: the software NIC, a verbs device in memory;
//! 2. [`backend`]: what endpoints ask of a kind of hardware; with the feature `verbs`, `rdma` is
//!    real NICs as a backend, and `devices` lists them;
//! 3. [`memory`]: registered buffers, of our own or of the caller's, and at a peer; [`card`]: what two
//!    ends tell each other about their queue pairs;
//! 4. [`endpoint`]: a virtual queue pair with its completion queues, or many that share theirs, made,
//!    connected, watched;
//! 5. [`progress`]: a thread that owns a set of them, for programs that post from many threads; [`idle`]
//!    is how a thread that polls rests;
//! 6. [`exchange`]: what two processes tell each other over TCP, so that their endpoints meet;
//! 7. [`trace`] lists what is told of connections, as spans and events;
//! 8. [`printable`] makes text from others safe to print, such as what peers send; [`chain`] shows
//!    errors with their reasons.
//!
//! The program `polyrail`, which copies files and measures, is the crate `polyrail-program`.

pub mod backend;
pub mod card;
pub mod chain;
pub mod cpus;
#[cfg(feature = "verbs")]
pub mod devices;
#[doc = include_str!("../docs/embedding.md")]
pub mod embedding {}
pub mod endpoint;
pub mod exchange;
mod heal;
pub mod idle;
mod json;
pub mod memory;
pub mod nic;
pub mod p2p;
pub mod printable;
pub mod progress;
#[doc = include_str!("../docs/rails.md")]
pub mod rails {}
#[cfg(feature = "verbs")]
pub mod rdma;
mod sync;
#[cfg_attr(
    not(feature = "tracing"),
    allow(unused_variables, unused_imports, reason = "nobody is told")
)]
pub mod trace;

pub use memory::{DeviceCountMismatch, RemoteBuffer};
pub use polyrail_core::{hardware, verbs, virtual_cq, virtual_qp};

/// The README's example compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
