//! Steps 4 and 5, once for each set of completions.
//!
//! Step 4: acknowledged requests move forward and their receivers are notified, waiting requests
//! are posted, and receives are posted again. First, drivers are offered the requests that they
//! refused, because the rest of a batch that a driver accepted in part must go to its rail before
//! anything else.
//!
//! Step 5: finished requests are reported in posting order, or ahead of their turn if their report
//! order is "when done". A request that is reported ahead of its turn is reported with its last
//! completion. It keeps its place in the ring until earlier requests are done and the ring's
//! cursors pass it.

use super::list::post_rest_of;
use super::parts::front_bytes;
use super::qp::VirtualQp;
use super::scheme::{Receiving, Refused, SchemeState};
use super::slot::{Received, RecvSlot, Recvs, SendSlot, SlotState};
use crate::completion::{DirectCompletions, VirtualWc};
use crate::hardware::QueuePair;
use crate::rail::{PhysicalRail, RailId, RailSet, RailState};
use crate::verbs::{SendFlags, WcOpcode, WcStatus};

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Performs the steps that the completions since the last call allow.
    #[inline]
    pub(super) fn pump_all(&mut self) {
        if !self.offers.sends.is_empty() {
            self.retry_refused();
        }
        if self.health.needs_recovery {
            self.recover();
        }
        self.acknowledge();
        if self.pass_through.is_waiting() {
            // Before fragments use up the credits of rail 0, the only rail for these requests.
            self.post_deferred();
        }
        if self.sends.front_pending().is_some() {
            self.dispatch_pending();
            // Requests that were cancelled, or that the ring's cursor passed, are complete now.
            self.acknowledge();
            if self.pass_through.is_waiting() {
                self.post_deferred();
            }
        }
        self.settle_receives();
        self.debug_invariants();
    }

    /// Moves past every request whose data is acknowledged, in posting order, and posts its notify.
    /// A notify therefore means that everything posted before it is in place, too.
    #[inline(always)]
    fn acknowledge(&mut self) {
        while let Some(id) = self.sends.front_in_flight() {
            let slot = self.sends.slot(id);
            // While a fence is awaited, a lost copy of a fragment may still be executed, so no
            // request counts as acknowledged (rails-that-fail.md, "What happens to requests").
            if slot.batches_in_flight > 0 || self.health.awaits_fence {
                return;
            }
            if !slot.wants_notify() {
                self.sends.pop_in_flight();
            } else if self.health.failed {
                // The receiver would read stale memory if it were notified of failed data, or of a
                // request behind it (reference.md, number 3).
                slot.state.insert(SlotState::CANCELLED);
                slot.state.remove(SlotState::WANTS_NOTIFY);
                self.sends.pop_in_flight();
            } else if self.pass_through.is_ahead_of(id) || !self.notify_from(id) {
                return;
            }
        }
    }

    /// [`acknowledge`](Self::acknowledge), outside a poll.
    #[cold]
    #[inline(never)]
    pub(super) fn acknowledge_now(&mut self) {
        self.acknowledge();
    }

    /// Posts notifies of acknowledged requests from `first` on. Returns whether anything changed.
    fn notify_from(&mut self, first: u64) -> bool {
        // Notifies behind an incomplete pass-through request wait for it ("Order" of `VirtualQp`).
        let requests = first..self.pass_through.notify_limit();
        let SchemeState::Spray(spray) = &mut self.scheme else { return false };
        match spray.post_notifies(&mut self.sends, requests, &mut self.offers) {
            Ok(posted) => posted,
            Err(Refused { request, error }) => {
                self.request_refused(request, error);
                self.health.failed
            }
        }
    }

    /// Completes the receives that arrivals allow, and posts receives again.
    #[inline]
    fn settle_receives(&mut self) {
        let (scheme, recvs, mut receiving) = self.receiving();
        let settled = match scheme {
            // With SPRAY, an arrival completes its receive: only those that wait are left.
            SchemeState::Spray(_) if recvs.front_pending().is_none() => Ok(()),
            SchemeState::Spray(spray) => spray.settle_receives(recvs, &mut receiving),
            SchemeState::Dqplb(dqplb) => dqplb.settle_receives(recvs, &mut receiving),
        };
        if let Err(error) = settled {
            self.rail_failed(error);
        }
        if self.health.failed {
            self.flush_receives();
        }
    }

    /// In the error state, reports receives that no queue pair holds as flushed. Receives posted to
    /// the notify queue pair come first, when that is flushed.
    #[cold]
    fn flush_receives(&mut self) {
        if self.scheme.notify().is_some_and(|notify| !notify.recvs.is_empty()) {
            return;
        }
        // Pending receives join those in flight, so that all leave in posting order.
        while self.recvs.front_pending().is_some() {
            self.recvs.pop_pending();
        }
        while let Some(id) = self.recvs.front_in_flight() {
            self.recvs.slot(id).received = Received::Failed(WcStatus::WR_FLUSH_ERR);
            self.recvs.pop_in_flight();
        }
    }

    /// Returns the scheme, and the state that it needs to post receives.
    #[inline]
    pub(super) fn receiving(
        &mut self,
    ) -> (&mut SchemeState<Q, RAILS, DEPTH>, &mut Recvs<WRS>, Receiving<'_, Q, DEPTH>) {
        let Self { scheme, recvs, rails, offers, data_receives, health, .. } = self;
        let serves_data = data_receives.used();
        (scheme, recvs, Receiving { rails, offers, serves_data, failed: health.failed })
    }

    /// Offers every driver the requests that it refused.
    #[cold]
    fn retry_refused(&mut self) {
        // A driver that refuses again puts its rail back into the set.
        let retry = core::mem::replace(&mut self.offers.sends, RailSet::EMPTY);
        for id in retry {
            // A failed queue pair takes nothing more, and after a failure nothing new may be sent.
            if self.health.failed || self.is_losing(id) {
                self.mark_end(id);
            } else if let Err(Refused { request, error }) = self.retry(id) {
                self.request_refused(request, error);
            }
            if let RailId::Data(rail) = id {
                self.update_availability(rail as usize);
            }
        }
    }

    fn retry(&mut self, id: RailId) -> Result<(), Refused> {
        match id {
            RailId::Data(rail) => self.retry_fragments(rail as usize),
            RailId::Notify => {
                let SchemeState::Spray(spray) = &mut self.scheme else { return Ok(()) };
                spray.retry_notifies(&mut self.sends, &mut self.offers)
            }
        }
    }

    /// Offers the rest of a batch of fragments to the driver that took its front.
    fn retry_fragments(&mut self, at: usize) -> Result<(), Refused> {
        let cut = self.cut();
        let rail = &mut self.rails[at];
        let Some((batch, index, tag)) = rail.sends.partial() else { return Ok(()) };
        let taken = post_rest_of(rail, &mut self.sends, &batch, index, tag, cut);
        // The batch is on its rail already; only how much of it the driver has changes.
        rail.sends.accepted(taken.count);
        rail.more_doorbells += u64::from(taken.count > 0);
        let Some(refusal) = taken.refusal else { return Ok(()) };
        self.offers.sends.insert(rail.id);
        let Some(errno) = refusal.errno() else { return Ok(()) };
        let offset = batch.offset + front_bytes(&self.sends, &batch, index + taken.count, cut);
        Err(Refused { request: batch.wr, error: rail.refusal_error(errno, offset) })
    }
}

