//! Messages between the thread and its owner.

use super::port::P2pPort;
use crate::p2p::{End, HealingMessage};
use crate::progress::shared::{RecentEvents, Shared, lock};
use crate::sync::Mutex;
use polyrail_core::hardware::CqError;
use polyrail_core::virtual_qp::RailEvent;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state that the thread of messages shares.
pub(super) type P2pShared = Shared<P2pPort, P2pMailbox>;

/// Messages between the thread and its owner, each with the number of a member.
#[derive(Debug)]
pub(super) struct P2pMailbox {
    /// Whether there is a member, by number.
    members: Box<[bool]>,
    has_instructions: AtomicBool,
    queues: Mutex<Queues>,
    pub(super) rail_events: RecentEvents<MemberEvent>,
    /// The first completion queue that broke.
    queue_error: OnceLock<CqError>,
}

#[derive(Debug, Default)]
struct Queues {
    instructions: VecDeque<(usize, Instruction)>,
    to_peers: VecDeque<(usize, HealingMessage)>,
}

/// A command of the owner for a member.
#[derive(Clone, Copy, Debug)]
pub(super) enum Instruction {
    /// Handle a message of the peer.
    Message(HealingMessage),
    /// Repeat messages: the link that carried them broke, and there is a new one.
    LinkRestored,
    /// Fail the member.
    Fail,
}

/// Something happened to a queue pair of a member.
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

/// Limits the messages that wait for the owner; further ones stay with their members.
const MOST_TO_PEERS: usize = 256;

impl P2pMailbox {
    /// Makes a mailbox for members with the numbers that are marked.
    pub(super) fn new(members: impl IntoIterator<Item = bool>) -> Self {
        Self {
            members: members.into_iter().collect(),
            has_instructions: AtomicBool::new(false),
            queues: Mutex::default(),
            rail_events: RecentEvents::default(),
            queue_error: OnceLock::new(),
        }
    }
}

/// The methods of the owner and of handles.
impl P2pMailbox {
    /// Returns the error of the first completion queue that broke.
    pub(super) fn queue_error(&self) -> Option<&CqError> {
        self.queue_error.get()
    }

    /// Whether the thread has a member with this number.
    pub(super) fn has(&self, member: usize) -> bool {
        self.members.get(member).copied().unwrap_or(false)
    }

    /// Leaves an instruction. The caller wakes the thread afterwards.
    pub(super) fn instruct(&self, member: usize, instruction: Instruction) {
        let mut queues = lock(&self.queues);
        if matches!(instruction, Instruction::LinkRestored) {
            // The member repeats them.
            queues.to_peers.retain(|(of, _)| *of != member);
        }
        queues.instructions.push_back((member, instruction));
        self.has_instructions.store(true, Ordering::Release);
    }

    /// Takes the oldest message for a peer.
    pub(super) fn next_message(&self) -> Option<(usize, HealingMessage)> {
        lock(&self.queues).to_peers.pop_front()
    }
}

/// The thread's methods.
impl P2pMailbox {
    pub(super) fn has_instructions(&self) -> bool {
        self.has_instructions.load(Ordering::Acquire)
    }

    /// Takes the instructions since the last call.
    pub(super) fn take_instructions(&self) -> VecDeque<(usize, Instruction)> {
        if !self.has_instructions() {
            return VecDeque::new();
        }
        let mut queues = lock(&self.queues);
        self.has_instructions.store(false, Ordering::Relaxed);
        std::mem::take(&mut queues.instructions)
    }

    /// Collects a member's messages for its peer, as long as there is room for them.
    pub(super) fn carry(&self, member: usize, mut next: impl FnMut() -> Option<HealingMessage>) {
        let mut queues = lock(&self.queues);
        let is_restored = |(of, instruction): &(usize, Instruction)| {
            *of == member && matches!(instruction, Instruction::LinkRestored)
        };
        if queues.instructions.iter().any(is_restored) {
            // The member has not learned of the new link yet: its messages are for the old one.
            return;
        }
        while queues.to_peers.len() < MOST_TO_PEERS
            && let Some(message) = next()
        {
            queues.to_peers.push_back((member, message));
        }
    }

    /// Keeps that a completion queue broke; the first error stays.
    pub(super) fn queue_broke(&self, error: CqError) {
        _ = self.queue_error.set(error);
    }
}
