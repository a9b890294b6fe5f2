//! New queue pairs in the place of those that failed.
//!
//! Of a rail that is Down at both ends, each makes a queue pair, in INIT and with a packet sequence number
//! of its own, and sends its address to the other; each connects its own with the other's, and puts it in
//! the rail's place, whereupon the engine posts its receives and has the peer told that it is ready. Then
//! the old one is destroyed: not sooner, or its number might be given away again.

use super::address::RailAddress;
use super::connect::join;
use super::devices::Devices;
use super::joining::{Connected, Joining};
use super::make::random_psn;
use super::place::Place;
use super::qp::EndpointQp;
use super::rail_mismatch::RailMismatch;
use super::replace_error::ReplaceError;
use super::replacement::{Replacement, ReplacementAddress};
use super::sizes::MAX_DEVICES;
use crate::backend::{Connect, DeviceError};
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{self, QpState, RailId, RailState, Rejected};

/// Where new queue pairs come from.
pub(super) struct Source<'o, Q, C> {
    pub(super) devices: &'o Devices<Q, C>,
    pub(super) cqs: &'o [C],
}

impl<Q, C> Source<'_, Q, C>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// A queue pair in the first place that gives one. The error is the first place's.
    pub(super) fn make_in(
        &self,
        qp: &EndpointQp<Q>,
        rail: RailId,
        places: &[Place],
    ) -> Result<Replacement<Q>, ReplaceError> {
        let mut first = None;
        for place in places {
            match self.make_at(qp, rail, *place) {
                Ok(replacement) => return Ok(replacement),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(ReplaceError::no_rail(rail)))
    }

    /// A queue pair that goes with one of the peer's.
    pub(super) fn make_for(
        &self,
        qp: &EndpointQp<Q>,
        peer: &ReplacementAddress,
    ) -> Result<Replacement<Q>, ReplaceError> {
        let ReplacementAddress { rail, generation, address, .. } = *peer;
        let here = qp.next_generation(rail)?;
        if here != generation {
            return Err(ReplaceError::Generation { rail, here, peer: generation });
        }
        let place = qp.candidate_on(rail, address.device.into())?;
        self.make_at(qp, rail, place)
    }

    /// A place as it is now: its address may be another one.
    fn look_up(
        &self,
        qp: &EndpointQp<Q>,
        rail: RailId,
        place: Place,
    ) -> Result<Place, ReplaceError> {
        let port = self.devices.port(qp.devices[place.device], place.port.number);
        let port = port.map_err(|source| qp.refused(rail, place, source))?;
        Ok(Place { port, ..place })
    }

    /// A queue pair on a device, on the port that rails have there, as that is now.
    fn make_at(
        &self,
        qp: &EndpointQp<Q>,
        rail: RailId,
        place: Place,
    ) -> Result<Replacement<Q>, ReplaceError> {
        let generation = qp.next_generation(rail)?;
        let place = self.look_up(qp, rail, place)?;
        let device = qp.devices[place.device];
        let refused = |source| qp.refused(rail, place, source);
        let queue_pair = self.devices.create_qp(device, self.cqs, qp.shape).map_err(refused)?;
        queue_pair.init(&place.port, &qp.options).map_err(refused)?;
        let address = RailAddress { psn: random_psn(), ..qp.rail_address(&place) };
        let qp_num = queue_pair.qp_num();
        let address = ReplacementAddress { rail, generation, qp_num, address };
        Ok(Replacement { queue_pair, place, address })
    }
}

/// Begins to connect a queue pair with the peer's.
pub(super) fn begin_to_join<Q: Connect>(
    qp: &EndpointQp<Q>,
    own: Replacement<Q>,
    peer: &ReplacementAddress,
) -> Result<Joining<Q>, ReplaceError> {
    qp.fits(&own.address, peer)?;
    let Replacement { queue_pair, place, address } = own;
    let (peer, options) = (*peer, qp.options);
    let connecting = queue_pair.connect_aside(move |queue_pair| {
        let local = (queue_pair, &place.port, &address.address);
        join(local, peer.qp_num, &peer.address, &options)
    });
    Ok(Joining { connecting, place, address })
}

/// Puts a connected queue pair in its rail's place.
pub(super) fn put_in_place<Q, C, const ROUTES: usize>(
    cq: &mut VirtualCq<C, MAX_DEVICES, ROUTES>,
    index: u16,
    qp: &mut EndpointQp<Q>,
    connected: Connected<Q>,
) -> Result<(), ReplaceError>
where
    Q: Connect,
    C: CompletionQueue,
{
    let Connected { queue_pair, place, address } = connected;
    let ReplacementAddress { rail, generation, .. } = address;
    let replaced = qp.qp.replace_rail(cq, index, rail, generation, queue_pair);
    let old = replaced.map_err(|Rejected { error, .. }| error)?;
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
    /// Of the next queue pair in the place of a rail that can be given one.
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

    /// Where a rail's queue pair may be, the best first: where the first one was. What requests wait for,
    /// rail 0 and the notify queue pair, may be on another rail's device too, if the peer has as many devices.
    pub(super) fn candidates(&self, rail: RailId) -> Result<Vec<Place>, ReplaceError> {
        let home = *self.home_of(rail).ok_or(virtual_qp::ReplaceError::NoRail(rail))?;
        let mut candidates = vec![home];
        // Keys are there for the devices that meet at first.
        if can_move(rail) && self.far_devices.is_empty() {
            for place in &self.homes {
                if candidates.iter().all(|known| known.device != place.device) {
                    candidates.push(*place);
                }
            }
        }
        Ok(candidates)
    }

    /// Where a rail's queue pair may be on the device in this place.
    pub(super) fn candidate_on(&self, rail: RailId, device: usize) -> Result<Place, ReplaceError> {
        let candidates = self.candidates(rail)?;
        let here = candidates.first().map_or(0, |home| home.device as u8);
        let goes_with = |place: &Place| usize::from(self.far_device(rail, place.device as u8));
        let place = candidates.into_iter().find(|place| goes_with(place) == device);
        place.ok_or(RailMismatch::Devices { rail, here, peer: device as u8 }.into())
    }

    /// Where a rail's first queue pair was.
    pub(super) fn home_of(&self, rail: RailId) -> Option<&Place> {
        self.homes.get(self.position(rail)?)
    }

    /// Where a rail's queue pair is.
    pub(super) fn place_of(&self, rail: RailId) -> Option<&Place> {
        self.places.get(self.position(rail)?)
    }

    /// Its place among the queue pairs.
    pub(super) fn position(&self, rail: RailId) -> Option<usize> {
        match rail {
            RailId::Data(number) => Some(number.into()).filter(|at| *at < self.qp.rails().len()),
            RailId::Notify => Some(self.qp.rails().len()),
        }
    }

    /// Whether a queue pair of this side is still wanted, and goes with the peer's.
    fn fits(
        &self,
        own: &ReplacementAddress,
        peer: &ReplacementAddress,
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

    pub(super) fn refused(&self, rail: RailId, place: Place, source: DeviceError) -> ReplaceError {
        ReplaceError::Device { rail, device: self.device_at(place.device), source }
    }
}
