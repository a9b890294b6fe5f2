//! Step 5: reports finished requests in posting order, or ahead of their turn if their report order
//! is "when done".
//!
//! A request that is reported ahead of its turn is reported with its last completion. It keeps its
//! place in the ring until earlier requests are done and the ring's cursors pass it.

use super::qp::VirtualQp;
use super::slot::{SendSlot, SlotState};
use crate::completion::{DirectCompletions, VirtualWc};
use crate::hardware::QueuePair;
use crate::rail::RailState;
use crate::verbs::{SendFlags, WcStatus};

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Returns the next finished request. Sends and receives take turns.
    // Left out of line, it cost 5% of the instructions of 16 requests that are posted together.
    #[inline(always)]
    pub(super) fn report(&mut self) -> Option<VirtualWc> {
        if self.recvs.front_finished().is_some() {
            // In turn, so that neither ring starves the other when each poll has a small budget.
            self.recvs_first = !self.recvs_first;
            if self.recvs_first {
                return self.report_recv();
            }
        }
        let report = self.report_send();
        if report.is_some() {
            return report;
        }
        if self.recvs.front_finished().is_some() {
            return self.report_recv();
        }
        // One flag for all rare reports: a check of each cost up to 11% more instructions.
        if self.health.needs_recovery { self.report_rest() } else { None }
    }

    /// Returns a report that is due only while `needs_care` is set: a request that is done and need
    /// not wait for its turn; with re-routing, a pass-through request, or a receive with a buffer.
    #[cold]
    #[inline(never)]
    fn report_rest(&mut self) -> Option<VirtualWc> {
        let ahead = self.report_ahead();
        if ahead.is_some() {
            return ahead;
        }
        if !self.reroute.is_on {
            return None;
        }
        // Each flushed request can make the next one the oldest.
        while self.is_flushing() {
            let id = self.flush_deferred();
            self.deferred_is_complete(id, WcStatus::WR_FLUSH_ERR);
        }
        let complete = self.report_complete();
        if complete.is_some() { complete } else { self.report_data_receive() }
    }

    /// With re-routing: returns the oldest receive with a buffer, if it is complete or, in the
    /// error state, if no queue pair holds it.
    fn report_data_receive(&mut self) -> Option<VirtualWc> {
        // While a queue pair holds a receive, the NIC may still write to its buffer.
        let flushed = self.health.failed && self.rails[0].recvs.is_empty();
        self.data_receives.report(self.header.virtual_qp_num, flushed)
    }

    fn has_data_report(&self) -> bool {
        let flushed = self.health.failed && self.rails[0].recvs.is_empty();
        self.data_receives.has_report(flushed)
    }

    /// Without re-routing: returns the next deferred request that will not be posted any more.
    /// (Those that complete are reported at once.)
    #[cold]
    pub(super) fn report_flushed(&mut self) -> Option<VirtualWc> {
        if self.reroute.is_on || !self.is_flushing() {
            return None;
        }
        let id = self.flush_deferred();
        let wc = self.sends.slot(id).report(self.header.virtual_qp_num);
        self.finish_deferred(id);
        Some(wc)
    }

    #[inline]
    fn report_send(&mut self) -> Option<VirtualWc> {
        while let Some(id) = self.sends.front_finished() {
            let slot = self.sends.slot(id);
            const NOT_NOW: SlotState = SlotState::WANTS_NOTIFY
                .union(SlotState::PASS_THROUGH)
                .union(SlotState::REPORTED)
                .union(SlotState::PART);
            // One test of four states leaves one branch for most requests.
            if slot.state.intersects(NOT_NOW) {
                if slot.wants_notify() {
                    return None;
                }
                self.pass_over(id);
                continue;
            }
            let wc = slot.report(self.header.virtual_qp_num);
            // As in verbs, an unsignaled request is reported only if it fails.
            let unsignaled = !slot.flags.contains(SendFlags::SIGNALED);
            self.sends.pop_finished();
            if !(unsignaled && wc.status.is_success()) {
                return Some(wc);
            }
        }
        None
    }

    /// Passes a finished request that has no report here: a pass-through request, which is reported
    /// when it completes, a request that was reported ahead of its turn, or a buffer of a list.
    // Out of line: in line it kept each report in memory. A request of one fragment took 396.5
    // instructions in place of 392.2.
    #[cold]
    #[inline(never)]
    fn pass_over(&mut self, id: u64) {
        let state = self.sends.slot(id).state;
        if state.contains(SlotState::REPORTED) {
            self.ahead.passed();
        } else if state.contains(SlotState::PART) {
            self.parts -= 1;
        } else {
            self.pass_through.passed();
        }
        self.sends.pop_finished();
    }

    #[inline]
    fn report_recv(&mut self) -> Option<VirtualWc> {
        let id = self.recvs.front_finished()?;
        let wc = self.recvs.slot(id).report(self.header.virtual_qp_num);
        self.recvs.pop_finished();
        Some(wc)
    }

    /// Returns whether something is to be reported or done that needs no completion.
    #[cold]
    fn has_rest(&self) -> bool {
        // Each of these is due without a further completion: an owner that waits for one would wait
        // forever.
        (self.health.failed && (self.has_cancelled_front() || self.has_receives_to_flush()))
            || self.is_flushing()
            || self.pass_through.has_complete()
            || self.has_data_report()
            || self.has_ahead()
            || (self.reroute.is_on && !self.health.failed && self.has_rail_to_settle())
    }

    /// In the error state: returns whether notification receives wait that no queue pair holds.
    fn has_receives_to_flush(&self) -> bool {
        let waits = self.recvs.front_pending().is_some() || self.recvs.front_in_flight().is_some();
        waits && self.scheme.notify().is_none_or(|notify| notify.recvs.is_empty())
    }

    /// Returns whether a failed rail has completed everything, or its driver must be asked again to
    /// stop its queue pair.
    fn has_rail_to_settle(&self) -> bool {
        self.all_rails().any(|rail| {
            let is_complete = rail.sends.is_empty() && rail.recvs.is_empty();
            rail.health.lifecycle.state() == RailState::Draining
                && (!rail.health.is_silent || is_complete)
        })
    }

    /// Returns whether the oldest request in flight waits for no completion.
    fn has_cancelled_front(&self) -> bool {
        let front = self.sends.front_in_flight().and_then(|id| self.sends.find(id));
        front.is_some_and(|slot| slot.batches_in_flight == 0)
    }

    /// Returns whether a poll has something to do here even without a completion.
    #[inline]
    pub(super) fn needs_poll(&self) -> bool {
        let send_finished = || {
            let id = self.sends.front_finished();
            let slot = id.and_then(|id| self.sends.find(id));
            slot.is_some_and(|slot| !slot.wants_notify())
        };
        self.offers.any()
            || self.recvs.front_finished().is_some()
            || send_finished()
            || (self.health.needs_recovery && self.has_rest())
    }

    /// Handles a retired batch of fragments. Reports the request if it is done and need not wait
    /// for its turn.
    #[cold]
    #[inline(never)]
    pub(super) fn batch_retired(&mut self, id: u64, direct: &mut DirectCompletions) {
        let Self { ahead, sends, health, .. } = self;
        let slot = sends.slot(id);
        // Until the fence, a lost copy of a fragment may still be executed, and its owner must not
        // get the buffer back (rails-that-fail.md, "The problem: a late write").
        if slot.is_done_ahead() && !health.awaits_fence {
            direct.push(ahead.report(slot));
        }
    }

    /// Returns the oldest request that is to be reported ahead of its turn and was not, because the
    /// peer's count, or the failure of the virtual queue pair, completed it, and not a completion.
    #[cold]
    fn report_ahead(&mut self) -> Option<VirtualWc> {
        let id = self.next_ahead()?;
        let Self { ahead, sends, .. } = self;
        Some(ahead.report(sends.slot(id)))
    }

    /// Returns whether a request is to be reported ahead of its turn, and was not.
    pub(super) fn has_ahead(&self) -> bool {
        self.next_ahead().is_some()
    }

    fn next_ahead(&self) -> Option<u64> {
        // See `batch_retired`.
        if self.health.awaits_fence {
            return None;
        }
        let is_due = |id: &u64| self.sends.find(*id).is_some_and(SendSlot::is_done_ahead);
        self.sends.posted_ids().find(is_due)
    }

    /// Checks what must hold between the ring and the count of requests reported ahead of their
    /// turn.
    pub(super) fn ahead_invariants(&self) {
        let reported = self.sends.iter().filter(|slot| slot.state.contains(SlotState::REPORTED));
        assert_eq!(reported.count(), self.ahead.count(), "reported, and still to be passed");
        assert!(self.health.needs_recovery || !self.has_ahead(), "what is done is reported");
    }
}
