//! Posting from any thread: one thread owns virtual queue pairs and polls their shared completion
//! queue; other threads hand requests to it.
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
//! The thread owns an [`EndpointSet`]. Each [`Handle`] belongs to one virtual queue pair of the
//! set, and has rings ([`polyrail_core::spsc`]) to the thread and back, so producers wait neither
//! for each other nor for the thread.
//!
//! While the thread runs, its set stays as it is: no virtual queue pair is added, removed or given
//! up alone. [`shutdown`](ProgressThread::shutdown) ends all of them, and returns the set. Use a
//! thread for each group of peers that begins and ends together, or poll an [`EndpointSet`] in a
//! thread of your own.
//!
//! [`messages`] does the same for messages between two processes, with the same loop.
//!
//! # Example
//!
//! ```
//! use polyrail::endpoint::{EndpointBuilder, EndpointSet, connect_endpoints};
//! use polyrail::memory::RegisteredBuffer;
//! use polyrail::nic::{DeviceConfig, Fabric};
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
//! The thread polls 64 times more, then yields the processor between about 4000 polls, then sleeps:
//!
//! - At most 50 µs at a time while devices have requests, because devices do not wake it. The same
//!   holds if a virtual queue pair of several rails uses DQPLB, whose receives have to be posted
//!   again when peers use them up.
//! - At most 10 ms at a time instead if completion queues have a
//!   [channel](crate::endpoint::EndpointBuilder::completion_channel), whose events wake it.
//! - At most 10 ms at a time while no device has requests, if virtual queue pairs repair their
//!   rails: peers may send repair messages.
//! - Otherwise until a handle hands over a request. Only then does that cost the handle a system
//!   call.
//!
//! # What fails
//!
//! A posted request completes with a status, as in verbs. When a virtual queue pair fails, the
//! thread moves all its queue pairs to ERR, so that its requests complete as flushed, and its
//! handles return the reason ([`Handle::endpoint_error`]). The other virtual queue pairs go on.
//!
//! Virtual queue pairs whose rails are re-routed [repair](crate::heal::Healing) them. The owner
//! reads rail events with [`ProgressThread::take_rail_event`], and a
//! [`HealingLink`](crate::endpoint::HealingLink) that was taken before still carries messages. For
//! all others, [`ProgressOptions::stall_timeout`] detects a peer that is gone without an error from
//! the driver.
//!
//! When a completion queue breaks, every virtual queue pair with a rail that completes there fails.
//! Its requests end as [`RequestError::Abandoned`], since they may never complete. Virtual queue
//! pairs on other devices go on. If the thread panics, all requests end as abandoned.
//!
//! # Wakers
//!
//! The thread runs the wakers of requests that have ended, and requests of all handles wait for
//! them, so a waker should only schedule its task. A waker that panics costs other requests
//! nothing. In a waker, dropping the [`ProgressThread`] does not wait for the thread's end,
//! [`shutdown`](ProgressThread::shutdown) cannot return the set, and [`Pending::wait`] for a
//! request of the same thread returns [`RequestError::OwnThread`].
//!
//! # Forks
//!
//! A child of `fork` does not have the thread. There, handles and [`Pending`]s return an error that
//! names the process which has it, and dropping any of them does nothing.
//!
//! # Memory
//!
//! A handle allocates when it is made, and for device keys that are not among the 16 sets that it
//! used last. No other step of a request allocates, on any thread, except that a thread's first
//! wait makes its waker.

// Files:
//
// `handle` and `pending` are the producer's view. A handle submits requests with `submit`, and
// finds their outcomes in its `inbox`. `port` is the thread's side of a handle, which reports
// through `replies`. `run` is the loop, `set` the interface to what it drives, and `endpoints` the
// virtual queue pairs behind that interface. `thread` is the owner's view. All of them share
// `shared`. `metering` publishes metrics.

mod endpoints;
mod handle;
mod inbox;
pub mod messages;
#[cfg(feature = "metrics")]
mod metering;
mod outcome;
mod pending;
mod port;
mod replies;
mod request;
mod run;
mod set;
mod shared;
mod submit;
mod thread;

pub use handle::Handle;
pub use outcome::{
    HandleCancelError, Outcome, RequestError, ShutdownError, SubmitError, SubmitManyError,
};
pub use pending::Pending;
pub use request::REQUEST_BYTES;
pub use thread::{ProgressOptions, ProgressThread};

/// Limits the unreported requests of one kind on one handle: this many sends, and this many
/// receives.
pub const HANDLE_DEPTH: usize = if cfg!(polyrail_loom) { 2 } else { 256 };

#[cfg(doc)]
use crate::endpoint::EndpointSet;
