//! The end of a queue pair of a connection: it is stopped, drained or lost.

use super::lane::{Lane, Purpose, blank};
use crate::hardware::QueuePair;
use crate::rail::PhysicalRail;
use crate::verbs::Opcode;

impl<Q: QueuePair, const DEPTH: usize> Lane<Q, DEPTH> {
    /// Stops posting to it, and moves it to the error state as soon as its driver allows that:
    /// draining asks again.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        // A refusal is not an error here: `drain` asks the driver again in every poll.
        let _ = self.enter_error();
    }

    /// Goes on draining it, and returns whether it is drained: it is in the error state, and
    /// everything posted to it has ended. With `receives` from a shared queue, it takes none of
    /// them any more either.
    pub(super) fn drain(&mut self, receives: bool) -> bool {
        // While the driver refuses, the queue pair still answers, and what is on its way may
        // arrive: that is no fence.
        if self.is_drained || !self.is_stopped || self.enter_error().is_some() {
            return self.is_drained;
        }
        let wants_marker = self.queue.unsignaled() > 0 && !self.queue.is_empty();
        if wants_marker && self.queue.credits() > 0 {
            // What has no completion ends with the next one that has. Refused, or without a credit,
            // which those before will give back, it is posted by a later poll.
            self.post_one(blank(Opcode::RdmaWrite), true, Purpose::Marker);
        }
        // An empty send queue proves nothing about receives of a shared queue. Only the driver
        // knows that the queue pair takes none of them any more.
        self.is_drained = self.queue.is_empty() && (!receives || self.takes_no_receive());
        self.is_drained
    }

    /// Takes note that its completion queue, which holds no more than `capacity`, has given out
    /// `taken` so far. When that is `capacity` more than when it was waited for first, all is taken
    /// that the queue held then, and nothing of this queue pair came after that.
    pub(super) fn note_taken(&mut self, taken: u64, capacity: u32) {
        let by_then = *self.taken_by_then.get_or_insert(taken + u64::from(capacity));
        self.is_seen_empty |= taken >= by_then;
    }

    /// Whether it takes no receive any more.
    fn takes_no_receive(&mut self) -> bool {
        self.health.is_gone || matches!(self.qp.last_wqe_reached(), Ok(true))
    }

    /// The queue pair is no more: what was in flight has ended.
    pub(super) fn lose(&mut self) {
        self.is_stopped = true;
        self.health.note_gone();
        // No completion of a destroyed queue pair is awaited, so its completion queue need not be
        // seen empty.
        self.is_seen_empty = true;
        self.queue.end_all();
    }

    /// Whether nothing has ended since the previous call although there is something in flight. If
    /// none of the requests has a completion, a request that has one is posted behind them, and the
    /// next call decides.
    pub(super) fn check_stalled(&mut self) -> bool {
        if !self.queue.is_empty() && !self.queue.expects_completion() && self.has_room(1) {
            self.post_one(blank(Opcode::RdmaWrite), true, Purpose::Marker);
        }
        let expects = self.queue.expects_completion();
        // Without a completion to come, the oldest request stays the same however fast the queue
        // pair is.
        let mark = expects.then_some(self.queue.oldest());
        let is_stalled = mark.is_some() && mark == self.stall_mark;
        self.stall_mark = mark;
        is_stalled
    }

    /// Whether its driver must be asked again to go on.
    pub(super) const fn needs_poll(&self) -> bool {
        self.is_stopped && !self.is_drained
    }
}
