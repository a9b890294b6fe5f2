//! The progress thread of messages, as its owner holds it.

use super::handle::P2pHandle;
use super::mailbox::{MemberEvent, P2pMailbox};
use super::members::Members;
use super::port::{self, P2pPort};
use crate::backend::Domain;
use crate::p2p::P2pEndpointSet;
use crate::progress::outcome::ShutdownError;
use crate::progress::run::Worker;
use polyrail_software_nic as nic;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The default time that a shutdown waits for messages to be sent.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A thread that owns the members of a [`P2pEndpointSet`], and makes progress on them. Dropping it
/// shuts the thread down, and waits for its end, except in a waker that the thread itself runs. In
/// a fork of the process, which does not have the thread, dropping it does nothing. See the
/// [module](super).
pub struct P2pThread<D: Domain = nic::ProtectionDomain, const ROUTES: usize = 256>(
    Worker<P2pPort, P2pMailbox, P2pEndpointSet<D, ROUTES>>,
);

impl<D: Domain, const ROUTES: usize> fmt::Debug for P2pThread<D, ROUTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("P2pThread").finish_non_exhaustive()
    }
}

impl<D: Domain, const ROUTES: usize> P2pThread<D, ROUTES>
where
    P2pEndpointSet<D, ROUTES>: Send,
{
    /// Starts a thread for a [`P2pEndpointSet`], or a single
    /// [`P2pEndpoint`](crate::p2p::P2pEndpoint), which is member 0. The members are connected
    /// before. Requests that were started before are still carried out, and not reported; a
    /// [shutdown](Self::shutdown) does not wait for them. If their rails are re-routed, the owner
    /// keeps the [links](crate::p2p::P2pMember::healing_link) of members whose peers are in other
    /// processes, and carries their messages: a message that arrives wakes the thread, and
    /// [`next_message`](crate::heal::HealingLink::next_message) is called every few milliseconds.
    /// Over a [`link`](crate::link) they go as [`Message::Note`](crate::link::Message::Note). The
    /// thread does not watch the link: [give a member up](Self::give_up) whose peer is gone. A
    /// [shutdown](Self::shutdown) waits at most 5 s for messages to be sent.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub fn spawn(set: impl Into<P2pEndpointSet<D, ROUTES>>) -> io::Result<Self> {
        Self::spawn_with(set, DRAIN_TIMEOUT)
    }

    /// [`spawn`](Self::spawn) with another limit for the shutdown. A duration that overflows the
    /// clock means forever.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread, or has no file descriptor to wait on.
    pub fn spawn_with(
        set: impl Into<P2pEndpointSet<D, ROUTES>>,
        drain_timeout: Duration,
    ) -> io::Result<Self> {
        let set = set.into();
        let is_there = (0..set.bound()).map(|number| set.get(number).is_some());
        let mailbox = P2pMailbox::new(is_there, set.reroutes());
        Ok(Self(Worker::spawn(Members::new(set), mailbox, drain_timeout)?))
    }
}

impl<D: Domain, const ROUTES: usize> P2pThread<D, ROUTES> {
    /// Makes a handle for one producer on the member with this number in the set; `None` if there
    /// is none.
    pub fn handle(&self, member: usize) -> Option<P2pHandle> {
        let shared = &self.0.shared;
        if !shared.mailbox.has(member) {
            return None;
        }
        let (lanes, port) = port::port(member, &shared.driver);
        shared.introduce(port);
        Some(P2pHandle::new(lanes, Arc::clone(shared)))
    }

    /// Takes the oldest event of a rail of a member whose rails are re-routed; see
    /// [`P2pMember::take_rail_event`](crate::p2p::P2pMember::take_rail_event). The thread keeps the
    /// newest 256 events.
    pub fn take_rail_event(&self) -> Option<MemberEvent> {
        self.0.shared.owned_mailbox()?.rail_events.pop()
    }

    /// Gives up a member, for example because its peer is gone. Its requests end as
    /// [failed](crate::p2p::CallError::Failed), and the other members go on.
    pub fn give_up(&self, member: usize) {
        if let Some(mailbox) = self.0.shared.owned_mailbox() {
            mailbox.give_up(member);
            self.0.shared.wake();
        }
    }

    /// Has the thread publish the metrics of its members from now on, with this source. A reader
    /// wakes the thread if it sleeps.
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
    /// Handles refuse further requests. The thread waits for the sends and flushes that were handed
    /// over, at most for the [limit](Self::spawn_with), which includes messages for which peers
    /// offer no buffer. Then all members [fail](crate::p2p::P2pMember::fail), so that receives, and
    /// requests that are left, end as failed. Every [`Pending`](crate::progress::Pending) has its
    /// outcome when this returns.
    ///
    /// # Errors
    ///
    /// The thread panicked; the thread itself called, in a waker; this process is a fork of the one
    /// that started the thread.
    pub fn shutdown(self) -> Result<P2pEndpointSet<D, ROUTES>, ShutdownError> {
        self.0.shutdown()
    }
}
