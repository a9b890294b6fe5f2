//! The thread as its owner sees it.

use super::alarm::Alarm;
use super::error::ThreadPanicked;
use super::handle::Handle;
use super::options::ProgressOptions;
use super::port;
use super::run::ProgressLoop;
use super::shared::Shared;
use crate::backend::{Connect, Notify};
use crate::endpoint::{EndpointQp, EndpointSet, NamedRailEvent, SET_ROUTES};
use polyrail_core::virtual_qp::RailFailure;
use polyrail_software_nic as nic;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A thread that owns virtual queue pairs, all on one virtual completion queue, and makes progress on
/// them. Dropping it shuts it down, and waits for that.
#[derive(Debug)]
pub struct ProgressThread<
    Q = nic::QueuePair,
    C = nic::CompletionQueue,
    const ROUTES: usize = SET_ROUTES,
> {
    shared: Arc<Shared>,
    /// `None` when it was joined.
    thread: Option<JoinHandle<EndpointSet<Q, C, ROUTES>>>,
}

impl<Q, C, const ROUTES: usize> ProgressThread<Q, C, ROUTES>
where
    Q: Connect + Send + 'static,
    C: Notify + Send + 'static,
{
    /// Starts a thread for an [`EndpointSet`], or a single [`Endpoint`](crate::endpoint::Endpoint),
    /// with the usual [`ProgressOptions`]. Its queue pairs are connected. What was posted to them
    /// before, with a `wr_id` below 2^63, is still carried out, and its completions are dropped: the
    /// names from there on are the thread's.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub fn spawn(set: impl Into<EndpointSet<Q, C, ROUTES>>) -> io::Result<Self> {
        Self::spawn_with(set, ProgressOptions::default())
    }

    /// [`spawn`](Self::spawn) with other options.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread, or gives no file descriptor to wait on. Or rails of a virtual queue pair are re-routed by
    /// [hand](crate::endpoint#by-hand) ([`io::ErrorKind::Unsupported`]): nobody could do that here.
    pub fn spawn_with(
        set: impl Into<EndpointSet<Q, C, ROUTES>>,
        options: ProgressOptions,
    ) -> io::Result<Self> {
        let set = set.into();
        let is_by_hand = |qp: &EndpointQp<Q>| {
            qp.virtual_qp().config().rail_failure == RailFailure::Reroute
                && qp.healing_link().is_none()
        };
        if set.qps().any(is_by_hand) {
            let why = "virtual queue pairs of a progress thread have to heal by themselves";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let is_there = (0..set.bound()).map(|number| set.get(number).is_some());
        let alarm = set.completion_fd().map(|_| Alarm::new()).transpose()?;
        let shared = Arc::new(Shared::new(is_there, alarm));
        let progress = ProgressLoop::new(set, Arc::clone(&shared), options);
        let builder = std::thread::Builder::new().name("polyrail-progress".to_owned());
        let thread = Some(builder.spawn(move || progress.run())?);
        Ok(Self { shared, thread })
    }

    /// A handle for one producer on the virtual queue pair with this number in the set; `None` if
    /// there is none.
    pub fn handle(&self, qp: usize) -> Option<Handle> {
        if !self.shared.has(qp) {
            return None;
        }
        let (messages, port, side) = port::port(qp);
        self.shared.introduce(side);
        Some(Handle::new(qp, messages, port, Arc::clone(&self.shared)))
    }

    /// The next thing that happened to a rail, with the number of its virtual queue pair; see
    /// [`EndpointQp::take_rail_event`]. The oldest of more than 256 are forgotten.
    pub fn take_rail_event(&self) -> Option<(usize, NamedRailEvent)> {
        self.shared.take_rail_event()
    }

    /// Drains, ends the thread and gives its set back.
    ///
    /// From now on handles are refused. Everything that they handed over is posted; sends have the
    /// [drain timeout](ProgressOptions::drain_timeout) to complete. Then all queue pairs are moved to
    /// ERR, so that receives, and what else is left, come back as flushed. Every [`Pending`](super::Pending) has its
    /// outcome when this returns.
    ///
    /// # Errors
    ///
    /// The thread panicked.
    pub fn shutdown(mut self) -> Result<EndpointSet<Q, C, ROUTES>, ThreadPanicked> {
        let thread = self.close().expect("only this and drop join the thread");
        thread.join().map_err(|_| ThreadPanicked)
    }
}

impl<Q, C, const ROUTES: usize> ProgressThread<Q, C, ROUTES> {
    /// Tells the thread to shut down; returns what is to be joined, if it was not joined yet.
    fn close(&mut self) -> Option<JoinHandle<EndpointSet<Q, C, ROUTES>>> {
        self.shared.close();
        self.thread.take()
    }
}

impl<Q, C, const ROUTES: usize> Drop for ProgressThread<Q, C, ROUTES> {
    fn drop(&mut self) {
        // A panic was printed, and handles see that the thread is gone.
        _ = self.close().map(JoinHandle::join);
    }
}
