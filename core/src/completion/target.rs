//! What a virtual completion queue asks of the targets that it is handed.

use super::{POLL_BATCH, VirtualWc};
use crate::hardware::{CqId, QueuePair};
use crate::verbs::{Completion, DeviceId, ImmOrder};
use arrayvec::ArrayVec;

/// Completions that pass straight through, at most one for each that was polled.
pub(crate) type DirectCompletions = ArrayVec<VirtualWc, POLL_BATCH>;

/// What a physical queue pair is to its virtual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The only rail: completions pass straight through.
    Single,
    /// One of many rails, by number.
    Rail(u8),
    /// SPRAY's notify queue pair.
    Notify,
}

/// The part of [`QueuePair`] that identifies, as an object.
pub(crate) trait PhysicalQp {
    fn qp_num(&self) -> u32;
    fn device(&self) -> DeviceId;
    fn cq(&self) -> CqId;
}

impl<Q: QueuePair> PhysicalQp for Q {
    fn qp_num(&self) -> u32 {
        QueuePair::qp_num(self)
    }

    fn device(&self) -> DeviceId {
        QueuePair::device(self)
    }

    fn cq(&self) -> CqId {
        QueuePair::cq(self)
    }
}

pub(crate) mod sealed {
    /// Completion targets are the engine's own types: the ownership of buffers rests on them.
    pub trait Sealed {}
}

/// A virtual queue pair of any size, as an object.
///
/// Only types of this crate implement it.
#[allow(private_interfaces, reason = "sealed: the methods are for VirtualCq only")]
pub trait CompletionTarget: sealed::Sealed {
    /// The number of the virtual queue pair.
    fn virtual_qp_num(&self) -> u32;

    /// In which order immediates that pass straight through are decoded.
    #[doc(hidden)]
    fn imm_order(&self) -> ImmOrder;

    /// Calls `each` for every physical queue pair with its role and the completion queue entries
    /// that it can need.
    #[doc(hidden)]
    fn for_each_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32));

    /// Takes completions from the front as far as they are this target's, and returns how many. The
    /// first one should be of the physical queue pair with this role; 0 if it is not, or if the engine
    /// did not post what completed. What passes straight through goes to `direct`, which has room for
    /// as many as there are completions.
    #[doc(hidden)]
    fn complete(
        &mut self,
        device: DeviceId,
        role: Role,
        completions: &[Completion],
        direct: &mut DirectCompletions,
    ) -> usize;

    /// Whether this queue pair of this device is its only rail.
    #[doc(hidden)]
    fn is_only_rail(&self, device: DeviceId, qp_num: u32) -> bool;

    /// Counts completions of the only rail, which passed straight through.
    #[doc(hidden)]
    fn count_passed(&mut self, completions: &[Completion], any_failed: bool);

    /// Does what the completions since the last call allow. Once for a batch of completions, not for
    /// each.
    #[doc(hidden)]
    fn pump(&mut self);

    /// The next finished request.
    #[doc(hidden)]
    fn next_report(&mut self) -> Option<VirtualWc>;

    /// The next request that passes straight through and will never be posted. Completions of those posted before it
    /// went to [`complete`](Self::complete)'s `direct`, and are to be handed over first.
    #[doc(hidden)]
    fn next_flushed(&mut self) -> Option<VirtualWc> {
        None
    }

    /// Whether a poll has something to do here even without a completion: something to report, or
    /// something that a driver refused to be offered again.
    #[doc(hidden)]
    fn wants_poll(&self) -> bool;

    /// A completion queue that is to be seen empty, of a target that wants a poll.
    #[doc(hidden)]
    fn awaits_empty(&self) -> Option<CqId> {
        None
    }

    /// A poll that began after this queue was asked for has taken everything that was in it.
    #[doc(hidden)]
    fn note_empty(&mut self, _cq: CqId) {}

    /// This queue, which holds no more than `capacity` completions and is never seen empty while others are busy, has
    /// given out `taken` so far.
    #[doc(hidden)]
    fn note_taken(&mut self, _cq: CqId, _taken: u64, _capacity: u32) {}
}

impl<T: CompletionTarget + ?Sized> sealed::Sealed for &mut T {}

#[allow(private_interfaces, reason = "sealed: the methods are for VirtualCq only")]
impl<T: CompletionTarget + ?Sized> CompletionTarget for &mut T {
    #[inline]
    fn virtual_qp_num(&self) -> u32 {
        (**self).virtual_qp_num()
    }

    #[inline]
    fn imm_order(&self) -> ImmOrder {
        (**self).imm_order()
    }

    fn for_each_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32)) {
        (**self).for_each_physical(each);
    }

    #[inline]
    fn complete(
        &mut self,
        device: DeviceId,
        role: Role,
        completions: &[Completion],
        direct: &mut DirectCompletions,
    ) -> usize {
        (**self).complete(device, role, completions, direct)
    }

    #[inline]
    fn is_only_rail(&self, device: DeviceId, qp_num: u32) -> bool {
        (**self).is_only_rail(device, qp_num)
    }

    #[inline]
    fn count_passed(&mut self, completions: &[Completion], any_failed: bool) {
        (**self).count_passed(completions, any_failed);
    }

    #[inline]
    fn pump(&mut self) {
        (**self).pump();
    }

    #[inline]
    fn next_report(&mut self) -> Option<VirtualWc> {
        (**self).next_report()
    }

    #[inline]
    fn next_flushed(&mut self) -> Option<VirtualWc> {
        (**self).next_flushed()
    }

    #[inline]
    fn wants_poll(&self) -> bool {
        (**self).wants_poll()
    }

    #[inline]
    fn awaits_empty(&self) -> Option<CqId> {
        (**self).awaits_empty()
    }

    #[inline]
    fn note_empty(&mut self, cq: CqId) {
        (**self).note_empty(cq);
    }

    #[inline]
    fn note_taken(&mut self, cq: CqId, taken: u64, capacity: u32) {
        (**self).note_taken(cq, taken, capacity);
    }
}

/// The targets that a poll may deliver to, by the index under which they were attached.
///
/// A slice of equal virtual queue pairs gives static dispatch; a slice of `&mut dyn CompletionTarget`
/// mixes sizes and kinds; one virtual queue pair is a set of one, at index 0.
pub trait TargetSet {
    /// Their common type.
    type Target: CompletionTarget + ?Sized;

    /// The one at `index`, if it is still there.
    fn target(&mut self, index: u16) -> Option<&mut Self::Target>;
}

impl<T: CompletionTarget> TargetSet for [T] {
    type Target = T;

    #[inline]
    fn target(&mut self, index: u16) -> Option<&mut T> {
        self.get_mut(index as usize)
    }
}
