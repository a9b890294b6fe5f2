//! The slots of the rings.

use super::keys::Keys;
use super::tracker::WrTracker;
use crate::completion::VirtualWc;
use crate::verbs::{
    Imm, ImmOrder, LocalBuffer, Opcode, ReportOrder, SendFlags, SendRequest, SendWr, WcStatus,
};
use bitflags::bitflags;

/// The ring of send requests.
pub(super) type Sends<const RAILS: usize, const WRS: usize> = WrTracker<SendSlot<RAILS>, WRS>;

/// The ring of notification receives.
pub(super) type Recvs<const WRS: usize> = WrTracker<RecvSlot, WRS>;

bitflags! {
    /// The state of a send request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct SlotState: u16 {
        /// A pass-through request that had to wait: one request for rail 0, not fragments.
        const PASS_THROUGH = 1 << 0;
        /// The receiver is to be notified once the data is acknowledged, or is being notified.
        const WANTS_NOTIFY = 1 << 1;
        /// A part of the request was not posted, or was lost, and never will be posted.
        const CANCELLED = 1 << 2;
        /// A pass-through request that is not complete. It is reported when it is.
        const DEFERRED = 1 << 3;
        /// The failure that is being handled was already counted for this request.
        const BLAMED = 1 << 4;
        /// It has no fragments: its receiver is only notified.
        const NO_DATA = 1 << 5;
        /// It is reported when it is done, even if earlier requests are not.
        const WHEN_DONE = 1 << 6;
        /// It was reported ahead of its turn.
        const REPORTED = 1 << 7;
        /// Its buffers are in the slots behind it.
        const LISTED = 1 << 8;
        /// A buffer of the request before it, or its operands, and not a request.
        const PART = 1 << 9;
        /// Its caller wants it back: nothing of it is posted any more. Once its status is
        /// `CANCELLED`, that is final.
        const TAKEN_BACK = 1 << 10;
        /// What of it is in flight is not awaited: its rails are fenced.
        const HURRIED = 1 << 11;
    }
}

impl SlotState {
    /// The state of a request that is reported in this order.
    pub(super) const fn reported(order: ReportOrder) -> Self {
        // `WhenDone` is 1, so a shift makes the flag without a branch.
        const BIT: u32 = SlotState::WHEN_DONE.bits().trailing_zeros();
        Self::from_bits_retain((order as u16) << BIT)
    }
}

/// A send request in the ring. The first cache line is all that a completion touches.
#[derive(Clone, Copy, Debug)]
// repr(C) keeps the fields in this order, which the assertions below depend on.
#[repr(C, align(64))]
pub(super) struct SendSlot<const RAILS: usize> {
    pub(super) wr_id: u64,
    pub(super) local: LocalBuffer,
    pub(super) remote_addr: u64,
    /// Bytes handed to rails.
    pub(super) offset: u32,
    pub(super) batches_in_flight: u32,
    /// The first failure.
    pub(super) status: WcStatus,
    /// Number of rails that lost a part of it, in a failure that the request itself may have
    /// caused. Beside the status, so that one store of 8 bytes clears both.
    pub(super) rail_failures: u32,
    pub(super) imm: Imm,
    pub(super) opcode: Opcode,
    /// The opcode of its fragments.
    pub(super) fragment_opcode: Opcode,
    pub(super) flags: SendFlags,
    /// Flags of the fragment that ends the request, except SIGNALED. SOLICITED applies to every
    /// numbered fragment.
    pub(super) last_flags: SendFlags,
    pub(super) state: SlotState,
    /// The rkey for the notify, whose queue pair may be on another device than all rails.
    pub(super) notify_rkey: u32,
    pub(super) keys: [Keys; RAILS],
}

// What a completion reads and writes lies before the keys. The whole slot is one pair of cache
// lines for up to eight rails. With the operands of atomics, which few programs use, it would be
// three lines, and a ring of 256 would have 48 KiB; they have a separate slot
// (`pass_through::Operands`).
static_assertions::const_assert!(core::mem::offset_of!(SendSlot<8>, keys) <= 64);
static_assertions::const_assert_eq!(size_of::<SendSlot<8>>(), 128);

impl<const RAILS: usize> SendSlot<RAILS> {
    pub(super) const BLANK: Self = Self {
        wr_id: 0,
        local: LocalBuffer::EMPTY,
        remote_addr: 0,
        offset: 0,
        batches_in_flight: 0,
        status: WcStatus::SUCCESS,
        rail_failures: 0,
        imm: Imm::from_number(0),
        opcode: Opcode::RdmaWrite,
        fragment_opcode: Opcode::RdmaWrite,
        flags: SendFlags::empty(),
        last_flags: SendFlags::empty(),
        state: SlotState::empty(),
        notify_rkey: 0,
        keys: [Keys { lkey: 0, rkey: 0 }; RAILS],
    };

    /// Copies a request into the slot, except its keys.
    #[inline]
    pub(super) fn fill(&mut self, wr: &SendWr<'_>, imm_order: ImmOrder, state: SlotState) {
        self.wr_id = wr.wr_id;
        self.local = wr.local;
        self.remote_addr = wr.remote_addr;
        self.offset = 0;
        self.batches_in_flight = 0;
        self.status = WcStatus::SUCCESS;
        self.rail_failures = 0;
        self.imm = imm_order.encode(wr.imm);
        self.opcode = wr.opcode;
        self.fragment_opcode = wr.opcode;
        self.flags = wr.flags;
        // The request itself waits for its fence, so its fragments need not.
        self.last_flags = wr.flags.difference(SendFlags::FENCE);
        self.state = state;
    }

