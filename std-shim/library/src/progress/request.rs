//! Requests to virtual queue pairs, as they cross to the thread.

use super::HANDLE_DEPTH;
use super::submit::HandleMessage;
use polyrail_core::verbs::{
    DeviceKeys, LocalBuffer, Opcode, RecvWr, ReportOrder, SendFlags, SendWr, WcStatus,
};
use polyrail_core::virtual_cq::VirtualWc;

/// Bytes that one request takes in the ring to the thread.
pub const REQUEST_BYTES: usize = size_of::<HandleMessage<Request>>();

const _: () = assert!(REQUEST_BYTES <= 64, "a cache line for each request");

/// The two kinds of requests, which do not wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Send,
    Recv,
}

impl Lane {
    pub(super) const ALL: [Self; 2] = [Self::Send, Self::Recv];

    /// Returns the lane of a place among the slots of both lanes.
    pub(super) const fn of(place: u16) -> Self {
        if (place as usize) < HANDLE_DEPTH { Self::Send } else { Self::Recv }
    }

    /// Returns the place of a slot of this lane among the slots of both lanes.
    pub(super) const fn place(self, slot: u16) -> u16 {
        self as u16 * HANDLE_DEPTH as u16 + slot
    }
}

/// A request on its way to the thread. `keys` is the place of its key set among those that the
/// thread has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) slot: u16,
    pub(super) keys: u8,
    /// `None` for a receive.
    opcode: Option<Opcode>,
    flags: SendFlags,
    imm: u32,
    local: LocalBuffer,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
    report_order: Option<ReportOrder>,
}

impl Request {
    pub(super) const fn send(slot: u16, keys: u8, wr: &SendWr<'_>) -> Self {
        Self {
            slot,
            keys,
            opcode: Some(wr.opcode),
            flags: wr.flags,
            imm: wr.imm,
            local: wr.local,
            remote_addr: wr.remote_addr,
            compare_add: wr.compare_add,
            swap: wr.swap,
            report_order: wr.report_order,
        }
    }

    pub(super) const fn recv(slot: u16, keys: u8, wr: &RecvWr<'_>) -> Self {
        Self {
            slot,
            keys,
            opcode: None,
            flags: SendFlags::empty(),
            imm: 0,
            local: wr.local,
            remote_addr: 0,
            compare_add: 0,
            swap: 0,
            report_order: None,
        }
    }

    pub(super) const fn lane(&self) -> Lane {
        if self.opcode.is_some() { Lane::Send } else { Lane::Recv }
    }

    /// Returns the report of a WRITE or READ that was taken back before it was posted: nothing of it
    /// was written. `None` for others, which cannot be taken back.
    pub(super) fn taken_back(&self) -> Option<VirtualWc> {
        let can_be = |opcode: &Opcode| {
            matches!(opcode, Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead)
        };
        let opcode = self.opcode.filter(can_be)?.completion();
        let status = WcStatus::CANCELLED;
        Some(VirtualWc { wr_id: 0, status, opcode, qp_num: 0, byte_len: 0, imm: None })
    }

    /// Returns the request as the engine takes it, under a name that the thread has chosen.
    pub(super) const fn work<'k>(&self, wr_id: u64, keys: &'k [DeviceKeys]) -> Work<'k> {
        let Self { opcode, flags, imm, local, remote_addr, .. } = *self;
        let Self { compare_add, swap, report_order, .. } = *self;
        match opcode {
            Some(opcode) => Work::Send(SendWr {
                wr_id,
                opcode,
                flags,
                imm,
                local,
                remote_addr,
                compare_add,
                swap,
                keys,
                report_order,
            }),
            None => Work::Recv(RecvWr { wr_id, local, keys }),
        }
    }
}

/// A request for the engine.
#[derive(Debug)]
pub(super) enum Work<'k> {
    Send(SendWr<'k>),
    Recv(RecvWr<'k>),
}
