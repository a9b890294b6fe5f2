//! What happened to the queue pairs of a connection.

use super::message::{End, QueuePairId};
use super::sizes::RAILS;
use crate::endpoint::NamedRailEvent;
use crate::heal::{Added, Detected, Losses, RailHistory};
use crate::trace::MessageEnd;
use polyrail_core::virtual_qp::RailEventKind;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum events that are kept for an owner who does not take them.
const MOST_EVENTS: usize = 256;

/// What happened to a connection.
#[derive(Debug)]
pub(super) struct RailLog {
    /// Number of its first queue pair, which distinguishes it from other connections.
    pub(super) qp: u32,
    /// Whether the failure of the sending and of the receiving end was reported.
    pub(super) is_end_reported: [bool; 2],
    /// What happened to queue pairs, until the owner takes it.
    events: VecDeque<(End, usize, NamedRailEvent)>,
    /// The histories of the queue pairs of both ends. Boxed: endpoints are moved.
    histories: Box<[RailHistory]>,
    /// What the sending and the receiving end lost.
    losses: [Losses; 2],
    /// How long an end may have nothing but losses.
    rail_timeout: Option<Duration>,
}

impl RailLog {
    pub(super) fn new(qp: u32, rail_timeout: Option<Duration>) -> Self {
        Self {
            qp,
            is_end_reported: [false; 2],
            events: VecDeque::new(),
            histories: vec![RailHistory::new(Instant::now()); RAILS].into(),
            losses: Default::default(),
            rail_timeout,
        }
    }

    pub(super) fn end(&self, end: End) -> MessageEnd {
        let name = match end {
            End::Sender => "sender",
            End::Receiver => "receiver",
        };
        MessageEnd { qp: self.qp, end: name }
    }

    /// Notes why a queue pair is failed.
    pub(super) fn note_detected(&mut self, rail: QueuePairId, detected: Detected) {
        if let Some(history) = rail.place().and_then(|place| self.histories.get_mut(place)) {
            history.note_detected(detected);
        }
    }

    /// Returns the history of a queue pair; `None` if no connection can have such a queue pair.
    pub(super) fn history(&self, rail: QueuePairId) -> Option<&RailHistory> {
        self.histories.get(rail.place()?)
    }

    /// Adds an event to the history of its queue pair.
    pub(super) fn add(&mut self, rail: QueuePairId, kind: RailEventKind, at: Instant) -> Added {
        let history = rail.place().and_then(|place| self.histories.get_mut(place));
        let unknown = Added { detected: None, out_for: Duration::ZERO };
        history.map_or(unknown, |history| history.add(kind, at))
    }

    /// Returns the oldest event that was not taken.
    pub(super) fn take(&mut self) -> Option<(End, usize, NamedRailEvent)> {
        self.events.pop_front()
    }

    /// Notes what became of the requests in flight on a rail of an end that failed, after
    /// `completed` requests of that end. Returns whether nothing but losses was found for too long.
    pub(super) fn fenced(&mut self, end: End, arrived: bool, lost: bool, completed: u64) -> bool {
        let losses = &mut self.losses[usize::from(end == End::Receiver)];
        if arrived {
            losses.arrived();
        }
        !arrived && lost && losses.lost(Instant::now(), completed, self.rail_timeout)
    }

    /// Keeps an event until it is taken. If there are too many, the oldest is dropped.
    pub(super) fn keep(&mut self, end: End, place: usize, event: NamedRailEvent) {
        if self.events.len() == MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back((end, place, event));
    }
}
