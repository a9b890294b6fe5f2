//! How the rails of a virtual queue pair are repaired: what [repair](crate::heal) needs from it.

use super::cancel::awaits_fence;
use super::devices::Devices;
use super::make::rail_choice;
use super::place::{RAIL_IDS, rail_ids, rail_index};
use super::qp::{EndpointQp, GivenUp};
use super::replace::{ReplaceError, can_move, put_in_place};
use super::service::Carrying;
use super::sizes::{EngineQp, MAX_DEVICES};
use super::weights::Weights;
use crate::backend::{
    Connect, ConnectOptions, Connecting, DeviceError, DeviceEvent, EventCursor, Port,
};
use crate::heal::{
    Carried, Detected, Passed, Proof, RepairStep, Repaired, ReplacementAddress, Waiting,
};
use crate::queue_pair::{Place, RailAddress};
use crate::trace;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{ControlError, ControlMessage, QpState, RailId, RailState, Scheme};
use std::error::Error;
use std::time::{Duration, Instant};

/// The completion queues of the owner of a virtual queue pair, where it is attached as `index`, and
/// the devices.
pub(super) struct Owner<'o, Q, C, const ROUTES: usize> {
    pub(super) cq: &'o mut VirtualCq<C, MAX_DEVICES, ROUTES>,
    pub(super) index: u16,
    pub(super) devices: &'o Devices<Q, C>,
}

/// A virtual queue pair and its owner.
struct Owned<'o, Q, C, const ROUTES: usize> {
    qp: &'o mut EndpointQp<Q>,
    owner: Owner<'o, Q, C, ROUTES>,
}

impl<Q: Connect> EndpointQp<Q> {
    /// Runs a repair step, if its rails are re-routed.
    pub(super) fn heal<C: CompletionQueue, const ROUTES: usize>(
        &mut self,
        owner: Owner<'_, Q, C, ROUTES>,
        now: Instant,
    ) {
        let Some(mut healer) = self.healer.take() else { return };
        RepairStep { end: Owned { qp: self, owner }, healer: &mut healer, now }.run();
        self.healer = Some(healer);
    }
}

impl<Q, C, const ROUTES: usize> Owned<'_, Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    fn rail_state(&self, rail: RailId) -> Option<RailState> {
        self.qp.qp.rail_state(rail)
    }

    fn is_out(&self, rail: RailId) -> bool {
        self.rail_state(rail).is_some_and(|state| state != RailState::InService)
    }

    /// How many data rails would be in service without this one, as the engine counts them.
    fn left_without(&self, rail: RailId) -> usize {
        self.qp.qp.rails_in_service().filter(|other| *other != rail).count()
    }

    fn min_rails(&self) -> usize {
        self.qp.qp.config().min_rails.into()
    }

    /// Lets the weights of rails follow the rate of a port.
    fn weigh(&mut self, device: usize, port: u8, mbps: u32) {
        let EndpointQp { qp, weights: Some(weights), .. } = &mut *self.qp else { return };
        weights.note((device, port), mbps);
        set_weights(qp, weights);
    }
}

/// Lets a virtual queue pair choose rails by these weights.
fn set_weights<Q: Connect>(qp: &mut EngineQp<Q>, weights: &Weights) {
    let choice = rail_choice(weights, qp.config());
    if qp.config().rail_choice != choice {
        let set = qp.set_rail_choice(choice);
        debug_assert_eq!(set, Ok(()), "no weight is 0");
    }
}

