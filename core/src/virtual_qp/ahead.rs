//! Requests that are reported when they are done, ahead of their turn.
//!
//! Such a request is handed out with the completion that makes it so. It keeps its place in the ring until
//! those before it are done: the ring's cursors pass it, and nothing else changes.

use super::config::Config;
use super::qp::VirtualQp;
use super::slot::{SendSlot, SlotState};
use crate::completion::{DirectCompletions, VirtualWc};
use crate::hardware::QueuePair;
use crate::verbs::{ReportOrder, SendFlags, WcStatus};

/// The requests that were reported, and whose turn is still to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    count: u32,
    virtual_qp_num: u32,
    is_used: bool,
}

impl Ahead {
    pub(super) const fn new(config: &Config) -> Self {
        let is_used = matches!(config.report_order, ReportOrder::WhenDone);
        Self { count: 0, virtual_qp_num: config.virtual_qp_num, is_used }
    }

    /// Whether any request has been asked to be reported when it is done.
    #[inline]
    pub(super) const fn is_used(&self) -> bool {
        self.is_used
    }

    /// A request that is being posted has an order of its own.
    #[cold]
    pub(super) fn choose<const RAILS: usize>(
        &mut self,
        slot: &mut SendSlot<RAILS>,
        order: ReportOrder,
    ) {
        slot.state = SlotState::reported(order);
        self.is_used |= order == ReportOrder::WhenDone;
    }

    /// How many there are.
    pub(super) const fn count(&self) -> usize {
        self.count as usize
    }

    /// The report cursor passed one.
    pub(super) fn passed(&mut self) {
        self.count -= 1;
    }

    fn report<const RAILS: usize>(&mut self, slot: &mut SendSlot<RAILS>) -> VirtualWc {
        slot.state.insert(SlotState::REPORTED);
        self.count += 1;
        slot.report(self.virtual_qp_num)
    }
}

impl<const RAILS: usize> SendSlot<RAILS> {
    /// Whether it is to be reported now, though it may not be its turn. One that needs a notify has no turn to
    /// wait for: everything before it is done. The success of an unsignaled one is not reported.
    fn is_done_ahead(&self) -> bool {
        let is_open = self.state.contains(SlotState::WHEN_DONE)
            && !self.state.contains(SlotState::REPORTED)
            && self.fragment_opcode == self.opcode;
        let is_with_rails = self.unposted() == 0 || self.state.contains(SlotState::CANCELLED);
        let is_heard_of =
            self.flags.contains(SendFlags::SIGNALED) || self.final_status() != WcStatus::SUCCESS;
        is_open && is_with_rails && self.batches_in_flight == 0 && is_heard_of
    }
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// A batch of a request's fragments is retired. Reports the request, if it is done and need not wait for its
    /// turn.
    #[cold]
    #[inline(never)]
    pub(super) fn batch_retired(&mut self, id: u64, direct: &mut DirectCompletions) {
        let Self { ahead, sends, reroute, .. } = self;
        let slot = sends.slot(id);
        if slot.is_done_ahead() && !reroute.awaits_fence {
            direct.push(ahead.report(slot));
        }
    }

    /// The oldest request that is to be reported ahead of its turn and was not, since what made it so was no
    /// completion: the peer's word of what arrived, or the end of all.
    #[cold]
    pub(super) fn report_ahead(&mut self) -> Option<VirtualWc> {
        let id = self.next_ahead()?;
        let Self { ahead, sends, .. } = self;
        Some(ahead.report(sends.slot(id)))
    }

    /// Whether there is such a request.
    pub(super) fn has_ahead(&self) -> bool {
        self.next_ahead().is_some()
    }

    fn next_ahead(&self) -> Option<u64> {
        if self.reroute.awaits_fence {
            return None;
        }
        let is_due = |id: &u64| self.sends.find(*id).is_some_and(SendSlot::is_done_ahead);
        self.sends.posted_ids().find(is_due)
    }

    /// What must hold between the ring and what is counted here.
    pub(super) fn ahead_invariants(&self) {
        let reported = self.sends.iter().filter(|slot| slot.state.contains(SlotState::REPORTED));
        assert_eq!(reported.count(), self.ahead.count(), "reported, and still to be passed");
        assert!(self.health.needs_care || !self.has_ahead(), "what is done is reported");
    }
}
