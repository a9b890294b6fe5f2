//! The steps of a new queue pair, from its creation until it is in a rail's place.

use super::message::{RailName, ReplacementAddress};
use crate::backend::{Connect, Connecting, DeviceError, Port};
use crate::queue_pair::{Place, RailAddress};
use std::time::{Duration, Instant};

/// A new queue pair for one generation of a rail.
#[derive(Debug)]
pub(super) struct Next<R: RailName, Q> {
    pub(super) generation: u16,
    pub(super) step: Step<R, Q>,
}

/// How far a new queue pair is:
///
/// ```text
/// the end that offers    Making ── made, offered ──► Offered ── answered ──► Joining ── connected, reached ──► in place
/// the end that answers   Making ── made ───────────────────────────────────► Joining ── connected ──► in place, answered
/// ```
#[derive(Debug)]
pub(super) enum Step<R: RailName, Q> {
    /// It is being created, in INIT.
    Making(Making<R, Q>),
    /// It waits for the peer's queue pair.
    Offered(NewQueuePair<Q>),
    /// It is being connected, or waits until data can reach the peer.
    Joining(Joining<R, Q>),
}

/// A queue pair that is being created.
#[derive(Debug)]
pub(super) struct Making<R: RailName, Q> {
    pub(super) making: Connecting<(Q, Port)>,
    pub(super) place: Place,
    /// Where it is created if its place has no queue pair for it, the best place last.
    pub(super) others: Vec<Place>,
    /// The error of the first place, which is the best one.
    pub(super) first: Option<(Place, DeviceError)>,
    /// The peer's queue pair that it is the other end of. `None`: it will be offered.
    pub(super) answers: Option<ReplacementAddress<R>>,
}

/// A queue pair that is being connected with the peer's.
#[derive(Debug)]
pub(super) struct Joining<R: RailName, Q> {
    pub(super) connecting: Connecting<()>,
    pub(super) queue_pair: Q,
    pub(super) place: Place,
    pub(super) own: ReplacementAddress<R>,
    pub(super) peer: RailAddress,
    /// Number of the peer's queue pair, if it is answered once this one is in its place.
    pub(super) answers: Option<u32>,
    /// When it was found in RTS.
    pub(super) ready_at: Option<Instant>,
}

/// A queue pair in INIT, which no peer can reach yet.
#[derive(Debug)]
pub(super) struct NewQueuePair<Q> {
    pub(super) queue_pair: Q,
    pub(super) place: Place,
    pub(super) address: RailAddress,
}

impl<R: RailName, Q: Connect> Joining<R, Q> {
    /// Returns the result of connecting, once. Data has to reach the peer `within` this time from
    /// RTS on.
    ///
    /// Only the end that offered waits for that. Both ends post nothing to the rail before this end
    /// has put its queue pair in place, so requests use other rails instead of waiting for a
    /// connection that may not come. The end that answers cannot wait: the peer's queue pair makes
    /// and accepts no connection before it has the answer.
    pub(super) fn take_joined(
        &mut self,
        now: Instant,
        within: Duration,
    ) -> Option<Result<(), DeviceError>> {
        let since = match self.ready_at {
            Some(since) => since,
            None => match self.connecting.take()? {
                Ok(()) => *self.ready_at.insert(now),
                Err(error) => return Some(Err(error)),
            },
        };
        if self.answers.is_some() || self.queue_pair.is_connected() {
            return Some(Ok(()));
        }
        let is_over = now.saturating_duration_since(since) >= within;
        is_over.then_some(Err(DeviceError::NotReached { within }))
    }
}

impl<R: RailName, Q: Connect> Next<R, Q> {
    /// Destroys the queue pair, but not on this thread if it exists: that can take a driver
    /// seconds.
    pub(super) fn abandon(self) {
        let queue_pair = match self.step {
            Step::Offered(own) => Some(own.queue_pair),
            Step::Making(mut step) => step.making.take().and_then(Result::ok).map(|(made, _)| made),
            Step::Joining(step) => Some(step.queue_pair),
        };
        queue_pair.into_iter().for_each(Connect::retire);
    }
}
