//! What comes out of a virtual completion queue, and what it asks of the targets that completions
//! are for.
//!
//! A poll hands out [`Event`]s; a virtual queue pair, or any other consumer of physical
//! completions, is a [`CompletionTarget`]. Both sides of that boundary know this module, and
//! neither knows the other.

use crate::hardware::{CqError, CqId, QueuePair};
use crate::verbs::{Completion, DeviceId, ImmOrder, WcOpcode, WcStatus};
use arrayvec::ArrayVec;

/// Completions taken from a physical queue at a time, as in the reference implementation.
pub const POLL_BATCH: usize = 32;

/// The completion of a request that was posted to a virtual queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualWc {
    /// The `wr_id` of the request, as posted.
    pub wr_id: u64,
    /// Result of the request; for a fragmented request, its first failure if there was one.
    pub status: WcStatus,
    /// What it was. On one rail verbs leaves this undefined for failures: then UNKNOWN.
    pub opcode: WcOpcode,
    /// The virtual queue pair.
    pub qp_num: u32,
    /// Bytes of the whole request; of a receive, those that arrived with its completion, which a
    /// notification over several rails has none of. On one rail verbs leaves this undefined for
    /// WRITEs and SENDs: then it is what the driver says, often 0.
    pub byte_len: u32,
    /// The immediate that arrived, as the number that was sent, if both ends have the same
    /// [`imm_order`](crate::virtual_qp::Config::imm_order). DQPLB needs the immediate itself: none
    /// arrives.
    ///
    /// The completion of a send has none, as in verbs, where only receives carry one: its poster
    /// knows what it sent under this `wr_id`, and what is here says that something arrived.
    pub imm: Option<u32>,
}

impl VirtualWc {
    /// A completion that passes through: everything is the driver's.
    #[inline]
    pub(crate) fn pass_through(qp_num: u32, imm_order: ImmOrder, completion: &Completion) -> Self {
        let ok = completion.status.is_success();
        Self {
            wr_id: completion.wr_id,
            status: completion.status,
            opcode: if ok { completion.opcode } else { WcOpcode::UNKNOWN },
            qp_num,
            byte_len: if ok { completion.byte_len } else { 0 },
            imm: completion.imm().map(|imm| imm_order.decode(imm)),
        }
    }
}

/// What a poll hands to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request completed.
    Completion(VirtualWc),
    /// A completion of a queue pair that is not, or no longer, attached: the caller's.
    Foreign {
        /// The device it came from.
        device: DeviceId,
        /// As it came.
        completion: Completion,
    },
}

impl Event {
    /// The completion of a request, if it is one.
    pub fn completion(self) -> Option<VirtualWc> {
        match self {
            Self::Completion(wc) => Some(wc),
            Self::Foreign { .. } => None,
        }
    }
}

/// How a poll went. Whatever came before an error has been handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a completion queue may have failed"]
pub struct Polled {
    /// Events handed over.
    pub events: usize,
    /// The first completion queue that could not be polled; the others were.
    pub error: Option<CqError>,
}

impl Polled {
    /// Returns the error as a result, for callers that stop at it.
    ///
    /// # Errors
    ///
    /// A completion queue could not be polled.
    pub fn check(&self) -> Result<(), CqError> {
        self.error.map_or(Ok(()), Err)
    }
}

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
    /// first one should be of the physical queue pair with this role; 0 if it is not, or if the
    /// engine did not post what completed. Completions that pass straight through go to `direct`,
    /// which has room for as many as there are completions.
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
    fn count_passed(&mut self, count: usize);

    /// Records the failures among completions that passed straight through.
    #[doc(hidden)]
    fn note_passed_failures(&mut self, completions: &[Completion]);

    /// Does what the completions since the last call allow. Once for a batch of completions, not
    /// for each.
    #[doc(hidden)]
    fn pump_all(&mut self);

    /// Returns the next finished request.
    #[doc(hidden)]
    fn report(&mut self) -> Option<VirtualWc>;

    /// Returns the next request that passes straight through and will never be posted. Completions
    /// of requests posted before it went to `direct` of
    /// [`take_completions`](Self::take_completions), and are to be handed over first.
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

    /// Notes that a poll which began after this queue was asked for has taken everything that was
    /// in it.
    #[doc(hidden)]
    fn note_empty(&mut self, _cq: CqId) {}

    /// Notes that this queue has given out `taken` completions so far. It holds no more than
    /// `capacity`, and may never be seen empty while other targets are busy.
    #[doc(hidden)]
    fn note_taken(&mut self, _cq: CqId, _taken: u64, _capacity: u32) {}
}

/// The targets that a poll may deliver to, by the index under which they were attached.
///
/// A slice of equal virtual queue pairs gives static dispatch, as does a slice of `&mut` to them; a
/// slice of `&mut dyn CompletionTarget` mixes sizes and kinds; one virtual queue pair is a set of
/// one, at index 0.
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
