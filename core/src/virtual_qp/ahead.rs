//! Requests that are reported when they are done, ahead of their turn: which those are, and how many.

use super::config::Config;
use super::slot::{SendSlot, SlotState};
use crate::completion::VirtualWc;
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
        slot.state.remove(SlotState::WHEN_DONE);
        slot.state.insert(SlotState::reported(order));
        self.is_used |= order == ReportOrder::WhenDone;
    }

    /// A request to be reported when it is done was taken back; there are others, or there are none.
    pub(super) fn note_others(&mut self, any: bool) {
        self.is_used = any;
    }

    /// How many there are.
    pub(super) const fn count(&self) -> usize {
        self.count as usize
    }

    /// The report cursor passed one.
    pub(super) fn passed(&mut self) {
        self.count -= 1;
    }

    pub(super) fn report<const RAILS: usize>(&mut self, slot: &mut SendSlot<RAILS>) -> VirtualWc {
        slot.state.insert(SlotState::REPORTED);
        self.count += 1;
        slot.report(self.virtual_qp_num)
    }
}

impl<const RAILS: usize> SendSlot<RAILS> {
    /// Whether it is to be reported now, though it may not be its turn. One that needs a notify has no turn to
    /// wait for: everything before it is done. The success of an unsignaled one is not reported.
    pub(super) fn is_done_ahead(&self) -> bool {
        let is_open = self.state.contains(SlotState::WHEN_DONE)
            && !self.state.contains(SlotState::REPORTED)
            && self.fragment_opcode == self.opcode;
        let is_with_rails = self.unposted() == 0 || self.state.contains(SlotState::CANCELLED);
        let is_heard_of =
            self.flags.contains(SendFlags::SIGNALED) || self.final_status() != WcStatus::SUCCESS;
        is_open && is_with_rails && self.batches_in_flight == 0 && is_heard_of
    }
}
