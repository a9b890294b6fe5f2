//! Which keys of a request a rail needs: those of its device, and of the peer's device that it meets.

use super::qp::VirtualQp;
use crate::hardware::QueuePair;
use crate::rail::{MAX_RAILS, RailId};
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

/// The devices of the rails, each once, or once for each device of the peer that it
/// [meets](VirtualQp::pair_devices); `keys` of a slot are in this order.
#[derive(Clone, Debug)]
pub(super) struct Devices<const RAILS: usize> {
    pub(super) places: ArrayVec<Place, RAILS>,
    /// Which device of the peer that of a place meets.
    peers: [u8; RAILS],
    /// Which device of the peer each rail meets.
    peer_of_rail: [u8; RAILS],
}

impl<const RAILS: usize> Devices<RAILS> {
    pub(super) const NONE: Self =
        Self { places: ArrayVec::new_const(), peers: [0; RAILS], peer_of_rail: [0; RAILS] };

    /// Takes the place of a pair of devices that meet, if there is none yet. Returns it.
    fn add(&mut self, device: DeviceId, peer: u8) -> usize {
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
    fn position(&self, device: DeviceId, peer: Option<u8>) -> Option<usize> {
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

/// The rails do not meet the peer's devices as they were said to; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairDevicesError {
    /// Every rail meets one device.
    #[error("{given} devices of the peer for {rails} rails")]
    Rails {
        /// Rails there are.
        rails: usize,
        /// Devices given.
        given: usize,
    },
    /// Requests that were posted before have found their keys.
    #[error("there are requests that were posted before the devices were paired")]
    InUse,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Tells which device of the peer each rail meets: `peers` has the place of one for each rail. To be
    /// called before anything is sent, if a device here meets several of the peer's, as when this side has
    /// fewer; otherwise there is no need to.
    ///
    /// From then on requests carry one set of keys for each pair of devices that meet, in the order of the
    /// rails: with one device here and two there, two sets for the same device, the first with the rkey of
    /// the peer's device that rail 0 meets. The notify queue pair goes with rail 0.
    ///
    /// A queue pair that [takes a rail's place](Self::replace_rail) meets the same device of the peer, if its own
    /// device meets that; if not, the first one that this does meet.
    ///
    /// # Errors
    ///
    /// Nothing changed: see [`PairDevicesError`].
    pub fn pair_devices(&mut self, peers: &[u8]) -> Result<(), PairDevicesError> {
        let rails = self.rails.len();
        if peers.len() != rails {
            return Err(PairDevicesError::Rails { rails, given: peers.len() });
        }
        if self.sends.alive().next().is_some() {
            return Err(PairDevicesError::InUse);
        }
        self.number_pairs(peers);
        Ok(())
    }

    /// Gives every rail the place of its device's keys. Rail 0's is 0.
    pub(super) fn number_devices(&mut self) {
        self.number_pairs(&[0; MAX_RAILS]);
    }

    fn number_pairs(&mut self, peers: &[u8]) {
        let before = core::mem::replace(&mut self.devices, Devices::NONE);
        for (at, (rail, peer)) in self.rails.iter_mut().zip(peers).enumerate() {
            rail.keys_at = self.devices.add(rail.device, *peer) as u8;
            self.devices.peer_of_rail[at] = *peer;
        }
        let place_before = |place: &Place| before.position(place.device(), None);
        let places = self.devices.places.iter().map(place_before);
        self.data_receives.renumber(&places.collect::<ArrayVec<_, RAILS>>());
    }
}
