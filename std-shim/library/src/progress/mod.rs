//! Posting from any thread: one thread owns virtual queue pairs and polls the completion queue that
//! they share, others hand requests to it.
//!
//! ```text
//!   a producer's thread                               the progress thread
//!
//!   Handle ──post_send──► ring of requests ─────────► post ──► virtual queue pairs ─┐
//!                                                                                   ▼
//!                                                                                devices
//!                                                                                   │
//!   Pending ◄──.await──── ring of completions ◄────── poll ◄── completion queue ◄───┘
//! ```
//!
//! An [`EndpointSet`] is what the thread owns. Each [`Handle`] is for one virtual queue pair of it,
//! and has a pair of rings ([`polyrail_core::spsc`]) to the thread and back, so producers never wait
//! for each other, nor for the thread. `handle` and `pending` are the producer's view: `submit` with `keys` is how
//! requests leave, `inbox` is where completions wait to be asked for (`outcome`); `port` is the thread's side of a
//! handle, `replies` its way back, `run` the thread, `sleep`, `wait` and `alarm` how it rests, `thread` its owner's view of a
//! `worker`; `message`, `depth`, `rings`, `shared` and `news` are what they have in common.
//!
//! [`messages`] is the same for messages between two processes.
//!
//! # Example
//!
//! ```
//! use polyrail::endpoint::{EndpointBuilder, EndpointSet, connect_endpoints};
//! use polyrail::nic::{DeviceConfig, Fabric, RegisteredBuffer};
//! use polyrail::progress::ProgressThread;
//! use polyrail::verbs::{AccessFlags, RecvWr, SendWr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fabric = Fabric::threaded();
//! let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
//! let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
//! // Two virtual queue pairs on each side, one of four rails and one of a single one.
//! let builders = [EndpointBuilder::new(), EndpointBuilder::new().rails(1)];
//! let mut senders = EndpointSet::build(builders.map(|qp| (qp, [&here])))?;
//! let mut receivers = EndpointSet::build(builders.map(|qp| (qp, [&there])))?;
//! for (sender, receiver) in senders.qps_mut().zip(receivers.qps_mut()) {
//!     connect_endpoints(sender, receiver)?;
//! }
//! let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let from = RegisteredBuffer::new(4096, AccessFlags::empty(), &[&here])?;
//! let to = RegisteredBuffer::new(4096, writable, &[&there])?;
//! let keys = from.toward(&to.remote())?;
//!
//! let senders = ProgressThread::spawn(senders)?;
//! let receivers = ProgressThread::spawn(receivers)?;
//! let mut receives = [0, 1].map(|qp| receivers.handle(qp).unwrap());
//! let first = receives[0].post_recv(&RecvWr::notification(1))?;
//! let second = receives[1].post_recv(&RecvWr::notification(2))?;
//! std::thread::scope(|scope| {
//!     for qp in 0..2 {
//!         let mut handle = senders.handle(qp).unwrap();
//!         let local = from.local(0, 4096).unwrap();
//!         let addr = to.addr();
//!         let keys = &keys;
//!         scope.spawn(move || {
//!             let wr = SendWr::write_with_imm(7, local, addr, 40 + qp as u32, keys);
//!             assert!(handle.post_send(&wr).unwrap().wait().unwrap().status.is_success());
//!         });
//!     }
//! });
//! // Any executor will do; `wait` is for threads without one.
//! assert_eq!(pollster::block_on(first)?.imm, Some(40));
//! assert_eq!(second.wait()?.imm, Some(41));
//! senders.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! # When there is nothing to do
//!
//! The thread polls 64 times more, then yields the processor between polls, about 4000 times, then
//! sleeps. While devices have requests of its queue pairs, or a virtual queue pair of several rails
//! uses DQPLB, whose receives have to be posted again when peers use them up, it sleeps for 50 µs at a
//! time: devices do not wake it, unless completion queues were made
//! [to tell](crate::endpoint::EndpointBuilder::completion_channel): then it sleeps until one does, and looks
//! every 10 ms all the same. If virtual queue pairs heal by themselves, it sleeps for 10 ms at a time: peers
//! may have something to say. Otherwise it sleeps until a handle hands something over, which costs the
//! handle a system call only then.
//!
//! # What fails
//!
//! A request that was posted comes back with its status, as in verbs. When a virtual queue pair fails,
//! all its queue pairs are moved to ERR, so that all requests come back as flushed, and all its handles
//! know why ([`Handle::endpoint_error`]). The others of the set go on.
//! Virtual queue pairs whose rails are re-routed [heal](crate::endpoint::Healing) by themselves; what happened is read
//! with [`ProgressThread::take_rail_event`], and a [`HealingLink`](crate::endpoint::HealingLink) that was taken
//! before goes on carrying. [`ProgressOptions::stall_timeout`] is for the others: it detects a driver that reports nothing about a peer that is gone.
//!
//! When a completion queue breaks, every virtual queue pair that completes there, with any of its
//! rails, is given up: its queue pairs are moved to ERR, and its requests come back as
//! [`RequestError::Abandoned`], since they may never complete. Those on other devices go on. If the
//! thread panics, all requests come back abandoned.
//!
//! # Memory
//!
//! A handle allocates when it is made, and when it is handed device keys that are not among the 16 sets
//! it used last. Nothing else on the way of a request allocates, on any thread; except that a thread's
//! first wait makes what it waits with.

mod endpoints;
mod error;
mod handle;
mod inbox;
pub mod messages;
mod pending;
mod port;
mod replies;
mod request;
mod run;
mod set;
mod shared;
mod submit;
mod thread;

pub use error::{RequestError, SubmitError, SubmitManyError, ThreadPanicked};
pub use handle::Handle;
pub use pending::{Outcome, Pending};
pub use request::REQUEST_BYTES;
pub use thread::{ProgressOptions, ProgressThread};

/// Requests of one kind that one handle may have unreported: sends, and as many receives.
pub const HANDLE_DEPTH: usize = if cfg!(polyrail_loom) { 2 } else { 256 };

#[cfg(doc)]
use crate::endpoint::EndpointSet;
