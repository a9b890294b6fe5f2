//! The thread's side of one handle.

use super::request::{Flushes, Kind, P2pError, Receives, Sends};
use crate::backend::Domain;
use crate::p2p::{CallError, NotNow, P2pMember};
use crate::progress::HANDLE_DEPTH;
use crate::progress::outcome::{Outcome, SubmitError};
use crate::progress::pending::Pending;
use crate::progress::replies::{Replies, Reporter, Slots, replies};
use crate::progress::set::{Port, TURN};
use crate::progress::shared::Driver;
use crate::progress::submit::{HandleMessage, KnownKeys, MessageConsumer, Submitter, submitter};
use std::collections::VecDeque;
use std::sync::Arc;

/// The thread's side of one handle.
#[derive(Debug)]
pub(super) struct P2pPort {
    /// The number of the member.
    pub(super) member: usize,
    sends: Desk<Sends>,
    receives: Desk<Receives>,
    flushes: Desk<Flushes>,
}

/// The handle's side: a lane for each kind.
pub(super) type Lanes = (LaneOf<Sends>, LaneOf<Receives>, LaneOf<Flushes>);

/// The handle's lane for a kind.
pub(super) type LaneOf<K> = Lane<<K as Kind>::Request, Result<<K as Kind>::Value, P2pError>>;

/// Makes both sides of a handle of `driver`.
pub(super) fn port(member: usize, driver: &Arc<Driver>) -> (Lanes, P2pPort) {
    let (send_lane, sends) = lane(driver);
    let (recv_lane, receives) = lane(driver);
    let (flush_lane, flushes) = lane(driver);
    ((send_lane, recv_lane, flush_lane), P2pPort { member, sends, receives, flushes })
}

/// Makes both sides for one kind of request.
fn lane<K: Kind>(driver: &Arc<Driver>) -> (LaneOf<K>, Desk<K>) {
    let (requests, consumer) = submitter();
    let (replies, reporter) = replies(driver);
    (Lane::new(requests, replies), Desk::new(consumer, reporter))
}

impl P2pPort {
    /// Starts requests, as far as the engine takes them. Receives come first, because peers may
    /// wait for them. Returns whether anything moved.
    pub(super) fn start<D: Domain>(&mut self, member: &mut P2pMember<D>) -> bool {
        let received = self.receives.start(member);
        let sent = self.sends.start(member);
        self.flushes.start(member) || received || sent
    }

    /// Reports requests that have ended. Returns whether there were any.
    pub(super) fn finish<D: Domain>(&mut self, member: &mut P2pMember<D>) -> bool {
        let received = self.receives.finish(member);
        let sent = self.sends.finish(member);
        self.flushes.finish(member) || received || sent
    }

    /// Whether the thread has requests that have not ended.
    pub(super) fn is_busy(&self) -> bool {
        self.sends.is_busy() || self.receives.is_busy() || self.flushes.is_busy()
    }

    /// Whether a message waits for the peer to offer a buffer.
    pub(super) fn waits_for_peer(&self) -> bool {
        self.sends.has_waiting()
    }
}

impl Port for P2pPort {
    fn has_news(&self) -> bool {
        let Self { sends, receives, flushes, .. } = self;
        sends.has_news() || receives.has_news() || flushes.has_news() || self.is_done()
    }

    fn has_sent(&self) -> bool {
        self.sends.is_idle() && self.flushes.is_idle()
    }

    fn is_drained(&self) -> bool {
        self.has_sent() && self.receives.is_idle()
    }

    fn is_done(&self) -> bool {
        self.sends.is_done() && self.receives.is_done() && self.flushes.is_done()
    }
}

/// The requests of a handle of one kind, from the ring until they end.
///
/// ```text
///     ring ──► waiting ──► under way ──► reported
///                 │                         ▲
///                 └──────── refused ────────┘
/// ```
#[derive(Debug)]
pub(super) struct Desk<K: Kind> {
    requests: MessageConsumer<K::Request>,
    keys: KnownKeys,
    /// Requests that the engine does not take now, oldest first: at most [`AHEAD`](Kind::AHEAD).
    waiting: VecDeque<K::Waiting>,
    started: Started<K>,
}

/// Requests that were started, and how they are reported.
#[derive(Debug)]
struct Started<K: Kind> {
    /// With their slots, oldest first. There are never more than slots.
    under_way: Vec<(u16, K::Handle)>,
    reporter: Reporter<Result<K::Value, P2pError>>,
}

impl<K: Kind> Desk<K> {
    pub(super) fn new(
        requests: MessageConsumer<K::Request>,
        reporter: Reporter<Result<K::Value, P2pError>>,
    ) -> Self {
        let started = Started { under_way: Vec::with_capacity(HANDLE_DEPTH), reporter };
        let waiting = VecDeque::with_capacity(K::AHEAD);
        Self { requests, keys: KnownKeys::new(), waiting, started }
    }

