//! Which pass-through requests are not complete.

use crate::virtual_qp::config::PassThroughOrder;

/// No request.
pub(super) const NONE: u64 = u64::MAX;

/// Which pass-through requests are not complete.
#[derive(Clone, Copy, Debug)]
pub(in crate::virtual_qp) struct PassThrough {
    pub(super) order: PassThroughOrder,
    /// Requests in flight that have no place in the ring.
    pub(super) bypassing: u32,
    /// The oldest deferred request that is not complete, [`NONE`] if all are.
    pub(super) oldest: u64,
    /// The oldest deferred request that is not posted, [`NONE`] if all are.
    pub(in crate::virtual_qp) next: u64,
    /// Deferred requests that are not complete.
    pub(super) incomplete: u32,
    /// Deferred requests, complete or not, that the report cursor has not passed.
    pub(super) to_pass: u32,
    /// With re-routing: the oldest deferred request that is not reported, [`NONE`] if all are. They
    /// are reported in order, whether a completion, the peer's count or the error state completes
    /// them.
    pub(super) unreported: u64,
    /// Requests that are complete and not reported.
    pub(super) complete: u32,
    /// Rail 0's next request at the moment when the fence that is waiting came to the front.
    fence_mark: Option<u64>,
}

impl PassThrough {
    pub(in crate::virtual_qp) const fn new(order: PassThroughOrder) -> Self {
        Self {
            order,
            bypassing: 0,
            oldest: NONE,
            next: NONE,
            incomplete: 0,
            to_pass: 0,
            unreported: NONE,
            complete: 0,
            fence_mark: None,
        }
    }

    /// Whether a deferred request waits to be posted.
    #[inline]
    pub(in crate::virtual_qp) const fn is_waiting(&self) -> bool {
        self.next != NONE
    }

    /// Returns the pass-through requests that are not complete, or wait to be reported.
    pub(in crate::virtual_qp) const fn incomplete(&self) -> usize {
        (self.incomplete + self.bypassing + self.complete) as usize
    }

    /// Returns whether a request is complete and not reported.
    pub(in crate::virtual_qp) const fn has_complete(&self) -> bool {
        self.complete > 0
    }

    /// Returns whether a deferred request, which is kept, was reported, with re-routing.
    pub(in crate::virtual_qp) const fn is_reported(&self, id: u64) -> bool {
        id < self.unreported
    }

    /// Returns the id from which on slots are kept.
    pub(super) fn keeps_from(&self) -> u64 {
        // A slot is needed until its request is complete, and with re-routing until it is reported.
        self.oldest.min(self.unreported)
    }

    /// Returns the deferred requests that the report cursor has not passed.
    pub(in crate::virtual_qp) const fn unpassed(&self) -> usize {
        self.to_pass as usize
    }

    /// Notes that the report cursor passed a deferred request.
    pub(in crate::virtual_qp) fn passed(&mut self) {
        self.to_pass -= 1;
    }

    /// Notes that `count` requests without a place in the ring completed.
    pub(in crate::virtual_qp) fn bypassed(&mut self, count: u32) {
        self.bypassing -= count;
    }

    /// Returns whether a notification of request `id` would overtake a pass-through request before
    /// it, in an order that forbids this.
    #[inline]
    pub(in crate::virtual_qp) fn is_ahead_of(&self, id: u64) -> bool {
        // What bypassed the ring has no id. It counts as earlier, which may make the notification
        // wait for a later request, but never lets it overtake an earlier one.
        (self.bypassing > 0 || self.oldest < id) && self.order == PassThroughOrder::Ordered
    }

    /// Returns whether no pass-through request is incomplete.
    pub(in crate::virtual_qp) const fn is_idle(&self) -> bool {
        self.bypassing == 0 && self.oldest == NONE
    }

    /// Returns the id from which on notifications wait for pass-through requests.
    pub(in crate::virtual_qp) const fn notify_limit(&self) -> u64 {
        let ordered = matches!(self.order, PassThroughOrder::Ordered);
        // A notify in front of the oldest deferred request tells of nothing that is not in place.
        if ordered { self.oldest } else { NONE }
    }

    /// Returns whether every pass-through request before `id`, which is fenced, is complete. `next`
    /// is rail 0's next request, `oldest` its oldest one that is not complete.
    pub(in crate::virtual_qp) fn passes_fence(&mut self, id: u64, next: u64, oldest: u64) -> bool {
        // Requests that bypass the ring while the fence waits have later numbers and do not count,
        // or a caller that goes on posting them would keep the fence waiting.
        let mark = *self.fence_mark.get_or_insert(next);
        oldest >= mark && self.oldest > id
    }

    /// Removes the mark of a fence that is passed, or whose request was taken back.
    pub(in crate::virtual_qp) fn forget_fence(&mut self) {
        self.fence_mark = None;
    }

    /// Notes that the newest request of the ring is deferred.
    pub(super) fn add(&mut self, id: u64, is_reported_in_order: bool) {
        if is_reported_in_order {
            self.unreported = self.unreported.min(id);
        }
        self.oldest = self.oldest.min(id);
        self.next = self.next.min(id);
        self.incomplete += 1;
        self.to_pass += 1;
    }
}
