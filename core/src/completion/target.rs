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
    fn list_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32));

    /// Takes completions from the front as far as they are this target's, and returns how many. The
    /// first one should be of the physical queue pair with this role; 0 if it is not, or if the engine
    /// did not post what completed. Completions that pass straight through go to `direct`, which has room
    /// for as many as there are completions.
    #[doc(hidden)]
    fn take_completions(
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
    fn pump_all(&mut self);

    /// Returns the next finished request.
    #[doc(hidden)]
    fn report(&mut self) -> Option<VirtualWc>;

    /// Returns the next request that passes straight through and will never be posted. Completions of
    /// requests posted before it went to `direct` of [`take_completions`](Self::take_completions), and are
    /// to be handed over first.
    #[doc(hidden)]
    fn report_flushed(&mut self) -> Option<VirtualWc> {
        None
    }

    /// Whether a poll has something to do here even without a completion: something to report, or
    /// something that a driver refused to be offered again.
    #[doc(hidden)]
    fn needs_poll(&self) -> bool;

    /// Returns a completion queue that this target has to see empty; none unless it [needs a
    /// poll](Self::needs_poll).
    #[doc(hidden)]
    fn awaits_empty(&self) -> Option<CqId> {
        None
    }

    /// Notes that a poll which began after this queue was asked for has taken everything that was in it.
    #[doc(hidden)]
    fn note_empty(&mut self, _cq: CqId) {}

    /// Notes that this queue has given out `taken` completions so far. It holds no more than `capacity`,
    /// and may never be seen empty while other targets are busy.
    #[doc(hidden)]
    fn note_taken(&mut self, _cq: CqId, _taken: u64, _capacity: u32) {}
}

/// The targets that a poll may deliver to, by the index under which they were attached.
///
/// A slice of equal virtual queue pairs gives static dispatch, as does a slice of `&mut` to them; a slice
/// of `&mut dyn CompletionTarget` mixes sizes and kinds; one virtual queue pair is a set of one, at index 0.
pub trait TargetSet {
    /// Their common type.
    type Target: CompletionTarget + ?Sized;

    /// The one at `index`, if it is still there.
    fn target(&mut self, index: u16) -> Option<&mut Self::Target>;
}

impl<T: CompletionTarget + ?Sized> TargetSet for [&mut T] {
    type Target = T;

    #[inline]
    fn target(&mut self, index: u16) -> Option<&mut T> {
        self.get_mut(usize::from(index)).map(|target| &mut **target)
    }
}
