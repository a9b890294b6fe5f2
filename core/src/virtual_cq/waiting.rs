//! What waits from earlier polls: events that found no budget, requests that are flushed, and
//! targets that have to see a completion queue empty.

use super::cq::VirtualCq;
use super::deliver::{Budget, Touched};
use crate::completion::{CompletionTarget, Event, POLL_BATCH, Polled, TargetSet};
use crate::hardware::CompletionQueue;

impl<C: CompletionQueue, const CQS: usize, const ROUTES: usize> VirtualCq<C, CQS, ROUTES> {
    /// Goes on where a poll stopped whose sink panicked.
    #[cold]
    #[inline(never)]
    pub(super) fn resume<S: TargetSet + ?Sized>(
        &mut self,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        // Virtual queue pairs that took completions before the panic were not drained, and those
        // that take some below are not drained here.
        self.registry.enqueue_all();
        self.hand_over_backlog(budget);
        if let Some((device, completions)) = self.unrouted.take() {
            self.take(device, &completions, qps, &mut Touched::new(), budget);
        }
    }

    /// Hands over events that found no budget in earlier polls.
    // Outlined, like everything else that rarely hands events over, so that the sink is inlined
    // only in the loops.
    #[inline(never)]
    pub(super) fn hand_over_waiting<S: TargetSet + ?Sized>(
        &mut self,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
        polled: &mut Polled,
    ) {
        if budget.left == 0 {
            // No virtual queue pair has had a turn yet.
            return;
        }
        // In turn, so that with a small budget neither starves the other.
        self.rings_first = !self.rings_first;
        for rings in [self.rings_first, !self.rings_first] {
            if rings {
                // One that has more to report than the budget allows waits behind all others.
                for _ in 0..self.registry.queued() {
                    if budget.left == 0 {
                        break;
                    }
                    let Some(index) = self.registry.dequeue() else { break };
                    self.drain_apart(index, qps, budget);
                    self.empty_for(index, qps, budget, polled);
                }
            } else {
                self.hand_over_backlog(budget);
            }
        }
    }

    /// Empties the completion queue that a target has to see empty, as far as the backlog has room.
    /// Takes everything that the queue held, or as much as it can hold. Completions of other
    /// targets are delivered as usual.
    #[cold]
    #[inline(never)]
    fn empty_for<S: TargetSet + ?Sized>(
        &mut self,
        index: u16,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
        polled: &mut Polled,
    ) {
        let awaited = qps.target(index).and_then(|qp| qp.awaits_empty());
        let place = awaited.and_then(|id| self.cqs.iter().position(|cq| cq.id() == id));
        let Some((id, at)) = awaited.zip(place) else { return };
        // What passed straight through before comes before what does now.
        self.hand_over_backlog(budget);
        self.note_taken(at, index, qps);
        let mut touched = Touched::new();
        // After as many completions as the queue can hold, all that it held at the beginning has
        // been taken, whatever arrives meanwhile.
        let mut left = self.cqs[at].capacity() as usize;
        let is_empty = loop {
            let limit = POLL_BATCH.min(left).min(POLL_BATCH - self.backlog.len());
            if limit == 0 && left > 0 {
                break false;
            }
            let mut own = Polled::default();
            touched.clear();
            let taken = self.take_from(at, limit, qps, &mut touched, budget, &mut own);
            for other in touched.iter().filter(|other| **other != index) {
                self.drain_apart(*other, qps, budget);
            }
            // A poll that failed says nothing about what the queue holds.
            if own.error.is_some() {
                polled.error = polled.error.or(own.error);
                break false;
            }
            left -= taken;
            if taken < limit || left == 0 {
                break true;
            }
        };
        if !is_empty {
            self.note_taken(at, index, qps);
        } else if let Some(qp) = qps.target(index) {
            qp.note_empty(id);
        }
        // Not before: the target may ask its driver whether another of its queue pairs completes
        // nothing more, and completions may appear together with the answer that this pass has not
        // found.
        self.drain_apart(index, qps, budget);
    }

    /// Reports to a target how many completions a queue has given out. With busy neighbours and a
    /// small budget, the queue may never be seen empty.
    fn note_taken<S: TargetSet + ?Sized>(&mut self, at: usize, index: u16, qps: &mut S) {
        let (cq, taken) = (&self.cqs[at], self.taken[at]);
        if let Some(qp) = qps.target(index) {
            qp.note_taken(cq.id(), taken, cq.capacity());
        }
    }

    /// Hands over completions that passed through in earlier polls and found no budget. It runs
    /// before anything passes through in this poll, because that may be of the same queue pair.
    #[inline(never)]
    pub(super) fn hand_over_backlog(&mut self, budget: &mut Budget<impl FnMut(Event)>) {
        while budget.left > 0
            && let Some(event) = self.backlog.pop_front()
        {
            budget.give(event);
        }
    }

    /// Hands over the pass-through requests that a virtual queue pair flushes, behind all of its
    /// completions in the backlog. Completions of others do not count, because they may keep the
    /// backlog full forever. Returns whether the virtual queue pair has nothing left to do.
    #[cold]
    #[inline(never)]
    pub(super) fn hand_over_flushed<S: TargetSet + ?Sized>(
        &mut self,
        index: u16,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
    ) -> bool {
        let Some(qp) = qps.target(index) else { return true };
        let virtual_qp_num = qp.virtual_qp_num();
        let is_own =
            |event: &Event| matches!(event, Event::Completion(wc) if wc.qp_num == virtual_qp_num);
        // The backlog has completions of requests that were posted before those that are flushed.
        if self.backlog.iter().any(is_own) {
            return false;
        }
        while budget.left > 0
            && let Some(wc) = qp.report_flushed()
        {
            budget.give(Event::Completion(wc));
        }
        !qp.needs_poll()
    }
}
