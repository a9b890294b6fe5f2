//! The virtual queue pair as a target of completions.

use super::qp::VirtualQp;
use crate::completion::{
    CompletionTarget, DirectCompletions, PhysicalQp, Role, TargetSet, VirtualWc, sealed,
};
use crate::hardware::QueuePair;
use crate::verbs::{Completion, DeviceId, ImmOrder};

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> sealed::Sealed
    for VirtualQp<Q, RAILS, DEPTH, WRS>
{
}

#[allow(private_interfaces, reason = "sealed: the methods are for VirtualCq only")]
impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> CompletionTarget
    for VirtualQp<Q, RAILS, DEPTH, WRS>
{
    #[inline]
    fn virtual_qp_num(&self) -> u32 {
        VirtualQp::virtual_qp_num(self)
    }

    #[inline]
    fn imm_order(&self) -> ImmOrder {
        self.header.imm_order
    }

    fn for_each_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32)) {
        self.list_physical(each);
    }

    #[inline]
    fn complete(
        &mut self,
        device: DeviceId,
        role: Role,
        completions: &[Completion],
        direct: &mut DirectCompletions,
    ) -> usize {
        self.take_completions(device, role, completions, direct)
    }

    #[inline]
    fn is_only_rail(&self, device: DeviceId, qp_num: u32) -> bool {
        !self.is_multi() && self.rails[0].is_at(device, qp_num)
    }

    #[inline]
    fn count_passed(&mut self, completions: &[Completion], any_failed: bool) {
        self.rails[0].completions += completions.len() as u64;
        if any_failed {
            self.note_passed_failures(completions);
        }
    }

    #[inline]
    fn pump(&mut self) {
        self.pump_all();
    }

    // Always: it is called once for each report and once more, and out of line a third of its cost is the call.
    #[inline(always)]
    fn next_report(&mut self) -> Option<VirtualWc> {
        self.report()
    }

    fn next_flushed(&mut self) -> Option<VirtualWc> {
        self.report_flushed()
    }

    #[inline]
    fn wants_poll(&self) -> bool {
        self.has_something_to_do()
    }
}

/// A set of one, at index 0.
impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> TargetSet
    for VirtualQp<Q, RAILS, DEPTH, WRS>
{
    type Target = Self;

    #[inline]
    fn target(&mut self, index: u16) -> Option<&mut Self> {
        (index == 0).then_some(self)
    }
}
