//! What the thread and its owner exchange.

use super::port::P2pPort;
use crate::p2p::End;
#[cfg(feature = "metrics")]
use crate::progress::metering::Handover;
use crate::progress::shared::{Mailbox, RecentEvents, Shared, lock};
use crate::sync::Mutex;
use polyrail_core::hardware::CqError;
use polyrail_core::virtual_qp::RailEvent;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state that the thread of messages shares.
pub(super) type P2pShared = Shared<P2pPort, P2pMailbox>;

/// What the thread and its owner exchange.
#[derive(Debug)]
pub(super) struct P2pMailbox {
    /// Whether there is a member, by number.
    members: Box<[bool]>,
    /// Failed rails are re-routed.
    reroutes: bool,
    /// The numbers of members that the owner gave up, and the thread has not failed yet.
    given_up: Mutex<Vec<usize>>,
    has_given_up: AtomicBool,
    pub(super) rail_events: RecentEvents<MemberEvent>,
    /// The first completion queue that broke.
    queue_error: OnceLock<CqError>,
    #[cfg(feature = "metrics")]
    pub(super) handover: Handover,
}

/// Something happened to a queue pair of a member.
///
/// Devices have numbers here, and no names: the device of the event is the domain whose
/// [`device_id`](crate::backend::Domain::device_id) is `event.device`, among those that the set or
/// endpoint was built with. Its [`device_name`](crate::backend::Domain::device_name) is the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberEvent {
    /// Number of the member.
    pub member: usize,
    /// The end of the member that has the queue pair.
    pub end: End,
    /// The queue pair's place.
    pub place: usize,
    /// What happened.
    pub event: RailEvent,
}

impl P2pMailbox {
    /// Makes a mailbox for members with the numbers that are marked.
    pub(super) fn new(members: impl IntoIterator<Item = bool>, reroutes: bool) -> Self {
        Self {
            members: members.into_iter().collect(),
            reroutes,
            given_up: Mutex::new(Vec::new()),
            has_given_up: AtomicBool::new(false),
            rail_events: RecentEvents::default(),
            queue_error: OnceLock::new(),
            #[cfg(feature = "metrics")]
            handover: Handover::default(),
        }
    }
}

impl Mailbox for P2pMailbox {
    fn end(&self) {
        #[cfg(feature = "metrics")]
        self.handover.end();
    }
}

/// The methods of the owner and of handles.
impl P2pMailbox {
    /// Returns the error of the first completion queue that broke.
    pub(super) fn queue_error(&self) -> Option<&CqError> {
        self.queue_error.get()
    }

    /// Whether failed rails of the members are re-routed.
    pub(super) const fn reroutes(&self) -> bool {
        self.reroutes
    }

    /// Whether the thread has a member with this number.
    pub(super) fn has(&self, member: usize) -> bool {
        self.members.get(member).copied().unwrap_or(false)
    }

    /// Has the thread fail a member. The caller wakes the thread afterwards.
    pub(super) fn give_up(&self, member: usize) {
        lock(&self.given_up).push(member);
        self.has_given_up.store(true, Ordering::Release);
    }
}

/// The thread's methods.
impl P2pMailbox {
    pub(super) fn has_given_up(&self) -> bool {
        self.has_given_up.load(Ordering::Acquire)
    }

    /// Takes the numbers of the members that were given up since the last call.
    pub(super) fn take_given_up(&self) -> Vec<usize> {
        if !self.has_given_up() {
            return Vec::new();
        }
        let mut given_up = lock(&self.given_up);
        self.has_given_up.store(false, Ordering::Relaxed);
        std::mem::take(&mut given_up)
    }

    /// Keeps that a completion queue broke; the first error stays.
    pub(super) fn queue_broke(&self, error: CqError) {
        _ = self.queue_error.set(error);
    }
}
