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

    fn list_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32)) {
        VirtualQp::list_physical(self, each);
    }

    #[inline]
    fn take_completions(
        &mut self,
        device: DeviceId,
        role: Role,
        completions: &[Completion],
        direct: &mut DirectCompletions,
    ) -> usize {
        VirtualQp::take_completions(self, device, role, completions, direct)
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
    fn pump_all(&mut self) {
        VirtualQp::pump_all(self);
    }

    // Always: it is called once for each report and once more, and out of line a third of its cost is the call.
    #[inline(always)]
    fn report(&mut self) -> Option<VirtualWc> {
        VirtualQp::report(self)
    }

    fn report_flushed(&mut self) -> Option<VirtualWc> {
        VirtualQp::report_flushed(self)
    }

    #[inline]
    fn needs_poll(&self) -> bool {
        VirtualQp::needs_poll(self)
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

/// Equal virtual queue pairs, by their places in the slice.
impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> TargetSet
    for [VirtualQp<Q, RAILS, DEPTH, WRS>]
{
    type Target = VirtualQp<Q, RAILS, DEPTH, WRS>;

    #[inline]
    fn target(&mut self, index: u16) -> Option<&mut Self::Target> {
        self.get_mut(usize::from(index))
    }
}
