//! Step 4, once for each set of completions: acknowledged requests move forward and their receivers
//! are notified, waiting requests are posted, and receives are posted again. First, drivers are
//! offered the requests that they refused, because the rest of a batch that a driver accepted in
//! part must go to its rail before anything else.

use super::list::post_rest_of;
use super::parts::front_bytes;
use super::qp::VirtualQp;
use super::scheme::{Receiving, Refused, SchemeState};
use super::slot::{Recvs, SlotState};
use crate::hardware::QueuePair;
use crate::rail::{PhysicalRail, RailId, RailSet};
use crate::verbs::WcStatus;

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
            self.recvs.slot(id).status = WcStatus::WR_FLUSH_ERR;
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
