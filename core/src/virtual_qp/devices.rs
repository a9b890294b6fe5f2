//! Which keys of a request a rail needs: those of its device, and of the peer's device that it meets.

use super::places::{Devices, Place};
use super::qp::VirtualQp;
use crate::hardware::QueuePair;
use crate::rail::MAX_RAILS;
use arrayvec::ArrayVec;

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
        if let Some(notify) = self.scheme.notify_mut() {
            notify.keys_at = self.devices.place_of(notify.id, notify.device) as u8;
        }
        let place_before = |place: &Place| before.position(place.device(), None);
        let places = self.devices.places.iter().map(place_before);
        self.data_receives.renumber(&places.collect::<ArrayVec<_, RAILS>>());
    }
}
