//! The thread as its owner sees it.

use super::handle::P2pHandle;
use super::mailbox::{Instruction, MemberEvent, P2pMailbox, P2pShared};
use super::members::Members;
use super::port::{self, P2pPort};
use crate::backend::Domain;
use crate::p2p::{P2pEndpointSet, P2pMessage};
use crate::progress::error::ThreadPanicked;
use crate::progress::run::Worker;
use polyrail_software_nic as nic;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long a shutdown waits for messages to leave, unless its owner says otherwise.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A thread that owns the connections of a [`P2pEndpointSet`], and makes progress on them. Dropping it shuts it down,
/// and waits for that. See the [module](super).
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
    /// Starts a thread for a [`P2pEndpointSet`], or a single [`P2pEndpoint`](crate::p2p::P2pEndpoint), which is member
    /// 0. Its members are connected. What they began before is carried out, and nobody is told. A
    /// [shutdown](Self::shutdown) waits for 5 s until messages have left.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub fn spawn(set: impl Into<P2pEndpointSet<D, ROUTES>>) -> io::Result<Self> {
        Self::spawn_with(set, DRAIN_TIMEOUT)
    }

    /// [`spawn`](Self::spawn) with another time for messages to leave. A duration that overflows the clock means
    /// forever.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread, or gives no file descriptor to wait on.
    pub fn spawn_with(
        set: impl Into<P2pEndpointSet<D, ROUTES>>,
        drain_timeout: Duration,
    ) -> io::Result<Self> {
        let set = set.into();
        let is_there = (0..set.bound()).map(|number| set.member(number).is_some());
        let mailbox = P2pMailbox::new(is_there);
        Ok(Self(Worker::spawn(Members::new(set), mailbox, drain_timeout)?))
    }
}

impl<D: Domain, const ROUTES: usize> P2pThread<D, ROUTES> {
    /// A handle for one producer on the member with this number in the set; `None` if there is none.
    pub fn handle(&self, member: usize) -> Option<P2pHandle> {
        let shared = &self.0.shared;
        if !shared.mailbox.has(member) {
            return None;
        }
        let (lanes, port) = port::port(member);
        shared.introduce(port);
        Some(P2pHandle::new(lanes, Arc::clone(shared)))
    }

    /// What carries the messages of members whose rails are [re-routed](crate::p2p::P2pBuilder::reroutes) to their
    /// peers, and back.
    pub fn link(&self) -> P2pLink {
        P2pLink::new(Arc::clone(&self.0.shared))
    }

    /// The next thing that happened to a queue pair, of members whose rails are re-routed; see
    /// [`P2pMember::take_event`](crate::p2p::P2pMember::take_event). The oldest of more than 256 are forgotten.
    pub fn take_event(&self) -> Option<MemberEvent> {
        self.0.shared.mailbox.rail_events.pop()
    }

    /// Gives a member up, whose peer is known to be gone: its requests come back as
    /// [failed](crate::p2p::CallError::Failed), and the others go on.
    pub fn give_up(&self, member: usize) {
        self.0.shared.mailbox.instruct(member, Instruction::Fail);
        self.0.shared.wake();
    }

    /// Drains, ends the thread and gives its set back.
    ///
    /// From now on handles are refused. Messages that were handed over, and flushes, have the time that was
    /// [given](Self::spawn_with) to end by themselves; those for which peers offer no buffer stay until it is over. Then
    /// all members are [given up](crate::p2p::P2pMember::fail), so that receives, and what else is left, come back as
    /// failed. Every [`Pending`](crate::progress::Pending) has its outcome when this returns.
    ///
    /// # Errors
    ///
    /// The thread panicked.
    pub fn shutdown(self) -> Result<P2pEndpointSet<D, ROUTES>, ThreadPanicked> {
        self.0.shutdown()
    }
}

/// Carries what members whose rails are [re-routed](crate::p2p::P2pBuilder::reroutes) and their peers tell each other:
/// from any thread, over any link that keeps the order, for as long as there are requests. It sleeps for nobody; the
/// thread has something to tell within 10 ms of a failure.
#[derive(Clone, Debug)]
pub struct P2pLink {
    shared: Arc<P2pShared>,
}

impl P2pLink {
    pub(super) fn new(shared: Arc<P2pShared>) -> Self {
        Self { shared }
    }

    /// The next message, with the number of the member whose peer is to [hear](Self::hear) it.
    pub fn next_message(&self) -> Option<(usize, P2pMessage)> {
        self.shared.mailbox.next_message()
    }

    /// A member's peer says this. If no correct peer does, an end of the member fails, and its requests show that.
    pub fn hear(&self, member: usize, message: P2pMessage) {
        self.instruct(member, Instruction::Message(message));
    }

    /// What carried a member's messages broke, and both ends have a new way; see
    /// [`P2pMember::link_restored`](crate::p2p::P2pMember::link_restored).
    pub fn link_restored(&self, member: usize) {
        self.instruct(member, Instruction::LinkRestored);
    }

    fn instruct(&self, member: usize, instruction: Instruction) {
        if self.shared.is_gone() {
            // Nobody would ever take it.
            return;
        }
        self.shared.mailbox.instruct(member, instruction);
        self.shared.wake();
    }
}
