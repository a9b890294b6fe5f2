//! What a completion queue asks of the virtual queue pairs that it is handed.

use super::{POLL_BATCH, VirtualWc};
use crate::hardware::QueuePair;
use crate::routing::Role;
use crate::verbs::{Completion, DeviceId, ImmOrder};
use crate::virtual_qp::{PhysicalQp, VirtualQp};
use arrayvec::ArrayVec;

/// Completions that pass straight through, at most one for each that was polled.
pub(crate) type DirectCompletions = ArrayVec<VirtualWc, POLL_BATCH>;

mod sealed {
    pub trait Sealed {}
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> sealed::Sealed
    for VirtualQp<Q, RAILS, DEPTH, WRS>
{
}

/// A virtual queue pair of any size, as an object. Only [`VirtualQp`] implements it.
#[allow(private_interfaces, reason = "sealed: the methods are for VirtualCq only")]
pub trait CompletionTarget: sealed::Sealed {
    /// The number of the virtual queue pair.
    fn virtual_qp_num(&self) -> u32;
    #[doc(hidden)]
    fn imm_order(&self) -> ImmOrder;
    #[doc(hidden)]
    fn for_each_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32));
    #[doc(hidden)]
    fn complete(
        &mut self,
        device: DeviceId,
        role: Role,
        completions: &[Completion],
        direct: &mut DirectCompletions,
    ) -> usize;
    #[doc(hidden)]
    fn is_only_rail(&self, device: DeviceId, qp_num: u32) -> bool;
    #[doc(hidden)]
    fn note_single(&mut self, completions: &[Completion], any_failed: bool);
    #[doc(hidden)]
    fn settle(&mut self);
    #[doc(hidden)]
    fn next_report(&mut self) -> Option<VirtualWc>;
    #[doc(hidden)]
    fn is_flushing(&self) -> bool;
    #[doc(hidden)]
    fn next_flushed(&mut self) -> Option<VirtualWc>;
    #[doc(hidden)]
    fn wants_poll(&self) -> bool;
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
        self.config().imm_order
    }

    fn for_each_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32)) {
        VirtualQp::for_each_physical(self, each);
    }

    #[inline]
    fn complete(
        &mut self,
        device: DeviceId,
        role: Role,
        completions: &[Completion],
        direct: &mut DirectCompletions,
    ) -> usize {
        VirtualQp::complete(self, device, role, completions, direct)
    }

    #[inline]
    fn is_only_rail(&self, device: DeviceId, qp_num: u32) -> bool {
        VirtualQp::is_only_rail(self, device, qp_num)
    }

    #[inline]
    fn note_single(&mut self, completions: &[Completion], any_failed: bool) {
        VirtualQp::note_single(self, completions, any_failed);
    }

    #[inline]
    fn settle(&mut self) {
        VirtualQp::settle(self);
    }

    #[inline]
    fn next_report(&mut self) -> Option<VirtualWc> {
        VirtualQp::next_report(self)
    }

    #[inline]
    fn is_flushing(&self) -> bool {
        VirtualQp::is_flushing(self)
    }

    fn next_flushed(&mut self) -> Option<VirtualWc> {
        VirtualQp::next_flushed(self)
    }

    #[inline]
    fn wants_poll(&self) -> bool {
        VirtualQp::wants_poll(self)
    }
}

/// The virtual queue pairs that a poll may deliver to, by the index under which they were
/// attached.
///
/// A slice of equal ones gives static dispatch; a slice of `&mut dyn CompletionTarget` mixes
/// sizes.
pub trait QpSet {
    /// Their common type.
    type Qp: CompletionTarget + ?Sized;

    /// The one at `index`, if it is still there.
    fn qp(&mut self, index: u16) -> Option<&mut Self::Qp>;
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> QpSet
    for [VirtualQp<Q, RAILS, DEPTH, WRS>]
{
    type Qp = VirtualQp<Q, RAILS, DEPTH, WRS>;

    #[inline]
    fn qp(&mut self, index: u16) -> Option<&mut Self::Qp> {
        self.get_mut(index as usize)
    }
}

impl<'a> QpSet for [&mut (dyn CompletionTarget + 'a)] {
    type Qp = dyn CompletionTarget + 'a;

    #[inline]
    fn qp(&mut self, index: u16) -> Option<&mut Self::Qp> {
        self.get_mut(index as usize).map(|qp| &mut **qp)
    }
}

/// A set of one, at index 0.
impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> QpSet
    for VirtualQp<Q, RAILS, DEPTH, WRS>
{
    type Qp = Self;

    #[inline]
    fn qp(&mut self, index: u16) -> Option<&mut Self> {
        (index == 0).then_some(self)
    }
}
