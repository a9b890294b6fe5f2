//! The thread as its owner sees it.

use super::endpoints::{Endpoints, QpMailbox};
use super::error::ThreadPanicked;
use super::handle::Handle;
use super::port::{self, QpPort};
use super::run::Worker;
use crate::backend::{Connect, Notify};
use crate::endpoint::{EndpointSet, NamedRailEvent, SET_ROUTES};
use polyrail_software_nic as nic;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The timeouts of a progress thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressOptions {
    /// How long a shutdown waits for sends to complete by themselves: 5 s by default. A duration that
    /// overflows the clock means forever.
    pub drain_timeout: Duration,
    /// How long a rail may make no progress while it has sends; then its virtual queue pair fails with
    /// [`EndpointError::Silent`](crate::endpoint::EndpointError::Silent). By default there is no limit:
    /// a peer that is slow to post receives is silent, too. A rail is found after that time and about an eighth of it
    /// more, whether the thread polls or sleeps. It has no effect on virtual queue pairs that heal by
    /// themselves: they have [`Healing::stall_timeout`](crate::endpoint::Healing::stall_timeout).
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
    const ROUTES: usize = SET_ROUTES,
>(Worker<QpPort, QpMailbox, EndpointSet<Q, C, ROUTES>>);

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
    /// The system cannot start a thread, or gives no file descriptor to wait on.
    pub fn spawn_with(
        set: impl Into<EndpointSet<Q, C, ROUTES>>,
        options: ProgressOptions,
    ) -> io::Result<Self> {
        let set = set.into();
        let is_there = (0..set.bound()).map(|number| set.get(number).is_some());
        let mailbox = QpMailbox::new(is_there);
        let ProgressOptions { drain_timeout, stall_timeout } = options;
        let endpoints = Endpoints::new(set, stall_timeout);
        Ok(Self(Worker::spawn(endpoints, mailbox, drain_timeout)?))
    }

    /// A handle for one producer on the virtual queue pair with this number in the set; `None` if
    /// there is none.
    pub fn handle(&self, qp: usize) -> Option<Handle> {
        let shared = &self.0.shared;
        if !shared.mailbox.has(qp) {
            return None;
        }
        let (requests, replies, side) = port::port(qp);
        shared.introduce(side);
        Some(Handle::new(qp, requests, replies, Arc::clone(shared)))
    }

    /// The next thing that happened to a rail, with the number of its virtual queue pair; see
    /// [`EndpointQp::take_rail_event`]. The oldest of more than 256 are forgotten.
    pub fn take_rail_event(&self) -> Option<(usize, NamedRailEvent)> {
        self.0.shared.mailbox.rail_events.pop()
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
    pub fn shutdown(self) -> Result<EndpointSet<Q, C, ROUTES>, ThreadPanicked> {
        self.0.shutdown()
    }
}
