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
//! for each other, nor for the thread. `handle` and `pending` are the producer's view, `inbox` is
//! where completions wait to be asked for; `port` is the thread's side of a handle, `run` the thread,
//! `idle` how it rests; `message` and `shared` are what they have in common.
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
//! let mut senders: EndpointSet = EndpointSet::build(builders.map(|qp| (qp, [&here])))?;
//! let mut receivers: EndpointSet = EndpointSet::build(builders.map(|qp| (qp, [&there])))?;
//! for (sender, receiver) in senders.qps_mut().iter_mut().zip(receivers.qps_mut()) {
//!     connect_endpoints(sender, receiver)?;
//! }
//! let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let from = RegisteredBuffer::new(4096, AccessFlags::empty(), &[&here])?;
//! let to = RegisteredBuffer::new(4096, writable, &[&there])?;
//! let keys = from.toward(&to.remote())?;
//!
//! let (senders, receivers) = (ProgressThread::spawn(senders)?, ProgressThread::spawn(receivers)?);
//! let mut receives = [0, 1].map(|qp| receivers.handle(qp).unwrap());
//! let first = receives[0].post_recv(&RecvWr::notification(1))?;
//! let second = receives[1].post_recv(&RecvWr::notification(2))?;
//! std::thread::scope(|scope| {
//!     for qp in 0..2 {
//!         let mut handle = senders.handle(qp).unwrap();
//!         let (local, addr, keys) = (from.local(0, 4096).unwrap(), to.addr(), &keys);
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
//! The thread looks 64 times more, then yields the processor between looks, about 4000 times, then
//! sleeps. While devices have requests of its queue pairs, or a virtual queue pair of several rails
//! uses DQPLB, whose receives have to be posted again when peers use them up, it sleeps for 50 µs at
//! a time: devices do not wake it. Otherwise it sleeps until a handle hands something over, which
//! costs the handle a system call only then.
//!
//! # What fails
//!
//! A request that was posted comes back with its status, as in verbs. When a virtual queue pair
//! fails, all its queue pairs are moved to ERR, so that everything outstanding comes back as flushed,
//! and all its handles know why ([`Handle::endpoint_error`]). The others of the set go on. A driver
//! that says nothing of a peer that is gone is found out by [`ProgressOptions::stall_timeout`].
//!
//! When a completion queue breaks, every virtual queue pair that completes there, with any of its
//! rails, is given up: its queue pairs are moved to ERR, and its requests come back as
//! [`RequestError::Abandoned`], since they may never be heard of. Those on other devices go on. If
//! the thread panics, all requests come back so.
//!
//! # Memory
//!
//! A handle allocates when it is made, and when it is handed device keys that are not among the 16
//! sets it used last. Nothing else on the way of a request allocates, on any thread; where a thread
//! waits for the first time, what it waits with is made.

mod error;
mod handle;
mod idle;
mod inbox;
mod lock;
mod message;
mod pending;
mod port;
mod run;
mod shared;

pub use error::{RequestError, SubmitError, ThreadPanicked};
pub use handle::Handle;
pub use message::REQUEST_BYTES;
pub use pending::Pending;

use crate::backend::Connect;
use crate::endpoint::EndpointSet;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_qp::MAX_RAILS;
use polyrail_software_nic as nic;
use run::Progress;
use shared::Shared;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Sends, and as many receives, that one handle may have unreported.
pub const HANDLE_DEPTH: usize = 256;

/// Both together.
const SLOTS: usize = 2 * HANDLE_DEPTH;

/// How patient a progress thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressOptions {
    /// How long a shutdown waits for sends to complete by themselves: 5 s, unless said otherwise.
    /// More than clocks can tell is for ever.
    pub drain_timeout: Duration,
    /// How long a rail may be without headway while it has sends; then its virtual queue pair fails
    /// with [`EndpointError::Silent`](crate::endpoint::EndpointError::Silent). Unless said
    /// otherwise there is no limit: a peer that takes its time to post receives is silent, too.
    pub stall_timeout: Option<Duration>,
}

