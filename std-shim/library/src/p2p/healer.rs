//! What an endpoint whose rails are re-routed remembers.

use super::address::QueuePairAddress;
use super::message::{End, P2pMessage};
use super::patience::Patience;
use super::queue_pair::Shape;
use super::sizes::QUEUE_PAIRS;
use crate::backend::{Connect, Connecting, Domain, Port};
use crate::endpoint::RailAddress;
use crate::heal::{Attempts, DeviceEvents, Healing, Limits, SilenceWatch};
use polyrail_core::virtual_qp::RailEvent;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long an offer may go unanswered: its link may have lost it, or the answer. To connect the other end can take the
/// peer seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Most events that are kept for an owner who does not take them.
const MOST_EVENTS: usize = 256;

/// What an endpoint whose rails are re-routed remembers.
#[derive(Debug)]
pub(super) struct Healer<D: Domain> {
    /// The devices of its rails, in their order.
    pub(super) domains: Vec<D>,
    pub(super) device_events: DeviceEvents,
    /// What new queue pairs are made with.
    pub(super) shape: Shape,
    pub(super) options: Healing,
    /// For each place.
    pub(super) places: Vec<Care<D::Qp>>,
    pub(super) outbox: VecDeque<P2pMessage>,
    /// What happened to queue pairs, until the owner takes it.
    pub(super) events: VecDeque<(End, usize, RailEvent)>,
    /// Watches the places of the end that sends, then those of the end that receives.
    pub(super) silence: SilenceWatch<{ 2 * QUEUE_PAIRS }>,
    /// How long messages that are sent may wait.
    pub(super) limits: Limits<QUEUE_PAIRS>,
    /// Of the end that sends, and the one that receives.
    pub(super) patience: [Patience; 2],
}

/// The place of a sender's queue pair, and that of a receiver's with the same number.
#[derive(Debug)]
pub(super) struct Care<Q> {
    pub(super) attempts: Attempts,
    /// How far the sender's next queue pair is.
    pub(super) offering: Option<Offering<Q>>,
    /// The receiver's next queue pair, which goes with one of the peer's.
    pub(super) answering: Option<Answering<Q>>,
}

/// How far a sender's new queue pair is:
///
/// ```text
///   Making ──made──► Offered ──answered──► Joining ──connected──► in its place
/// ```
#[derive(Debug)]
pub(super) struct Offering<Q> {
    pub(super) generation: u16,
    pub(super) step: Step<Q>,
}

/// What a sender's new queue pair waits for.
#[derive(Debug)]
pub(super) enum Step<Q> {
    /// To be made, in INIT.
    Making(Connecting<(Q, Port)>),
    /// For its other end.
    Offered { queue_pair: Q, port: Port, since: Instant },
    /// To be connected, with one that is on this device of the peer's.
    Joining { joined: Connecting<Q>, device: u8 },
}

/// A receiver's new queue pair, which is being made and connected.
#[derive(Debug)]
pub(super) struct Answering<Q> {
    pub(super) generation: u16,
    pub(super) joined: Connecting<(Q, RailAddress)>,
    /// The peer's, which it goes with.
    pub(super) theirs: QueuePairAddress,
}

impl<Q: Connect> Offering<Q> {
    /// Whether its offer has gone unanswered for so long that it may be lost.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        match self.step {
            Step::Offered { since, .. } => now.saturating_duration_since(since) >= ANSWER_TIMEOUT,
            Step::Making(_) | Step::Joining { .. } => false,
        }
    }

    /// It comes to nothing.
    pub(super) fn give_up(self) {
        if let Step::Offered { queue_pair, .. } = self.step {
            queue_pair.retire();
        }
    }
}

impl<D: Domain> Healer<D> {
    /// Keeps an event until it is taken; the newest stay.
    pub(super) fn add_event(&mut self, end: End, place: usize, event: RailEvent) {
        if self.events.len() == MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back((end, place, event));
    }

    pub(super) fn new(domains: &[D], places: usize, shape: Shape, options: Healing) -> Self {
        let cursors = domains.iter().map(Domain::event_cursor).collect();
        let care = || Care { attempts: Attempts::default(), offering: None, answering: None };
        Self {
            domains: domains.to_vec(),
            device_events: DeviceEvents::new(cursors),
            shape,
            options,
            places: (0..places).map(|_| care()).collect(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            silence: SilenceWatch::new(),
            limits: Limits::new(),
            patience: Default::default(),
        }
    }
}