/// Reports.
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

    /// Returns a report that is due only while `needs_recovery` is set: a request that is done and
    /// need not wait for its turn; with re-routing, a pass-through request, or a receive with a
    /// buffer.
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

    /// Returns the oldest request that is to be reported ahead of its turn and was not: it was
    /// taken back, or it is done, because the peer's count, or the failure of the virtual queue
    /// pair, completed it, and not a completion.
    #[cold]
    fn report_ahead(&mut self) -> Option<VirtualWc> {
        let id = self.next_taken_back().or_else(|| self.next_ahead())?;
        let Self { ahead, sends, .. } = self;
        Some(ahead.report(sends.slot(id)))
    }

    /// Returns whether a request is to be reported ahead of its turn, and was not.
    pub(super) fn has_ahead(&self) -> bool {
        self.next_taken_back().is_some() || self.next_ahead().is_some()
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

impl<const RAILS: usize> SendSlot<RAILS> {
    /// Its completion.
    #[inline]
    pub(super) fn report(&self, qp_num: u32) -> VirtualWc {
        VirtualWc {
            wr_id: self.wr_id,
            status: self.final_status(),
            opcode: self.opcode.completion(),
            qp_num,
            byte_len: self.local.length(),
            imm: None,
        }
    }

    /// Returns whether it is to be reported now, although it may not be its turn.
    pub(super) fn is_done_ahead(&self) -> bool {
        let is_open = self.state.contains(SlotState::WHEN_DONE)
            && !self.state.intersects(SlotState::REPORTED.union(SlotState::TAKEN_BACK))
            // SPRAY's WRITE_WITH_IMM has plain WRITEs as fragments. Its notify follows all earlier
            // requests, so its turn has come anyway.
            && self.fragment_opcode == self.opcode;
        // Fragments without a rail are in no batch, so `batches_in_flight` does not count them.
        let is_with_rails = self.unposted() == 0 || self.state.contains(SlotState::CANCELLED);
        // The success of an unsignaled request is not reported.
        let is_heard_of =
            self.flags.contains(SendFlags::SIGNALED) || self.final_status() != WcStatus::SUCCESS;
        is_open && is_with_rails && self.batches_in_flight == 0 && is_heard_of
    }
}

impl RecvSlot {
    /// Its completion.
    #[inline]
    pub(super) const fn report(&self, qp_num: u32) -> VirtualWc {
        let (status, imm) = match self.received {
            Received::NoImm => (WcStatus::SUCCESS, None),
            Received::Imm(imm) => (WcStatus::SUCCESS, Some(imm)),
            Received::Failed(status) => (status, None),
        };
        VirtualWc {
            wr_id: self.wr_id,
            status,
            opcode: WcOpcode::RECV_RDMA_WITH_IMM,
            qp_num,
            // The data went to the address that its sender chose. A receive does not show whether
            // it came with the notify, so that both reports are the same.
            byte_len: 0,
            imm,
        }
    }
}
