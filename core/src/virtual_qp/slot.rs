//! The slots of the rings, and the places of keys in them: one for each device of the rails, or for
//! each pair of devices that are connected.

use super::error::PostSendError;
use super::tracker::WrTracker;
use crate::completion::VirtualWc;
use crate::rail::RailId;
use crate::verbs::{
    DeviceId, DeviceKeys, Imm, ImmOrder, LocalBuffer, Opcode, ReportOrder, SendFlags, SendRequest,
    SendWr, WcStatus,
};
use arrayvec::ArrayVec;
use bitflags::bitflags;

/// The ring of send requests.
pub(super) type Sends<const RAILS: usize, const WRS: usize> = WrTracker<SendSlot<RAILS>, WRS>;

/// The ring of notification receives.
pub(super) type Recvs<const WRS: usize> = WrTracker<RecvSlot, WRS>;

/// Both keys of a request on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

impl Keys {
    /// Looks up the keys of a device. `hint` is their most likely index.
    #[inline]
    pub(super) fn find(keys: &[DeviceKeys], device: DeviceId, hint: usize) -> Option<Self> {
        let found = match keys.get(hint) {
            Some(keys) if keys.device == device => keys,
            _ => Self::search(keys, device)?,
        };
        Some(Self { lkey: found.lkey, rkey: found.rkey })
    }

    // Out of line, because callers nearly always list devices in the order of the rails, so that
    // `hint` is right.
    #[cold]
    #[inline(never)]
    fn search(keys: &[DeviceKeys], device: DeviceId) -> Option<&DeviceKeys> {
        keys.iter().find(|keys| keys.device == device)
    }

    /// Looks up the keys for a place of a device. A device that is connected to several devices of
    /// the peer has several places, and as many keys in the same order.
    #[inline]
    pub(super) fn find_at(keys: &[DeviceKeys], places: &[Place], at: usize) -> Option<Self> {
        let found = match (keys.get(at), places.get(at)) {
            // A device with several places is not trusted by position. Of the keys [other, a, b], a
            // and b of one device, rail 1 would get a, though it needs b: its device matches both.
            (Some(keys), Some(place)) if place.is_the_only_one_of(keys.device) => keys,
            _ => Self::search_at(keys, places, at)?,
        };
        Some(Self { lkey: found.lkey, rkey: found.rkey })
    }

    #[cold]
    #[inline(never)]
    fn search_at<'k>(
        keys: &'k [DeviceKeys],
        places: &[Place],
        at: usize,
    ) -> Option<&'k DeviceKeys> {
        let device = places.get(at)?.device();
        let earlier = places[..at].iter().filter(|earlier| earlier.device() == device).count();
        // The n-th place of a device has the n-th key of this device, wherever keys of other
        // devices stand (`pair_devices` states this order).
        keys.iter().filter(|keys| keys.device == device).nth(earlier)
    }

    /// As [`of`](Self::of), at a place among the devices.
    pub(super) fn of_at(
        wr: &SendWr<'_>,
        places: &[Place],
        at: usize,
    ) -> Result<Self, PostSendError> {
        let device = places[at].device();
        match wr.opcode {
            // A SEND names no memory of the peer, so a single lkey serves all places of a device.
            Opcode::Send | Opcode::SendWithImm => Self::of(wr, device, at),
            _ => Self::find_at(wr.keys, places, at).ok_or(PostSendError::MissingKeys { device }),
        }
    }

    /// Returns the keys of a request on a device, or zeros if the request needs none.
    #[inline]
    pub(super) fn of(
        wr: &SendWr<'_>,
        device: DeviceId,
        hint: usize,
    ) -> Result<Self, PostSendError> {
        match Self::find(wr.keys, device, hint) {
            Some(keys) => Ok(keys),
            None => Self::missing(wr.opcode, wr.flags, wr.local.length(), device),
        }
    }

    /// Returns the physical form of a request that is not split.
    #[inline]
    pub(super) fn request(self, wr: &SendWr<'_>, imm_order: ImmOrder) -> SendRequest {
        SendRequest {
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.flags,
            imm: imm_order.encode(wr.imm),
            sge: wr.local.sge(self.lkey),
            remote_addr: wr.remote_addr,
            rkey: self.rkey,
            compare_add: wr.compare_add,
            swap: wr.swap,
        }
    }

    // In line, and with arguments by value: if the address of the request were taken, each post
    // would have to store the request in memory.
    #[cold]
    #[inline(always)]
    fn missing(
        opcode: Opcode,
        flags: SendFlags,
        length: u32,
        device: DeviceId,
    ) -> Result<Self, PostSendError> {
        let is_empty = length == 0;
        let needs_none = match opcode {
            // The driver copies an inline request when it is posted and does not check the lkey
            // (ibv_post_send(3)).
            Opcode::Send | Opcode::SendWithImm => is_empty || flags.contains(SendFlags::INLINE),
            // No responder looks at the rkey of a write of no bytes (InfiniBand specification,
            // C9-88).
            Opcode::RdmaWriteWithImm => is_empty,
            _ => false,
        };
        if needs_none { Ok(Self::default()) } else { Err(PostSendError::MissingKeys { device }) }
    }
}

