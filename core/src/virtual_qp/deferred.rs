//! SENDs and atomics that have to wait: for what their order promises, or for a credit of rail 0.
//!
//! A deferred request has its place in the ring, which says what was posted before it, but the ring's
//! cursors pass it: it holds up neither dispatch nor notifies nor reports of other requests, but for
//! what their order promises. Deferred requests are posted to rail 0 in posting order, complete in that
//! order, and are reported when they complete. Until then their slots are kept.

use super::VirtualQp;
use super::config::PassThroughOrder;
use super::error::RailId;
use super::slot::{SendSlot, SlotState};
use crate::hardware::{QueuePair, Refusal};
use crate::in_flight::{Batch, Content};
use crate::tracker::WrTracker;
use crate::verbs::{Completion, SendFlags, WcStatus};
use crate::virtual_cq::{DirectCompletions, VirtualWc};

/// No request.
const NONE: u64 = u64::MAX;

/// Which requests of the ring are deferred.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deferred {
    /// The oldest that is not complete, [`NONE`] if all are.
    oldest: u64,
    /// The oldest that is not posted, [`NONE`] if all are.
    next: u64,
    /// Those not complete.
    incomplete: u32,
    /// Pass-through requests, complete or not, that the report cursor has still to pass.
    to_pass: u32,
}

impl Deferred {
    pub(super) const NONE: Self = Self { oldest: NONE, next: NONE, incomplete: 0, to_pass: 0 };

    /// Whether one waits to be posted.
    #[inline]
    pub(super) const fn is_waiting(&self) -> bool {
        self.next != NONE
    }

    /// The oldest that is not complete; `u64::MAX` if all are.
    #[inline]
    pub(super) const fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Those not complete, and pass-through requests that the report cursor has still to pass: what the
    /// ring counts in their place.
    pub(super) const fn count(&self) -> (u32, u32) {
        (self.incomplete, self.to_pass)
    }

    /// The report cursor passed one.
    pub(super) fn passed(&mut self) {
        self.to_pass -= 1;
    }

    fn add(&mut self, id: u64) {
        self.oldest = self.oldest.min(id);
        self.next = self.next.min(id);
        self.incomplete += 1;
        self.to_pass += 1;
    }
}

