//! The places that the keys of a request have: one for each device of the rails, or for each pair of devices that meet.

use crate::rail::RailId;
use crate::verbs::DeviceId;
use arrayvec::ArrayVec;

/// The device that the keys in one place of a slot are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u64);

impl Place {
    /// The device has other places too.
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
    pub(super) const fn is_the_only_one_of(self, device: DeviceId) -> bool {
        self.0 == device.0 as u64
    }
}

/// The devices of the rails, each once, or once for each device of the peer that it meets; `keys` of a slot are in this
/// order.
#[derive(Clone, Debug)]
pub(super) struct Devices<const RAILS: usize> {
    pub(super) places: ArrayVec<Place, RAILS>,
    /// Which device of the peer that of a place meets.
    peers: [u8; RAILS],
    /// Which device of the peer each rail meets.
    pub(super) peer_of_rail: [u8; RAILS],
}

impl<const RAILS: usize> Devices<RAILS> {
    pub(super) const NONE: Self =
        Self { places: ArrayVec::new_const(), peers: [0; RAILS], peer_of_rail: [0; RAILS] };

    /// Takes the place of a pair of devices that meet, if there is none yet. Returns it.
    pub(super) fn add(&mut self, device: DeviceId, peer: u8) -> usize {
        let known = self.position(device, Some(peer));
        known.unwrap_or_else(|| {
            let place = self.places.len();
            self.peers[place] = peer;
            let mut is_shared = false;
            for other in self.places.iter_mut().filter(|other| other.device() == device) {
                *other = Place::new(device, true);
                is_shared = true;
            }
            self.places.push(Place::new(device, is_shared));
            place
        })
    }

    /// The first place of a device, or the one where it meets this one of the peer.
    pub(super) fn position(&self, device: DeviceId, peer: Option<u8>) -> Option<usize> {
        let mut places = self.places.iter().zip(self.peers);
        places.position(|(place, other)| {
            place.device() == device && peer.is_none_or(|peer| peer == other)
        })
    }

    /// Whether requests carry keys for a device.
    pub(super) fn contains(&self, device: DeviceId) -> bool {
        self.position(device, None).is_some()
    }

    /// The place whose keys a rail needs if it is on this device, which requests carry keys for: the one of its device
    /// and of the peer's device that it meets, as far as those two meet. The notify queue pair goes with rail 0.
    pub(super) fn place_of(&self, rail: RailId, device: DeviceId) -> usize {
        let at = if let RailId::Data(at) = rail { usize::from(at) } else { 0 };
        let paired = self.position(device, self.peer_of_rail.get(at).copied());
        paired.or_else(|| self.position(device, None)).unwrap_or_default()
    }
}