/// The device of the keys at one index of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u64);

impl Place {
    /// The device has other places too.
    // Above the 32 bits of a device id, so that one comparison checks the device and that it has no
    // other place.
    const SHARED: u64 = 1 << 32;

    /// The place of a device.
    const fn new(device: DeviceId, is_shared: bool) -> Self {
        Self(device.0 as u64 | if is_shared { Self::SHARED } else { 0 })
    }

    /// The device.
    #[inline]
    pub(super) const fn device(self) -> DeviceId {
        DeviceId(self.0 as u32)
    }

    /// Whether it is the only place of this device.
    #[inline]
    const fn is_the_only_one_of(self, device: DeviceId) -> bool {
        self.0 == device.0 as u64
    }
}

/// The devices of the rails: each once, or once for each device of the peer that it is connected
/// to. The `keys` of a slot are in this order.
#[derive(Clone, Debug)]
pub(super) struct Devices<const RAILS: usize> {
    pub(super) places: ArrayVec<Place, RAILS>,
    /// The peer's device of each place.
    peers: [u8; RAILS],
    /// The peer's device of each rail.
    pub(super) peer_of_rail: [u8; RAILS],
}

impl<const RAILS: usize> Devices<RAILS> {
    pub(super) const NONE: Self =
        Self { places: ArrayVec::new_const(), peers: [0; RAILS], peer_of_rail: [0; RAILS] };

    /// Returns the place of a pair of connected devices, which is added if it is new.
    pub(super) fn add(&mut self, device: DeviceId, peer: u8) -> usize {
        let known = self.position(device, Some(peer));
        known.unwrap_or_else(|| {
            let place = self.places.len();
            self.peers[place] = peer;
            let mut is_shared = false;
            for other in self.places.iter_mut().filter(|other| other.device() == device) {
                // The earlier places lose their mark too: a key of this device no longer says by
                // its position which pair it is for.
                *other = Place::new(device, true);
                is_shared = true;
            }
            self.places.push(Place::new(device, is_shared));
            place
        })
    }

    /// Returns the first place of a device, or its place for this device of the peer.
    pub(super) fn position(&self, device: DeviceId, peer: Option<u8>) -> Option<usize> {
        let mut places = self.places.iter().zip(self.peers);
        places.position(|(place, other)| {
            place.device() == device && peer.is_none_or(|peer| peer == other)
        })
    }

    /// Returns whether requests carry keys for a device.
    pub(super) fn contains(&self, device: DeviceId) -> bool {
        self.position(device, None).is_some()
    }

