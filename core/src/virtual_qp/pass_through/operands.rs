//! The operands of an atomic that waits in the ring. They have a separate slot behind the request,
//! because other requests, nearly all of them, have none.

use crate::verbs::{SendRequest, SendWr};
use crate::virtual_qp::slot::{SendSlot, SlotState};

/// The operands of an atomic.
#[derive(Clone, Copy, Debug)]
pub(in crate::virtual_qp) struct Operands {
    compare_add: u64,
    swap: u64,
}

impl Operands {
    /// Returns the operands of a pass-through request, if it is an atomic.
    pub(super) fn of(wr: &SendWr<'_>) -> Option<Self> {
        let SendWr { opcode, compare_add, swap, .. } = *wr;
        // Of the requests that pass through, only atomics fetch.
        opcode.is_fetching().then_some(Self { compare_add, swap })
    }

    /// Returns the slot behind an atomic. It is a part of the request, as buffers of a list are.
    pub(super) const fn slot<const RAILS: usize>(self) -> SendSlot<RAILS> {
        let Self { compare_add, swap } = self;
        let state = SlotState::PART;
        SendSlot { wr_id: compare_add, remote_addr: swap, state, ..SendSlot::BLANK }
    }

    /// Reads the slot behind an atomic.
    pub(super) const fn in_slot<const RAILS: usize>(slot: &SendSlot<RAILS>) -> Self {
        Self { compare_add: slot.wr_id, swap: slot.remote_addr }
    }

    /// Gives the physical request these operands.
    pub(super) const fn add_to(self, request: &mut SendRequest) {
        request.compare_add = self.compare_add;
        request.swap = self.swap;
    }
}
