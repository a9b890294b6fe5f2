//! The keys of requests, and the places of keys in slots: one for each device of the rails, or for
//! each pair of devices that are connected.

use super::error::PostSendError;
use crate::rail::RailId;
use crate::verbs::{DeviceId, DeviceKeys, ImmOrder, Opcode, SendFlags, SendRequest, SendWr};
use arrayvec::ArrayVec;

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

    /// Returns the keys at index `hint` if they are for this device.
    #[inline]
    pub(super) fn find_at_hint(keys: &[DeviceKeys], device: DeviceId, hint: usize) -> Option<Self> {
        let found = keys.get(hint).filter(|keys| keys.device == device)?;
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
