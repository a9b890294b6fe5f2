//! Step 5: finished requests come out of the rings, in posting order.

use super::VirtualQp;
use super::slot::SlotState;
use crate::hardware::QueuePair;
use crate::verbs::{SendFlags, WcOpcode};
use crate::virtual_cq::VirtualWc;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Does what the completions since the last call allow: notifies, posts that waited, receives
    /// to be posted again. Once for a batch of completions, not for each.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if !self.retry.is_empty() {
            self.retry_refused();
        }
        self.acknowledge();
        if self.deferred.is_waiting() {
            // Before fragments take the credits of rail 0.
            self.post_deferred();
        }
        if self.sends.front_pending().is_some() {
            self.dispatch_pending();
            // Requests that were cancelled, or that the ring's cursor passes, are done with.
            self.acknowledge();
            if self.deferred.is_waiting() {
                self.post_deferred();
            }
        }
        self.settle_receives();
        self.debug_invariants();
    }

    /// The next finished request, sends and receives taking turns.
    #[inline]
    pub(crate) fn next_report(&mut self) -> Option<VirtualWc> {
        if self.recvs.front_outstanding().is_none() {
            return self.report_send();
        }
        self.recvs_first = !self.recvs_first;
        if self.recvs_first {
            self.report_recv()
        } else {
            self.report_send().or_else(|| self.report_recv())
        }
    }

    #[inline]
    fn report_send(&mut self) -> Option<VirtualWc> {
        while let Some(id) = self.sends.front_outstanding() {
            let slot = self.sends.slot(id);
            if slot.state.intersects(SlotState::NOTIFY_IN_FLIGHT.union(SlotState::PASS_THROUGH)) {
                if slot.state.contains(SlotState::NOTIFY_IN_FLIGHT) {
                    return None;
                }
                // Reported when it completes.
                self.deferred.passed();
                self.sends.pop_outstanding();
                continue;
            }
            let wc = slot.report(self.config.virtual_qp_num);
            // As in verbs, an unsignaled request is heard of only when it fails.
            let quiet = wc.status.is_success() && !slot.flags.contains(SendFlags::SIGNALED);
            self.sends.pop_outstanding();
            if !quiet {
                return Some(wc);
            }
        }
        None
    }

    #[inline]
    fn report_recv(&mut self) -> Option<VirtualWc> {
        let id = self.recvs.front_outstanding()?;
        let slot = self.recvs.slot(id);
        let wc = VirtualWc {
            wr_id: slot.wr_id,
            status: slot.status,
            opcode: WcOpcode::RECV_RDMA_WITH_IMM,
            qp_num: self.config.virtual_qp_num,
            byte_len: slot.byte_len,
            imm: slot.imm,
        };
        self.recvs.pop_outstanding();
        Some(wc)
    }

    /// Whether a poll has something to do here even without a completion: something to report, or
    /// something that a driver refused to be offered again.
    #[inline]
    pub(crate) fn wants_poll(&self) -> bool {
        let send_ready = || {
            let id = self.sends.front_outstanding();
            let slot = id.and_then(|id| self.sends.find(id));
            slot.is_some_and(|slot| !slot.state.contains(SlotState::NOTIFY_IN_FLIGHT))
        };
        !self.retry.is_empty()
            || self.recvs.front_outstanding().is_some()
            || send_ready()
            || (self.failed && self.sends.front_in_flight().is_some())
            || self.is_flushing()
            || !self.refill.is_empty()
    }
}
