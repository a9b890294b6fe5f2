//! Posting from any thread: one thread owns endpoints and polls, others hand requests to it.
//!
//! ```text
//!   a producer's thread                                  the progress thread
//!
//!   Handle ──post_send──► ring of requests ────────────► post ─┐
//!                                                              ▼
//!                                                           Endpoint ◄──► devices
//!                                                              │
//!   Pending ◄──.await──── ring of completions ◄───────── poll ─┘
//! ```
//!
//! Each [`Handle`] has a pair of rings ([`polyrail_core::spsc`]) to the thread and back, so producers
//! never wait for each other, nor for the thread. `handle` and `pending` are the producer's view,
//! `inbox` is where completions wait to be asked for; `port` is the thread's side of a handle, `run`
//! the thread, `idle` how it rests; `message` and `shared` are what they have in common.
//!
//! # Example
//!
//! ```
//! use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
//! use polyrail::nic::{DeviceConfig, Fabric, RegisteredBuffer};
//! use polyrail::progress::ProgressThread;
//! use polyrail::verbs::{AccessFlags, RecvWr, SendWr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fabric = Fabric::threaded();
//! let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
//! let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
//! let mut sender: Endpoint = EndpointBuilder::new().build(&[&here])?;
//! let mut receiver: Endpoint = EndpointBuilder::new().build(&[&there])?;
//! connect_endpoints(&mut sender, &mut receiver)?;
//! let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let from = RegisteredBuffer::new(4096, AccessFlags::empty(), &[&here])?;
//! let to = RegisteredBuffer::new(4096, writable, &[&there])?;
//! let keys = from.toward(&to.remote())?;
//!
//! let thread = ProgressThread::spawn([sender, receiver])?;
//! let mut receives = thread.handle(1).unwrap();
//! let first = receives.post_recv(&RecvWr::notification(1))?;
//! let second = receives.post_recv(&RecvWr::notification(2))?;
//! std::thread::scope(|scope| {
//!     for producer in 0..2 {
//!         let mut handle = thread.handle(0).unwrap();
//!         let (local, addr, keys) = (from.local(0, 4096).unwrap(), to.addr(), &keys);
//!         scope.spawn(move || {
//!             let wr = SendWr::write_with_imm(producer, local, addr, 42, keys);
//!             assert!(handle.post_send(&wr).unwrap().wait().unwrap().status.is_success());
//!         });
//!     }
//! });
//! // Any executor will do; `wait` is for threads without one.
//! assert_eq!(pollster::block_on(first)?.imm, Some(42));
//! assert_eq!(second.wait()?.imm, Some(42));
//! thread.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! # When there is nothing to do
//!
//! The thread looks 64 times more, then yields the processor between looks, about 4000 times, then
//! sleeps. While devices have requests of its endpoints, or an endpoint of several rails uses DQPLB,
//! whose receives have to be posted again when peers use them up, it sleeps for 50 µs at a time:
//! devices do not wake it. Otherwise it sleeps until a handle hands something over, which costs the
//! handle a system call only then.
//!
//! # What fails
//!
//! A request that was posted comes back with its status, as in verbs. When an endpoint fails, all
//! its queue pairs are moved to ERR, so that everything outstanding comes back as flushed, and all
//! its handles know why ([`Handle::endpoint_error`]). When a completion queue breaks, or the thread
//! panics, requests come back as [`RequestError::Abandoned`].

mod error;
mod handle;
mod idle;
mod inbox;
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
use crate::endpoint::Endpoint;
use crate::nic;
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::virtual_qp::MAX_RAILS;
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

/// How long a shutdown waits for sends to complete by themselves.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// What a thread gives back: its endpoints.
type Endpoints<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize> =
    Vec<Endpoint<Q, C, RAILS, DEPTH, WRS>>;

/// A thread that owns endpoints, each a virtual queue pair with its completion queues, and makes
/// progress on them. Dropping it shuts it down, and waits for that.
#[derive(Debug)]
pub struct ProgressThread<
    Q = nic::QueuePair,
    C = nic::CompletionQueue,
    const RAILS: usize = MAX_RAILS,
    const DEPTH: usize = 128,
    const WRS: usize = 256,
> {
    shared: Arc<Shared>,
    /// `None` when it was joined.
    thread: Option<JoinHandle<Endpoints<Q, C, RAILS, DEPTH, WRS>>>,
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    ProgressThread<Q, C, RAILS, DEPTH, WRS>
where
    Q: QueuePair + Connect + Send + 'static,
    C: CompletionQueue + Send + 'static,
{
    /// Starts a thread for connected endpoints, with [`DRAIN_TIMEOUT`].
    ///
    /// # Errors
    ///
    /// The system has no thread to give.
    pub fn spawn(
        endpoints: impl IntoIterator<Item = Endpoint<Q, C, RAILS, DEPTH, WRS>>,
    ) -> io::Result<Self> {
        Self::spawn_with(endpoints, DRAIN_TIMEOUT)
    }

    /// [`spawn`](Self::spawn) with another time for sends to complete when the thread shuts down.
    ///
    /// # Errors
    ///
    /// The system has no thread to give.
    pub fn spawn_with(
        endpoints: impl IntoIterator<Item = Endpoint<Q, C, RAILS, DEPTH, WRS>>,
        drain_timeout: Duration,
    ) -> io::Result<Self> {
        let endpoints: Vec<_> = endpoints.into_iter().collect();
        let shared = Arc::new(Shared::new(endpoints.len()));
        let progress = Progress::new(endpoints, Arc::clone(&shared));
        let builder = std::thread::Builder::new().name("polyrail-progress".to_owned());
        let thread = Some(builder.spawn(move || progress.run(drain_timeout))?);
        Ok(Self { shared, thread })
    }

    /// A handle for one producer on the endpoint with this number, counted from 0 in the order of
    /// [`spawn`](Self::spawn); `None` if there is none.
    pub fn handle(&self, endpoint: usize) -> Option<Handle> {
        if endpoint >= self.shared.endpoints() {
            return None;
        }
        let (messages, port, side) = port::port(endpoint);
        self.shared.introduce(side);
        Some(Handle::new(endpoint, messages, port, Arc::clone(&self.shared)))
    }

    /// Drains, ends the thread and gives its endpoints back.
    ///
    /// From now on handles are refused. Everything that they handed over is posted; sends have the
    /// drain timeout to complete. Then all queue pairs are moved to ERR, so that receives, and what
    /// else is left, come back as flushed. Every [`Pending`] has its outcome when this returns.
    ///
    /// # Errors
    ///
    /// The thread panicked.
    pub fn shutdown(mut self) -> Result<Endpoints<Q, C, RAILS, DEPTH, WRS>, ThreadPanicked> {
        self.end().unwrap_or(Ok(Vec::new()))
    }
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    ProgressThread<Q, C, RAILS, DEPTH, WRS>
{
    fn end(&mut self) -> Option<Result<Endpoints<Q, C, RAILS, DEPTH, WRS>, ThreadPanicked>> {
        self.shared.close();
        Some(self.thread.take()?.join().map_err(|_| ThreadPanicked))
    }
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize> Drop
    for ProgressThread<Q, C, RAILS, DEPTH, WRS>
{
    fn drop(&mut self) {
        // A panic was printed, and handles see that the thread is gone.
        _ = self.end();
    }
}
