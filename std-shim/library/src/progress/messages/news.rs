//! What the thread and its owner tell each other.

use super::port::Port;
use crate::p2p::{End, P2pMessage};
use crate::progress::lock::lock;
use crate::progress::shared::Shared;
use crate::sync::Mutex;
use polyrail_core::hardware::CqError;
use polyrail_core::virtual_qp::RailEvent;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the thread of messages shares.
pub(super) type P2pShared = Shared<Port, News>;

/// What the thread and its owner tell each other, always with the number of a member.
#[derive(Debug)]
pub(super) struct News {
    /// Which members there are.
    members: Box<[bool]>,
    /// The owner told something.
    has_told: AtomicBool,
    queues: Mutex<Queues>,
    /// The first completion queue that broke.
    queue_error: OnceLock<CqError>,
}

#[derive(Debug, Default)]
struct Queues {
    told: VecDeque<(usize, Told)>,
    to_peers: VecDeque<(usize, P2pMessage)>,
    events: VecDeque<MemberEvent>,
}

/// What the owner tells the thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    /// The peer's message.
    Message(P2pMessage),
    /// What carries messages broke, and there is a new way.
    LinkRestored,
    /// To give the member up.
    Fail,
}

/// Something happened to a queue pair of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberEvent {
    /// Number of the member.
    pub member: usize,
    /// Which end of it has the queue pair.
    pub end: End,
    /// The queue pair's place.
    pub place: usize,
    /// What happened.
    pub event: RailEvent,
}

/// Most messages and events that are kept for an owner who does not read them: messages stay with their members then,
/// and the oldest events are forgotten.
const MOST: usize = 256;

impl News {
    /// For members with the numbers that are marked.
    pub(super) fn new(members: impl IntoIterator<Item = bool>) -> Self {
        let members = members.into_iter().collect();
        Self {
            members,
            has_told: AtomicBool::new(false),
            queues: Mutex::default(),
            queue_error: OnceLock::new(),
        }
    }
}

/// The owner's methods.
impl News {
    /// The first completion queue that broke, if one did.
    pub(super) fn queue_error(&self) -> Option<&CqError> {
        self.queue_error.get()
    }

    /// Whether the thread has a member with this number.
    pub(super) fn has(&self, member: usize) -> bool {
        self.members.get(member).copied().unwrap_or(false)
    }

    /// Tells the thread something. To be followed by a wake-up.
    pub(super) fn tell(&self, member: usize, told: Told) {
        let mut queues = lock(&self.queues);
        if matches!(told, Told::LinkRestored) {
            // They will be told again.
            queues.to_peers.retain(|(of, _)| *of != member);
        }
        queues.told.push_back((member, told));
        self.has_told.store(true, Ordering::Release);
    }

    pub(super) fn next_message(&self) -> Option<(usize, P2pMessage)> {
        lock(&self.queues).to_peers.pop_front()
    }

    pub(super) fn take_event(&self) -> Option<MemberEvent> {
        lock(&self.queues).events.pop_front()
    }
}

/// The thread's methods.
impl News {
    pub(super) fn has_told(&self) -> bool {
        self.has_told.load(Ordering::Acquire)
    }

    /// What the owner told since the last call.
    pub(super) fn take_told(&self) -> VecDeque<(usize, Told)> {
        if !self.has_told() {
            return VecDeque::new();
        }
        let mut queues = lock(&self.queues);
        self.has_told.store(false, Ordering::Relaxed);
        std::mem::take(&mut queues.told)
    }

    /// Hands messages for a peer to the owner, as long as there are any and they have room.
    pub(super) fn carry(&self, member: usize, mut next: impl FnMut() -> Option<P2pMessage>) {
        let mut queues = lock(&self.queues);
        let is_restored =
            |(of, told): &(usize, Told)| *of == member && matches!(told, Told::LinkRestored);
        if queues.told.iter().any(is_restored) {
            // What the member has to say of before is not for the new way.
            return;
        }
        while queues.to_peers.len() < MOST
            && let Some(message) = next()
        {
            queues.to_peers.push_back((member, message));
        }
    }

    /// Keeps that a completion queue broke; the first one stays.
    pub(super) fn queue_broke(&self, error: CqError) {
        _ = self.queue_error.set(error);
    }

    /// Keeps what happened to a queue pair; the newest stay.
    pub(super) fn add_event(&self, event: MemberEvent) {
        let events = &mut lock(&self.queues).events;
        if events.len() == MOST {
            events.pop_front();
        }
        events.push_back(event);
    }
}