    /// Makes it a WRITE_WITH_IMM of SPRAY, whose notify queue pair is on a device for which the
    /// request has these keys first, and has its own keys at this place.
    #[inline]
    pub(super) fn prepare_notify(&mut self, keys: Keys, keys_at: u8) {
        // On a device that connects to several devices of the peer, the first key may belong to
        // another one, so the key of the notify queue pair's own place is used.
        self.notify_rkey = match keys_at {
            0 => keys.rkey,
            at => self.keys[usize::from(at)].rkey,
        };
        // Fragments travel as plain writes, and the notify is what wakes the receiver.
        self.state.insert(SlotState::WANTS_NOTIFY);
        self.fragment_opcode = Opcode::RdmaWrite;
        self.last_flags.remove(SendFlags::SOLICITED);
    }

    /// Whether its fragments carry numbers in their immediates.
    #[inline]
    pub(super) fn is_numbered(&self) -> bool {
        self.fragment_opcode == Opcode::RdmaWriteWithImm
    }

    /// Whether its receiver has still to be notified, or to acknowledge that it is.
    #[inline]
    pub(super) const fn wants_notify(&self) -> bool {
        self.state.contains(SlotState::WANTS_NOTIFY)
    }

    /// Bytes not handed to rails yet.
    #[inline]
    pub(super) const fn unposted(&self) -> u32 {
        self.local.length() - self.offset
    }

    /// Whether it may start only when every earlier request is complete, which was not so yet.
    #[inline]
    pub(super) const fn is_fenced(&self) -> bool {
        self.flags.contains(SendFlags::FENCE)
    }

    /// Whether its caller wants it back, and it is not known yet what becomes of it.
    pub(super) fn is_being_taken_back(&self) -> bool {
        self.state.contains(SlotState::TAKEN_BACK) && self.status != WcStatus::CANCELLED
    }

    /// Whether it was taken back, and that is still to be reported.
    pub(super) fn was_taken_back(&self) -> bool {
        let is_final = self.status == WcStatus::CANCELLED;
        is_final && !self.state.contains(SlotState::REPORTED)
    }

    /// Its data and its notify, which are one request, arrived.
    pub(super) fn arrived_with_notify(&mut self) {
        self.batches_in_flight -= 1;
        self.state.remove(SlotState::WANTS_NOTIFY);
    }

    /// Records a failure, unless there was one before.
    pub(super) fn fail(&mut self, status: WcStatus) {
        // The first failure has the reason; what follows on the same queue pair is flushed because
        // of it.
        if self.status.is_success() {
            self.status = status;
        }
    }

    /// The status that is reported.
    #[inline]
    pub(super) const fn final_status(&self) -> WcStatus {
        if self.state.contains(SlotState::CANCELLED) { self.cancelled() } else { self.status }
    }

    #[cold]
    const fn cancelled(&self) -> WcStatus {
        // A part was never posted, so success of all that was posted is not success of the request.
        if self.status.is_success() { WcStatus::WR_FLUSH_ERR } else { self.status }
    }

    /// Returns the physical form of a pass-through request, for the device at this place. An atomic
    /// also needs its [`Operands`](super::pass_through::Operands).
    pub(super) fn pass_through(&self, keys_at: u8) -> SendRequest {
        let keys = self.keys[usize::from(keys_at)];
        SendRequest {
            wr_id: 0,
            opcode: self.opcode,
            flags: self.flags,
            imm: self.imm,
            sge: self.local.sge(keys.lkey),
            remote_addr: self.remote_addr,
            rkey: keys.rkey,
            compare_add: 0,
            swap: 0,
        }
    }
}

/// The requests that were reported ahead of their turn, which is still to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    count: u32,
    virtual_qp_num: u32,
    is_used: bool,
}

impl Ahead {
    pub(super) const fn new(virtual_qp_num: u32, order: ReportOrder) -> Self {
        let is_used = matches!(order, ReportOrder::WhenDone);
        Self { count: 0, virtual_qp_num, is_used }
    }

    /// Whether any request has been asked to be reported when it is done.
    #[inline]
    pub(super) const fn is_used(&self) -> bool {
        self.is_used
    }

    /// Sets the report order of a request that is being posted and names one.
    #[cold]
    pub(super) fn choose<const RAILS: usize>(
        &mut self,
        slot: &mut SendSlot<RAILS>,
        order: ReportOrder,
    ) {
        // `Header::first_state` may have set the order of the configuration.
        slot.state.remove(SlotState::WHEN_DONE);
        slot.state.insert(SlotState::reported(order));
        self.is_used |= order == ReportOrder::WhenDone;
    }

    /// Notes that a request with this report order was taken back, and whether there are others.
    pub(super) fn note_others(&mut self, any: bool) {
        self.is_used = any;
    }

    /// Returns how many there are.
    pub(super) const fn count(&self) -> usize {
        self.count as usize
    }

    /// Notes that the report cursor passed one.
    pub(super) fn passed(&mut self) {
        self.count -= 1;
    }

    pub(super) fn report<const RAILS: usize>(&mut self, slot: &mut SendSlot<RAILS>) -> VirtualWc {
        slot.state.insert(SlotState::REPORTED);
        self.count += 1;
        slot.report(self.virtual_qp_num)
    }
}

/// A notification receive in the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecvSlot {
    pub(super) wr_id: u64,
    pub(super) received: Received,
}

/// What completed a notification receive, if anything did.
#[derive(Clone, Copy, Debug)]
pub(super) enum Received {
    /// Nothing yet, or a notification whose immediate is not known.
    NoImm,
    /// A notification with this immediate.
    Imm(u32),
    /// It failed, so there is no immediate.
    Failed(WcStatus),
}

static_assertions::const_assert_eq!(size_of::<RecvSlot>(), 16);

impl RecvSlot {
    pub(super) const fn new(wr_id: u64) -> Self {
        Self { wr_id, received: Received::NoImm }
    }
}