impl Default for ProgressOptions {
    fn default() -> Self {
        Self { drain_timeout: Duration::from_secs(5), stall_timeout: None }
    }
}

/// A thread that owns virtual queue pairs, all on one virtual completion queue, and makes progress on
/// them. Dropping it shuts it down, and waits for that.
#[derive(Debug)]
pub struct ProgressThread<
    Q = nic::QueuePair,
    C = nic::CompletionQueue,
    const RAILS: usize = MAX_RAILS,
    const DEPTH: usize = 128,
    const WRS: usize = 256,
    const ROUTES: usize = 256,
> {
    shared: Arc<Shared>,
    /// `None` when it was joined.
    thread: Option<JoinHandle<EndpointSet<Q, C, RAILS, DEPTH, WRS, ROUTES>>>,
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize, const ROUTES: usize>
    ProgressThread<Q, C, RAILS, DEPTH, WRS, ROUTES>
where
    Q: Connect + Send + 'static,
    C: CompletionQueue + Send + 'static,
{
    /// Starts a thread for an [`EndpointSet`], or a single [`Endpoint`](crate::endpoint::Endpoint),
    /// with the usual [`ProgressOptions`]. Its queue pairs are connected. What was posted to them
    /// before, with a `wr_id` below 2^63, goes its way and nobody hears of it: the names from there
    /// on are the thread's.
    ///
    /// # Errors
    ///
    /// The system has no thread to give.
    pub fn spawn(set: impl Into<EndpointSet<Q, C, RAILS, DEPTH, WRS, ROUTES>>) -> io::Result<Self> {
        Self::spawn_with(set, ProgressOptions::default())
    }

    /// [`spawn`](Self::spawn) with options of one's own.
    ///
    /// # Errors
    ///
    /// The system has no thread to give.
    pub fn spawn_with(
        set: impl Into<EndpointSet<Q, C, RAILS, DEPTH, WRS, ROUTES>>,
        options: ProgressOptions,
    ) -> io::Result<Self> {
        let set = set.into();
        let shared = Arc::new(Shared::new(set.qps().len()));
        let progress = Progress::new(set, Arc::clone(&shared), options);
        let builder = std::thread::Builder::new().name("polyrail-progress".to_owned());
        let thread = Some(builder.spawn(move || progress.run())?);
        Ok(Self { shared, thread })
    }

    /// A handle for one producer on the virtual queue pair with this number in the set; `None` if
    /// there is none.
    pub fn handle(&self, qp: usize) -> Option<Handle> {
        if qp >= self.shared.qps() {
            return None;
        }
        let (messages, port, side) = port::port(qp);
        self.shared.introduce(side);
        Some(Handle::new(qp, messages, port, Arc::clone(&self.shared)))
    }

    /// Drains, ends the thread and gives its set back.
    ///
    /// From now on handles are refused. Everything that they handed over is posted; sends have the
    /// [drain timeout](ProgressOptions::drain_timeout) to complete. Then all queue pairs are moved to
    /// ERR, so that receives, and what else is left, come back as flushed. Every [`Pending`] has its
    /// outcome when this returns.
    ///
    /// # Errors
    ///
    /// The thread panicked.
    pub fn shutdown(
        mut self,
    ) -> Result<EndpointSet<Q, C, RAILS, DEPTH, WRS, ROUTES>, ThreadPanicked> {
        let thread = self.close().expect("nobody but this and drop joins the thread");
        thread.join().map_err(|_| ThreadPanicked)
    }
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize, const ROUTES: usize>
    ProgressThread<Q, C, RAILS, DEPTH, WRS, ROUTES>
{
    /// Tells the thread to shut down; what is to be joined, unless somebody has that already.
    fn close(&mut self) -> Option<JoinHandle<EndpointSet<Q, C, RAILS, DEPTH, WRS, ROUTES>>> {
        self.shared.close();
        self.thread.take()
    }
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize, const ROUTES: usize> Drop
    for ProgressThread<Q, C, RAILS, DEPTH, WRS, ROUTES>
{
    fn drop(&mut self) {
        // A panic was printed, and handles see that the thread is gone.
        _ = self.close().map(JoinHandle::join);
    }
}
