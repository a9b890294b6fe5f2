//! Where new queue pairs of a virtual queue pair may be, and how they are put in the place of those
//! that failed.

use super::ends::RailMismatch;
use super::place::stands_by;
use super::qp::EndpointQp;
use super::sizes::MAX_DEVICES;
use crate::backend::{Connect, DeviceError};
use crate::heal::ReplacementAddress;
use crate::queue_pair::Place;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{self, QpState, RailId, RailState, Rejected};

/// A rail was not given a new queue pair. Its state is unchanged; the new queue pair was destroyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReplaceError {
    /// The engine refuses: the rail is not Down, or the queue pair was created for another
    /// generation.
    #[error(transparent)]
    Engine(#[from] virtual_qp::ReplaceError),
    /// The peer's queue pair is for another rail.
    #[error("the queue pair here is for {here}, the peer's for {peer}")]
    Rails {
        /// The rail of the queue pair here.
        here: RailId,
        /// The rail of the peer's queue pair.
        peer: RailId,
    },
    /// The peer's queue pair was created for another failure of this rail.
    #[error("the queue pair for {rail} has generation {here} here, {peer} at the peer")]
    Generation {
        /// The rail.
        rail: RailId,
        /// The generation here.
        here: u16,
        /// The peer's generation.
        peer: u16,
    },
    /// The queue pairs are on devices or ports that do not match.
    #[error(transparent)]
    Ends(#[from] RailMismatch),
    /// A device cannot create or connect a queue pair.
    #[error("{rail} (device {device})")]
    Device {
        /// The rail.
        rail: RailId,
        /// The device's name.
        device: String,
        /// The device's error.
        source: DeviceError,
    },
}

/// Puts a connected queue pair in its rail's place.
pub(super) fn put_in_place<Q, C, const ROUTES: usize>(
    (cq, index): (&mut VirtualCq<C, MAX_DEVICES, ROUTES>, u16),
    qp: &mut EndpointQp<Q>,
    (rail, generation): (RailId, u16),
    place: Place,
    queue_pair: Q,
) -> Result<(), ReplaceError>
where
    Q: Connect,
    C: CompletionQueue,
{
    // Before the rail returns, since requests may be waiting for it.
    qp.note_device(rail, place.device);
    let old = match qp.qp.replace_rail(cq, index, rail, generation, queue_pair) {
        Ok(old) => old,
        Err(Rejected { error, queue_pair }) => {
            queue_pair.retire();
            if let Some(before) = qp.place_of(rail).map(|place| place.device) {
                qp.note_device(rail, before);
            }
            return Err(error.into());
        }
    };
    if let Some(known) = qp.position(rail).and_then(|at| qp.places.get_mut(at)) {
        *known = place;
    }
    old.retire();
    let is_away = qp.home_of(rail).is_some_and(|home| home.device != place.device);
    if let RailId::Data(number) = rail {
        // It shares the device with another rail, and would halve what that one carries.
        qp.qp.reserve_rail(number, is_away);
    }
    Ok(())
}

/// Whether requests wait for this rail, so that its queue pair may be on another rail's device too.
pub(super) const fn can_move(rail: RailId) -> bool {
    matches!(rail, RailId::Data(0) | RailId::Notify)
}

impl<Q> EndpointQp<Q>
where
    Q: Connect,
{
    /// Makes rail 0 a standby rail while its queue pair is on a device that stands by. As a home
    /// rail, it would keep the standby rails closed, and carry fragments beside home rails that
    /// return.
    fn note_device(&mut self, rail: RailId, device: usize) {
        if rail == RailId::Data(0) && !self.qp.config().standby.is_empty() {
            let homes = &self.homes[..self.qp.rails().len()];
            let stands_by = stands_by(device, homes, self.qp.config());
            self.qp.set_standby(0, stands_by);
        }
    }

    /// Returns the generation of the next queue pair of a rail that can be given one.
    pub(super) fn next_generation(&self, rail: RailId) -> Result<u16, ReplaceError> {
        let state = self.qp.rail_state(rail);
        let generation = self.qp.rail_generation(rail);
        let Some((state, generation)) = state.zip(generation) else {
            return Err(virtual_qp::ReplaceError::NoRail(rail).into());
        };
        if self.state() == QpState::Error {
            return Err(virtual_qp::ReplaceError::InErrorState.into());
        }
        if state != RailState::Down {
            return Err(virtual_qp::ReplaceError::State { rail, state }.into());
        }
        Ok(generation.wrapping_add(1))
    }

    /// Returns where a rail's queue pair may be. The best place, where its first queue pair was,
    /// comes first. Rail 0 and the notify queue pair, which requests wait for, may be on another
    /// rail's device, too, if the peer has the same number of devices.
    pub(super) fn candidates(&self, rail: RailId) -> Vec<Place> {
        let Some(home) = self.home_of(rail) else { return Vec::new() };
        let mut candidates = vec![*home];
        // Keys exist for the pairs of devices that the first queue pairs connect.
        if can_move(rail) && self.far_devices.is_empty() {
            for place in &self.homes {
                if candidates.iter().all(|known| known.device != place.device) {
                    candidates.push(*place);
                }
            }
        }
        candidates
    }

    /// Returns where a rail's queue pair may be so that it matches a queue pair on this device of
    /// the peer.
    pub(super) fn candidate_on(&self, rail: RailId, device: usize) -> Result<Place, ReplaceError> {
        let candidates = self.candidates(rail);
        let here = candidates.first().map_or(0, |home| home.device as u8);
        let goes_with = |place: &Place| usize::from(self.far_device(rail, place.device as u8));
        let place = candidates.into_iter().find(|place| goes_with(place) == device);
        place.ok_or(RailMismatch::Devices { rail, here, peer: device as u8 }.into())
    }

    /// Returns where a rail's first queue pair was.
    pub(super) fn home_of(&self, rail: RailId) -> Option<&Place> {
        self.homes.get(self.position(rail)?)
    }

    /// Returns where a rail's queue pair is.
    pub(super) fn place_of(&self, rail: RailId) -> Option<&Place> {
        self.places.get(self.position(rail)?)
    }

    /// Returns the index of a rail among the queue pairs.
    pub(super) fn position(&self, rail: RailId) -> Option<usize> {
        match rail {
            RailId::Data(number) => Some(number.into()).filter(|at| *at < self.qp.rails().len()),
            RailId::Notify => Some(self.qp.rails().len()),
        }
    }

    /// Checks that a new queue pair is for the next generation, and matches the peer's.
    pub(super) fn fits(
        &self,
        own: &ReplacementAddress<RailId>,
        peer: &ReplacementAddress<RailId>,
    ) -> Result<(), ReplaceError> {
        let rail = own.rail;
        if rail != peer.rail {
            return Err(ReplaceError::Rails { here: rail, peer: peer.rail });
        }
        let expected = self.next_generation(rail)?;
        let given = own.generation;
        if given != expected {
            return Err(virtual_qp::ReplaceError::Generation { rail, expected, given }.into());
        }
        if given != peer.generation {
            return Err(ReplaceError::Generation { rail, here: given, peer: peer.generation });
        }
        Ok(self.check_ends(rail, &own.address, &peer.address)?)
    }
}
