//! What comes out of a virtual completion queue.

use crate::hardware::CqError;
use crate::verbs::{Completion, DeviceId, ImmOrder, WcOpcode, WcStatus};

/// The completion of a request that was posted to a virtual queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualWc {
    /// The request's name, as its poster gave it.
    pub wr_id: u64,
    /// How it ended; of a fragmented request, the first failure if there was one.
    pub status: WcStatus,
    /// What it was. On one rail verbs leaves this undefined for failures: then UNKNOWN.
    pub opcode: WcOpcode,
    /// The virtual queue pair.
    pub qp_num: u32,
    /// Bytes of the whole request; of a receive, those that arrived with its completion, which a
    /// notification over several rails has none of. On one rail verbs leaves this undefined for WRITEs and SENDs:
    /// then it is what the driver says, often 0.
    pub byte_len: u32,
    /// The immediate that arrived, as the number that was sent, if both ends have the same
    /// [`imm_order`](crate::virtual_qp::Config::imm_order). DQPLB needs the immediate itself: none arrives.
    ///
    /// The completion of a send has none, as in verbs, where only receives carry one: its poster knows what it sent
    /// under this `wr_id`, and what is here says that something arrived.
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