    /// Starts requests that waited, then new ones, as far as the engine takes them. Returns whether
    /// anything moved.
    pub(super) fn start<D: Domain>(&mut self, member: &mut P2pMember<D>) -> bool {
        let mut moved = self.start_waiting(member);
        for _ in 0..TURN {
            if self.waiting.len() == K::AHEAD {
                break;
            }
            let Ok(message) = self.requests.pop() else { break };
            moved = true;
            match message {
                HandleMessage::Keys { place, keys } => _ = self.keys.learn(place, keys),
                HandleMessage::Post(request) => self.take(member, request),
                HandleMessage::Cancel(slot) => self.cancel(member, slot),
            }
        }
        moved
    }

    /// Starts a request, or lets it wait if others wait already, or the engine does not take it
    /// now.
    fn take<D: Domain>(&mut self, member: &mut P2pMember<D>, request: K::Request) {
        let Self { keys, waiting, started, .. } = self;
        let request = K::wait(request, keys);
        if !waiting.is_empty() || started.try_start(member, &request, keys).is_err() {
            waiting.push_back(request);
        }
    }

    /// Takes the request in a slot back. A request that is refused goes on, and its outcome says how
    /// it ends.
    #[cold]
    fn cancel<D: Domain>(&mut self, member: &mut P2pMember<D>, slot: u16) {
        let Self { waiting, started, .. } = self;
        if let Some(at) = waiting.iter().position(|request| K::slot(request) == slot) {
            waiting.remove(at);
            started.reporter.report(slot, Err(P2pError::TakenBack));
        } else if let Some((_, handle)) = started.under_way.iter().find(|(its, _)| *its == slot) {
            _ = K::cancel(member, handle);
        }
    }

    /// Starts requests that wait, in order. A request passes those for whose tags the peer offers
    /// no buffer. Once a request was started, other buffers may be next, so the oldest request has
    /// its turn again.
    fn start_waiting<D: Domain>(&mut self, member: &mut P2pMember<D>) -> bool {
        let Self { keys, waiting, started, .. } = self;
        let before = waiting.len();
        let mut at = 0;
        while let Some(request) = waiting.get(at) {
            match started.try_start(member, request, keys) {
                Ok(()) => {
                    waiting.remove(at);
                    at = 0;
                }
                Err(NotNow::NoSuchTag) => at += 1,
                Err(_) => break,
            }
        }
        waiting.len() < before
    }

    /// Reports requests that have ended. Returns whether there were any.
    pub(super) fn finish<D: Domain>(&mut self, member: &mut P2pMember<D>) -> bool {
        self.started.finish(member)
    }

    /// Whether the ring holds a request that can be taken.
    pub(super) fn has_news(&self) -> bool {
        !self.requests.is_empty() && self.waiting.len() < K::AHEAD
    }

    /// Whether the thread has requests that have not ended.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.started.under_way.is_empty()
    }

    /// Whether a request waits to be started.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether no request is in the ring, waiting or under way.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty() && !self.is_busy()
    }

    /// Whether the handle was dropped and every request has ended.
    pub(super) fn is_done(&self) -> bool {
        // Closed first: then nothing can be pushed any more.
        self.requests.is_closed() && self.is_idle()
    }
}

impl<K: Kind> Started<K> {
    /// Starts a request, or reports that the engine refuses it.
    fn try_start<D: Domain>(
        &mut self,
        member: &mut P2pMember<D>,
        request: &K::Waiting,
        keys: &KnownKeys,
    ) -> Result<(), NotNow> {
        let slot = K::slot(request);
        match K::start(member, request, keys) {
            Ok(handle) => self.under_way.push((slot, handle)),
            Err(CallError::NotNow(not_now)) => return Err(not_now),
            Err(error) => self.reporter.report(slot, Err(error.into())),
        }
        Ok(())
    }

    /// Reports requests that have ended. Returns whether there were any.
    fn finish<D: Domain>(&mut self, member: &mut P2pMember<D>) -> bool {
        let Self { under_way, reporter } = self;
        let before = under_way.len();
        under_way.retain(|(slot, handle)| {
            let outcome = K::test(member, handle).transpose();
            if let Some(outcome) = outcome {
                reporter.report(*slot, outcome.map_err(P2pError::from));
            }
            outcome.is_none()
        });
        under_way.len() < before
    }
}

/// A handle's side of its requests of one kind.
#[derive(Debug)]
pub(super) struct Lane<R, O: Outcome> {
    pub(super) requests: Submitter<R>,
    slots: Slots<O>,
}

impl<R, O: Outcome<Name = ()>> Lane<R, O> {
    pub(super) fn new(requests: Submitter<R>, replies: Replies<O>) -> Self {
        Self { requests, slots: Slots::new(replies) }
    }

    /// What shows the outcomes of its requests.
    pub(super) const fn replies(&self) -> &Arc<Replies<O>> {
        &self.slots.replies
    }

    /// Hands over a request, which `request` makes for the slot in which it will be reported.
    pub(super) fn submit(
        &mut self,
        request: impl FnOnce(u16) -> R,
    ) -> Result<Pending<O>, SubmitError> {
        self.requests.submit(&mut self.slots, (), request)
    }
}
