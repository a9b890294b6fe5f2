//! The progress thread of messages, as its owner holds it.

use super::handle::P2pHandle;
use super::mailbox::{Instruction, MemberEvent, P2pMailbox, P2pShared};
use super::members::Members;
use super::port::{self, P2pPort};
use crate::backend::Domain;
use crate::p2p::{HealingMessage, P2pEndpointSet};
use crate::progress::outcome::ThreadPanicked;
use crate::progress::run::Worker;
use polyrail_software_nic as nic;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The default time that a shutdown waits for messages to be sent.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A thread that owns the members of a [`P2pEndpointSet`], and makes progress on them. Dropping it
/// shuts the thread down, and waits for its end. See the [module](super).
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
    /// before. Requests that were started before are still carried out, and not reported. A
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
        let mailbox = P2pMailbox::new(is_there);
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
        let (lanes, port) = port::port(member);
        shared.introduce(port);
        Some(P2pHandle::new(lanes, Arc::clone(shared)))
    }

    /// Returns the link that carries repair messages between members whose rails are
    /// [re-routed](crate::p2p::P2pBuilder::rail_failure) and their peers.
    pub fn link(&self) -> P2pLink {
        P2pLink::new(Arc::clone(&self.0.shared))
    }

    /// Takes the oldest event of a rail of a member whose rails are re-routed; see
    /// [`P2pMember::take_rail_event`](crate::p2p::P2pMember::take_rail_event). The thread keeps the
    /// newest 256 events.
    pub fn take_rail_event(&self) -> Option<MemberEvent> {
        self.0.shared.mailbox.rail_events.pop()
    }

    /// Gives up a member, for example because its peer is gone. Its requests end as
    /// [failed](crate::p2p::CallError::Failed), and the other members go on.
    pub fn give_up(&self, member: usize) {
        self.0.shared.mailbox.instruct(member, Instruction::Fail);
        self.0.shared.wake();
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
    /// The thread panicked.
    pub fn shutdown(self) -> Result<P2pEndpointSet<D, ROUTES>, ThreadPanicked> {
        self.0.shutdown()
    }
}

/// Carries repair messages between members whose rails are
/// [re-routed](crate::p2p::P2pBuilder::rail_failure) and their peers.
///
/// Any thread may use it, for as long as there are requests. The messages may travel over any link
/// that keeps their order. No method blocks, so the caller polls
/// [`next_message`](Self::next_message); the thread has messages within 10 ms of a failure.
#[derive(Clone, Debug)]
pub struct P2pLink {
    shared: Arc<P2pShared>,
}

impl P2pLink {
    pub(super) fn new(shared: Arc<P2pShared>) -> Self {
        Self { shared }
    }

    /// Takes the oldest message, with the number of the member whose peer has to
    /// [handle](Self::handle) it.
    pub fn next_message(&self) -> Option<(usize, HealingMessage)> {
        self.shared.mailbox.next_message()
    }

    /// Handles a message of a member's peer. If a correct peer does not send it, an end of the
    /// member fails, and its requests show that.
    pub fn handle(&self, member: usize, message: HealingMessage) {
        self.instruct(member, Instruction::Message(message));
    }

    /// Reports that the link which carried a member's messages broke, and that both ends have a new
    /// one; see [`P2pMember::restored`](crate::p2p::P2pMember::restored).
    pub fn restored(&self, member: usize) {
        self.instruct(member, Instruction::LinkRestored);
    }

    fn instruct(&self, member: usize, instruction: Instruction) {
        if self.shared.is_gone() {
            // No thread would take the instruction.
            return;
        }
        self.shared.mailbox.instruct(member, instruction);
        self.shared.wake();
    }
}