/// The first request after `id` that is deferred and not complete.
fn next_after<const RAILS: usize, const WRS: usize>(
    sends: &WrTracker<SendSlot<RAILS>, WRS>,
    id: u64,
) -> u64 {
    let later = (id + 1..).map_while(|id| sends.find(id).map(|slot| (id, slot)));
    let mut deferred = later.filter(|(_, slot)| slot.state.contains(SlotState::DEFERRED));
    deferred.next().map_or(NONE, |(id, _)| id)
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Takes note of the newest request, which was added as a deferred one.
    pub(super) fn note_deferred(&mut self, id: u64) {
        self.deferred.add(id);
        self.sends.keep_from(self.deferred.oldest);
        // With requests before it that wait for rails, the ring's cursor passes it in its turn.
        if self.sends.front_pending() == Some(id) {
            self.sends.pop_pending();
        }
    }

    /// Whether a notification of request `id` would overtake a pass-through request that was posted
    /// before it and promised to be in place.
    #[inline]
    pub(super) fn pass_through_ahead(&self, id: u64) -> bool {
        (self.passing > 0 || self.deferred.oldest < id)
            && self.config.pass_through == PassThroughOrder::Ordered
    }

    /// Posts deferred requests, oldest first, until one has to wait on.
    #[cold]
    pub(super) fn post_deferred(&mut self) {
        while !self.failed && self.deferred.is_waiting() {
            let id = self.deferred.next;
            if !self.may_post_deferred(id) {
                return;
            }
            let slot = self.sends.slot(id);
            let request = slot.pass_through();
            let batch = Batch::one(id, slot.local.length(), Content::Deferred, slot.opcode);
            let posted = self.rails[0].post_one(request, batch);
            if posted.map_or_else(|error| error.accepted > 0, |()| true) {
                self.deferred.next = next_after(&self.sends, id);
            }
            match posted.map_err(|error| error.refusal) {
                Ok(()) => {}
                Err(Refusal::QueueFull) => self.retry.insert(RailId::Data(0)),
                Err(Refusal::Driver(errno)) => {
                    let error = self.rails[0].refusal_error(errno, 0);
                    self.sends.slot(id).fail(error.status);
                    self.fail(error);
                }
            }
            self.update_ready(0);
        }
    }

    fn may_post_deferred(&self, id: u64) -> bool {
        let fenced = self.sends.find(id).is_some_and(|slot| slot.flags.contains(SendFlags::FENCE));
        let waits = fenced || self.config.pass_through == PassThroughOrder::Ordered;
        let first = self.passing == 0 && self.deferred.oldest == id;
        self.rail_0_has_room() && (first || !fenced) && (!waits || self.is_acknowledged_before(id))
    }

    /// Whether everything fragmented that was posted before request `id` is acknowledged, notifies
    /// included.
    pub(super) fn is_acknowledged_before(&self, id: u64) -> bool {
        let acknowledged = self.sends.front_in_flight().is_none_or(|front| front >= id)
            && self.sends.front_pending().is_none_or(|front| front >= id);
        acknowledged && (self.notify_idle() || !self.has_notify_before(id))
    }

    fn has_notify_before(&self, id: u64) -> bool {
        let first = self.sends.front_outstanding().unwrap_or(id);
        let mut earlier = (first..id).map_while(|id| self.sends.find(id));
        earlier.any(|slot| slot.state.contains(SlotState::NOTIFY_IN_FLIGHT))
    }

    /// A deferred request completed: it is reported at once, unless it succeeded and is unsignaled.
    pub(super) fn complete_deferred(
        &mut self,
        batch: &Batch,
        completion: &Completion,
        direct: &mut DirectCompletions,
    ) {
        let slot = self.sends.slot(batch.wr);
        slot.state.remove(SlotState::DEFERRED);
        let wr_id = slot.wr_id;
        if slot.flags.contains(SendFlags::SIGNALED) || !completion.status.is_success() {
            direct.push(self.passed_through(wr_id, batch, completion));
        }
        self.finish_deferred(batch.wr);
    }

    fn finish_deferred(&mut self, id: u64) {
        self.deferred.incomplete -= 1;
        if self.deferred.oldest == id {
            self.deferred.oldest = next_after(&self.sends, id);
            self.sends.keep_from(self.deferred.oldest);
        }
    }

    /// Whether deferred requests wait that will not be posted any more, and no pass-through request is
    /// in flight before them: their turn to be reported.
    #[inline]
    pub(crate) fn is_flushing(&self) -> bool {
        self.failed
            && self.deferred.is_waiting()
            && self.passing == 0
            && self.deferred.oldest == self.deferred.next
    }

    /// The next deferred request that will not be posted any more.
    pub(crate) fn next_flushed(&mut self) -> Option<VirtualWc> {
        if !self.is_flushing() {
            return None;
        }
        let id = self.deferred.next;
        self.deferred.next = next_after(&self.sends, id);
        let slot = self.sends.slot(id);
        slot.state.remove(SlotState::DEFERRED);
        slot.fail(WcStatus::WR_FLUSH_ERR);
        let wc = slot.report(self.config.virtual_qp_num);
        self.finish_deferred(id);
        Some(wc)
    }

    /// What must hold between the ring and the deferred requests.
    pub(super) fn deferred_invariants(&self) {
        let Deferred { oldest, next, incomplete, to_pass } = self.deferred;
        let is_deferred = |id: &u64| {
            self.sends.find(*id).is_some_and(|slot| slot.state.contains(SlotState::DEFERRED))
        };
        let passes = |slot: &&SendSlot<RAILS>| slot.state.contains(SlotState::PASS_THROUGH);
        let alive = self.sends.alive();
        assert_eq!(alive.clone().find(is_deferred).unwrap_or(NONE), oldest, "the oldest");
        assert_eq!(alive.clone().filter(is_deferred).count(), incomplete as usize);
        let unreported = self.sends.iter().filter(passes).count();
        assert_eq!(unreported, to_pass as usize, "pass-through requests in the ring");
        let in_flight = |id: u64| {
            let on_rail_0 = self.rails[0].sends.iter();
            on_rail_0.filter(|batch| batch.content == Content::Deferred).any(|batch| batch.wr == id)
        };
        for id in alive.filter(is_deferred) {
            assert_eq!(in_flight(id), id < next, "deferred requests are posted in order");
        }
    }
}
