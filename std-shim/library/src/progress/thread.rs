//! The progress thread of virtual queue pairs, as its owner holds it.

use super::endpoints::{Endpoints, QpMailbox};
use super::handle::Handle;
use super::outcome::ShutdownError;
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
    /// How long a shutdown waits for sends to complete: 5 s by default. A duration that overflows
    /// the clock means forever.
    pub drain_timeout: Duration,
    /// How long a rail with sends may make no progress before its virtual queue pair fails with
    /// [`EndpointError::Silent`](crate::endpoint::EndpointError::Silent). By default there is no
    /// limit, because a peer that is slow to post receives is silent, too. The thread finds a
    /// silent rail within nine eighths of this time, whether it polls or sleeps. Virtual queue
    /// pairs that repair their rails ignore it: they have
    /// [`Healing::stall_timeout`](crate::heal::Healing::stall_timeout).
    pub stall_timeout: Option<Duration>,
}

impl Default for ProgressOptions {
    fn default() -> Self {
        Self { drain_timeout: Duration::from_secs(5), stall_timeout: None }
    }
}

/// A thread that owns virtual queue pairs, all on one virtual completion queue, and makes progress
/// on them. Dropping it shuts the thread down, and waits for its end, except in a waker that the
/// thread itself runs. In a fork of the process, which does not have the thread, dropping it does
/// nothing.
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
    /// with the default [`ProgressOptions`]. The queue pairs are connected before. Requests that
    /// were posted before, with a `wr_id` below 2^63, are still carried out, and their completions
    /// are dropped; a [shutdown](Self::shutdown) does not wait for them. With one rail, the device
    /// alone counts them: the software NIC carries them on only while a handle has requests. The
    /// thread uses all greater `wr_id`s.
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
    /// The system cannot start a thread, or has no file descriptor to wait on.
    pub fn spawn_with(
        set: impl Into<EndpointSet<Q, C, ROUTES>>,
        options: ProgressOptions,
    ) -> io::Result<Self> {
        let set = set.into();
        let reroutes = |number: usize| Some(set.get(number)?.healing_link().is_some());
        let mailbox = QpMailbox::new((0..set.bound()).map(reroutes));
        let ProgressOptions { drain_timeout, stall_timeout } = options;
        let endpoints = Endpoints::new(set, stall_timeout);
        Ok(Self(Worker::spawn(endpoints, mailbox, drain_timeout)?))
    }

    /// Makes a handle for one producer on the virtual queue pair with this number in the set;
    /// `None` if there is none.
    pub fn handle(&self, qp: usize) -> Option<Handle> {
        let shared = &self.0.shared;
        if !shared.mailbox.has(qp) {
            return None;
        }
        let (requests, replies, side) = port::port(qp, &shared.driver);
        shared.introduce(side);
        Some(Handle::new(qp, requests, replies, Arc::clone(shared)))
    }

    /// Takes the oldest event of a rail, with the number of its virtual queue pair; see
    /// [`EndpointQp::take_rail_event`](crate::endpoint::EndpointQp::take_rail_event). The thread
    /// keeps the newest 256 events.
    pub fn take_rail_event(&self) -> Option<(usize, NamedRailEvent)> {
        self.0.shared.owned_mailbox()?.rail_events.pop()
    }

    /// Has the thread publish the metrics of its virtual queue pairs from now on, with this source.
    /// A reader wakes the thread if it sleeps.
    ///
    /// An earlier source publishes for the last time and ends. What it published stays under its
    /// name, and this source counts from there. If the earlier source belongs to other
    /// [`Metrics`](crate::metrics::Metrics), this source counts from the beginning of the
    /// connections. Does nothing but end the source in a fork of the process, or once the thread has
    /// ended.
    ///
    /// The source also ends with the thread. After [`shutdown`](Self::shutdown), the set still has
    /// the counts that were published. If you publish them by another source of the same
    /// [`Metrics`](crate::metrics::Metrics), it counts from the beginning, so give it another name:
    /// otherwise what the thread published is counted twice.
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self, source: crate::metrics::Source) {
        if let Some(mailbox) = self.0.shared.owned_mailbox() {
            mailbox.handover.put(source);
            self.0.shared.wake();
        }
    }

    /// Drains, ends the thread and gives its set back.
    ///
    /// Handles refuse further requests. The thread posts all requests that were handed over, and
    /// waits for sends to complete, at most for the [drain
    /// timeout](ProgressOptions::drain_timeout). Then it moves all queue pairs to ERR, so that
    /// receives, and sends that are left, complete as flushed. Every [`Pending`](super::Pending)
    /// has its outcome when this returns.
    ///
    /// # Errors
    ///
    /// The thread panicked; the thread itself called, in a waker; this process is a fork of the one
    /// that started the thread.
    pub fn shutdown(self) -> Result<EndpointSet<Q, C, ROUTES>, ShutdownError> {
        self.0.shutdown()
    }
}