    /// Returns the place whose keys a rail needs if its queue pair is on this device, for which
    /// requests carry keys.
    pub(super) fn place_of(&self, rail: RailId, device: DeviceId) -> usize {
        // `pair_devices` connects the notify queue pair to the device of the peer that rail 0 uses.
        let at = if let RailId::Data(at) = rail { usize::from(at) } else { 0 };
        let paired = self.position(device, self.peer_of_rail.get(at).copied());
        // A replacement may be on a device that is not paired with this device of the peer. It then
        // connects to the first device that its own is paired with (`pair_devices`).
        paired.or_else(|| self.position(device, None)).unwrap_or_default()
    }
}

bitflags! {
    /// The state of a send request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct SlotState: u16 {
        /// A pass-through request that had to wait: one request for rail 0, not fragments.
        const PASS_THROUGH = 1 << 0;
        /// The receiver is to be notified once the data is acknowledged, or is being notified.
        const WANTS_NOTIFY = 1 << 1;
        /// A part of the request was not posted, and never will be.
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
        /// A buffer of the request before it, and not a request.
        const PART = 1 << 9;
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
    pub(super) imm: Imm,
    pub(super) opcode: Opcode,
    /// The opcode of its fragments.
    pub(super) fragment_opcode: Opcode,
    pub(super) flags: SendFlags,
    /// Flags of the fragment that ends the request, except SIGNALED. SOLICITED applies to every
    /// numbered fragment.
    pub(super) last_flags: SendFlags,
    pub(super) state: SlotState,
    /// Number of rails that lost a part of it, in a failure that the request itself may have
    /// caused.
    pub(super) rail_failures: u8,
    /// The rkey for the notify, whose queue pair may be on another device than all rails.
    pub(super) notify_rkey: u32,
    pub(super) keys: [Keys; RAILS],
    pub(super) compare_add: u64,
    pub(super) swap: u64,
}

// What a completion reads and writes lies before the keys. The whole slot is one pair of cache
// lines for up to four rails.
static_assertions::const_assert!(core::mem::offset_of!(SendSlot<4>, keys) <= 64);
static_assertions::const_assert_eq!(size_of::<SendSlot<4>>(), 128);

impl<const RAILS: usize> SendSlot<RAILS> {
    pub(super) const BLANK: Self = Self {
        wr_id: 0,
        local: LocalBuffer::EMPTY,
        remote_addr: 0,
        offset: 0,
        batches_in_flight: 0,
        status: WcStatus::SUCCESS,
        imm: Imm::from_number(0),
        opcode: Opcode::RdmaWrite,
        fragment_opcode: Opcode::RdmaWrite,
        flags: SendFlags::empty(),
        last_flags: SendFlags::empty(),
        state: SlotState::empty(),
        rail_failures: 0,
        notify_rkey: 0,
        keys: [Keys { lkey: 0, rkey: 0 }; RAILS],
        compare_add: 0,
        swap: 0,
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
        self.imm = imm_order.encode(wr.imm);
        self.opcode = wr.opcode;
        self.fragment_opcode = wr.opcode;
        self.flags = wr.flags;
        // The request itself waits for its fence, so its fragments need not.
        self.last_flags = wr.flags.difference(SendFlags::FENCE);
        self.state = state;
        self.rail_failures = 0;
    }

    /// Makes it a WRITE_WITH_IMM of SPRAY, whose notify queue pair is on this device and has its
    /// keys at this place.
    #[inline]
    pub(super) fn prepare_notify(
        &mut self,
        wr: &SendWr<'_>,
        device: DeviceId,
        keys_at: u8,
    ) -> Result<(), PostSendError> {
        let keys = Keys::of(wr, device, 0)?;
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
        Ok(())
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

    /// Returns the physical form of a pass-through request, for the device at this place.
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
            compare_add: self.compare_add,
            swap: self.swap,
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
    pub(super) status: WcStatus,
    pub(super) byte_len: u32,
    pub(super) imm: Option<u32>,
}

impl RecvSlot {
    pub(super) const fn new(wr_id: u64) -> Self {
        Self { wr_id, status: WcStatus::SUCCESS, byte_len: 0, imm: None }
    }
}