impl<Q, C, const ROUTES: usize> Repaired<RAIL_IDS> for Owned<'_, Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    type Rail = RailId;
    type Qp = Q;
    type Error = ReplaceError;

    fn rails() -> impl Iterator<Item = RailId> {
        rail_ids()
    }

    fn index(rail: RailId) -> Option<usize> {
        rail_index(rail)
    }

    fn named_by_peer(rail: RailId) -> RailId {
        rail
    }

    fn offers(&self, _: RailId) -> bool {
        self.qp.offers
    }

    fn is_connected(&self) -> bool {
        self.qp.joined.is_over()
    }

    fn is_whole(&self) -> bool {
        self.qp.state() == QpState::Ready && !self.qp.is_taking_back()
    }

    fn has_failed(&self) -> bool {
        self.qp.state() == QpState::Error
    }

    fn state(&self, rail: RailId) -> Option<(RailState, u16)> {
        self.rail_state(rail).zip(self.qp.qp.rail_generation(rail))
    }

    fn is_out_on_purpose(&self, rail: RailId) -> bool {
        self.qp.qp.is_out_on_purpose(rail)
    }

    fn carried(&self, rail: RailId) -> Carried {
        let counters = self.qp.qp.counters(rail).unwrap_or_default();
        let completed = counters.completions.saturating_sub(counters.errors);
        let acknowledged = self.qp.qp.acknowledged(rail);
        Carried { posted: counters.send_requests, completed, acknowledged }
    }

    fn place(&self, rail: RailId) -> Option<Place> {
        self.qp.place_of(rail).copied()
    }

    fn home(&self, rail: RailId) -> Option<Place> {
        self.qp.home_of(rail).copied()
    }

    fn can_move(&self, rail: RailId) -> bool {
        can_move(rail)
    }

    fn is_needed(&self, rail: RailId) -> bool {
        // Fragments would wait, even if the endpoint does not fail.
        let is_last = || {
            matches!(rail, RailId::Data(_))
                && self.qp.qp.rails().len() > 1
                && self.left_without(rail) == 0
        };
        !self.is_out(rail) && (self.fails_without(rail) || is_last())
    }

    fn stalled(&mut self) -> [bool; RAIL_IDS] {
        let stalled = self.qp.check_stalled();
        let mut each = [false; RAIL_IDS];
        for (rail, each) in rail_ids().zip(&mut each) {
            *each = stalled.contains(rail);
        }
        each
    }

    /// A SEND, a notification and a fragment of DQPLB wait until the peer posts a receive.
    fn peer_may_be_late(&self, rail: RailId) -> bool {
        self.qp.qp.may_wait_for_receive(rail)
    }

    fn fails_without(&self, rail: RailId) -> bool {
        self.left_without(rail) < self.min_rails()
    }

    fn has_requests_without_receive(&self) -> bool {
        self.qp.qp.has_requests_without_receive()
    }

    fn waiting(&self, proof: impl Fn(RailId) -> Proof) -> Waiting<RAIL_IDS> {
        // A fence on purpose is no failure, and has a limit of its own.
        let is_out = |rail| self.is_out(rail) && !self.qp.awaits_fence_on_purpose(rail);
        let is_late = |rail| is_out(rail) || proof(rail) != Proof::Given;
        let may_wait =
            |rail| self.qp.qp.has_sends_in_flight(rail) && proof(rail) != Proof::Doubtful;
        let is_good = |rail: RailId| {
            let is_in_service = self.rail_state(rail) == Some(RailState::InService);
            matches!(rail, RailId::Data(_)) && is_in_service && proof(rail) != Proof::Doubtful
        };
        let (mut unfenced, mut on_purpose) = ([false; RAIL_IDS], [false; RAIL_IDS]);
        for (at, rail) in rail_ids().enumerate() {
            unfenced[at] = self.rail_state(rail).is_some_and(awaits_fence);
            on_purpose[at] = self.qp.awaits_fence_on_purpose(rail);
        }
        Waiting {
            is_waiting: self.qp.qp.unreported_sends() > 0 && rail_ids().any(is_late),
            waits_for_peer: rail_ids().any(may_wait),
            has_good_rail: rail_ids().any(is_good),
            acknowledged: rail_ids().map(|rail| self.qp.qp.acknowledged(rail)).sum(),
            unfenced,
            on_purpose,
        }
    }

    fn next_control(&mut self) -> Option<ControlMessage> {
        self.qp.qp.next_control()
    }

    fn control(&mut self, message: ControlMessage) -> Result<(), ControlError> {
        self.qp.qp.control(message)
    }

    fn control_lost(&mut self) {
        self.qp.qp.control_lost();
    }

    fn fail_rail(&mut self, rail: RailId, detected: Detected) {
        if self.qp.fail_rail(rail) {
            self.qp.log.note_detected(rail, detected);
        }
    }

    fn fence_cancelled(&mut self, now: Instant) {
        self.qp.fence_cancelled(now);
    }

    fn end_fence_on_purpose(&mut self, place: usize, waited: Duration) -> bool {
        let Some(rail) = rail_ids().nth(place) else { return false };
        if !self.qp.awaits_fence_on_purpose(rail) {
            return false;
        }
        if !self.is_out(rail) {
            self.fail_rail(rail, Detected::NotFenced(waited));
            return true;
        }
        // What waits for its fence fails, and says why. Otherwise the rail counts as failed.
        self.qp.qp.unreported_sends() == 0 && self.qp.qp.fail_rail(rail)
    }

    fn note_detected(&mut self, rail: RailId, detected: Detected) {
        self.qp.log.note_detected(rail, detected);
    }

    fn device_gone(&mut self, device: usize) {
        self.qp.lose_gone_rails();
        for rail in rail_ids() {
            if self.qp.place_of(rail).is_some_and(|place| place.device == device) {
                self.fail_rail(rail, Detected::DeviceGone);
            }
        }
    }

    fn lose_gone_rails(&mut self) {
        self.qp.lose_gone_rails();
    }

    fn give_up(&mut self, passed: Passed) {
        let out_of_service = rail_ids().filter(|rail| self.is_out(*rail)).collect();
        self.qp.fail();
        // The rails through which the peer's memory may still be written.
        let unfenced = self.qp.qp.unfenced();
        self.qp.given_up = Some(match passed {
            Passed::Fence { place, limit: waited } => {
                let rail = rail_ids().nth(place).unwrap_or(RailId::Notify);
                GivenUp::NoFence { rail, waited, unfenced }
            }
            Passed::Rails { limit: waited } => {
                GivenUp::NotHealed { out_of_service, waited, unfenced }
            }
        });
    }

    fn log_rail_events(&mut self, now: Instant) {
        self.qp.log_rail_events(now);
    }

    fn next_event(&self, device: usize, cursor: &mut EventCursor) -> Option<DeviceEvent> {
        self.owner.devices.next_event(self.qp.devices[device], cursor)
    }

    fn port(&self, device: usize, number: u8) -> Result<Port, DeviceError> {
        self.owner.devices.port(self.qp.devices[device], number)
    }

    fn measure(&mut self, now: Instant) {
        let EndpointQp { qp, weights: Some(weights), .. } = &mut *self.qp else { return };
        if !weights.is_look_due(now) {
            return;
        }
        let has_changed = weights.look(now, |rail| {
            let rail = RailId::Data(rail);
            qp.rail_state(rail).filter(|state| *state == RailState::InService)?;
            let in_flight = qp.bytes_in_flight(rail);
            let completed = qp.counters(rail)?.bytes.saturating_sub(in_flight);
            // SENDs and notifications wait for receives of the peer. All rails of DQPLB do.
            let is_held = qp.config().scheme == Scheme::Spray && qp.may_wait_for_receive(rail);
            Some(Carrying { completed, in_flight, is_held })
        });
        if has_changed {
            set_weights(qp, weights);
        }
    }

    fn follows_rates_of(&self, device: usize) -> bool {
        self.qp.weights.as_ref().is_some_and(|weights| weights.follows_rates_of(device))
    }

    fn read_rate(&mut self, device: usize, number: u8) {
        if self.follows_rates_of(device)
            && let Ok((_, mbps)) = self.owner.devices.port_mbps(self.qp.devices[device], number)
        {
            self.weigh(device, number, mbps);
        }
    }

    fn note_rate(&mut self, device: usize, number: u8) {
        let known = self.owner.devices.port_mbps(self.qp.devices[device], number);
        if let Ok((name, mbps)) = known {
            trace::port_speed(self.qp.qp.virtual_qp_num(), name, number, mbps);
            self.weigh(device, number, mbps);
        }
    }

    fn options(&self) -> ConnectOptions {
        self.qp.options
    }

    fn candidates(&self, rail: RailId) -> Vec<Place> {
        self.qp.candidates(rail)
    }

    fn place_for(&self, peer: &ReplacementAddress<RailId>) -> Result<Place, ReplaceError> {
        let ReplacementAddress { rail, generation, address, .. } = *peer;
        let here = self.qp.next_generation(rail)?;
        if here != generation {
            return Err(ReplaceError::Generation { rail, here, peer: generation });
        }
        self.qp.candidate_on(rail, address.device.into())
    }

    fn make(&self, _: RailId, place: &Place) -> Connecting<(Q, Port)> {
        let EndpointQp { devices, shape, options, .. } = &*self.qp;
        let Owner { cq, devices: known, .. } = &self.owner;
        known.make_aside(devices[place.device], cq.cqs(), *shape, place.port.number, *options)
    }

    fn check(
        &self,
        own: &ReplacementAddress<RailId>,
        peer: &ReplacementAddress<RailId>,
    ) -> Result<(), ReplaceError> {
        self.qp.fits(own, peer)
    }

    fn replace(
        &mut self,
        own: &ReplacementAddress<RailId>,
        place: Place,
        queue_pair: Q,
        _: &RailAddress,
    ) -> Result<(), ReplaceError> {
        let Owner { cq, index, .. } = &mut self.owner;
        put_in_place((cq, *index), self.qp, (own.rail, own.generation), place, queue_pair)?;
        let (device, port) = (place.device, place.port.number);
        // The port may have come up at another rate.
        self.read_rate(device, port);
        Ok(())
    }

    fn device_error(&self, rail: RailId, place: &Place, source: DeviceError) -> ReplaceError {
        ReplaceError::Device { rail, device: self.qp.device_at(place.device), source }
    }

    fn attempt_failed(&self, rail: RailId, error: &dyn Error) {
        trace::no_new_queue_pair(self.qp.qp.virtual_qp_num(), rail, error);
    }
}
