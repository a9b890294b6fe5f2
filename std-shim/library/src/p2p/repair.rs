//! How the queue pairs of both directions are repaired: what [repair](crate::heal) needs from a
//! message endpoint.

use super::make::split_policy;
use super::member::P2pMember;
use super::message::{End, EndControl, HealingLink, QueuePairId};
use super::shared::Shared;
use super::sizes::{EngineSender, QUEUE_PAIRS, RAILS};
use crate::backend::{
    Connect, ConnectOptions, Connecting, DeviceError, DeviceEvent, Domain, EventCursor, Port,
};
use crate::endpoint::Carrying;
use crate::heal::{
    Carried, Detected, Look, Passed, Proof, RepairStep, Repaired, ReplacementAddress, Waiting,
};
use crate::queue_pair::{Place, RailAddress};
use crate::trace::{self, MessageEnd};
use polyrail_core::p2p::ConnectionEnd;
use polyrail_core::virtual_qp::{ControlError, MAX_RAILS, RailState, Rejected, ReplaceError};
use std::error::Error;
use std::time::{Duration, Instant};

/// A member and what it shares with others.
struct Owned<'o, D: Domain, const ROUTES: usize> {
    member: &'o mut P2pMember<D>,
    shared: &'o mut Shared<D, ROUTES>,
}

/// A queue pair was not replaced.
#[derive(Debug, thiserror::Error)]
enum NoQueuePair {
    /// A device cannot create or connect one.
    #[error(transparent)]
    Device(DeviceError),
    /// The engine refuses it.
    #[error(transparent)]
    Engine(#[from] ReplaceError),
    /// The peer offered a queue pair for another generation, or the old one is not Down here.
    #[error(
        "generation {offered} is offered, but the queue pair here is {state:?} in generation {generation}"
    )]
    Generation { offered: u16, state: RailState, generation: u16 },
    /// The end has failed.
    #[error("the end that it belongs to has failed")]
    Failed,
    /// The member lacks this end.
    #[error("there is no such queue pair here")]
    NoEnd,
}

impl<D: Domain> P2pMember<D> {
    /// Returns the link that carries repair messages to the peer's endpoint and from it, if rails
    /// are re-routed. The owner carries them unless [`connect_endpoints`](super::connect_endpoints)
    /// has connected the two endpoints.
    pub fn healing_link(&self) -> Option<HealingLink> {
        self.healer.as_ref().map(|healer| healer.link().clone())
    }

    /// Whether the next repair step can handle repair messages of the peer.
    pub(crate) fn has_messages(&self) -> bool {
        let healer = self.healer.as_ref().filter(|_| self.joined.is_over());
        healer.is_some_and(|healer| healer.link().can_handle())
    }

    /// Runs a repair step.
    #[cold]
    pub(super) fn heal<const ROUTES: usize>(&mut self, shared: &mut Shared<D, ROUTES>) {
        let Some(mut healer) = self.healer.take() else { return };
        let end = Owned { member: self, shared };
        RepairStep { end, healer: &mut healer, now: Instant::now() }.run();
        self.healer = Some(healer);
    }

    fn next_control(&mut self) -> Option<EndControl> {
        let Self { sender, receiver, .. } = self;
        let sent = sender.as_mut().and_then(|sender| sender.next_control());
        if let Some(control) = sent {
            return Some(EndControl { from: End::Sender, control });
        }
        let control = receiver.as_mut()?.next_control()?;
        Some(EndControl { from: End::Receiver, control })
    }

    /// Fails a queue pair. Returns whether it was there and had not failed yet.
    pub(super) fn fail_queue_pair(&mut self, QueuePairId { end, index }: QueuePairId) -> bool {
        let Self { sender, receiver, .. } = self;
        let index = usize::from(index);
        match end {
            End::Sender => sender.as_mut().is_some_and(|sender| sender.fail_queue_pair(index)),
            End::Receiver => receiver.as_mut().is_some_and(|each| each.fail_queue_pair(index)),
        }
    }

    /// Finds the receiver's queue pairs whose oldest request is the same as at the last call. Those
    /// for flushes are stopped after the time after which a rail fails. They are not rails, because
    /// they are never replaced.
    fn check_receiver(&mut self, stalled: &mut [bool]) {
        let Some(receiver) = &mut self.receiver else { return };
        let others = receiver.queue_pairs().len();
        let mut flushes = [Look { is_stalled: false, peer_is_alive: true }; MAX_RAILS];
        receiver.check_stalled(|place| match place.checked_sub(others) {
            None => stalled[place] = true,
            // Queue pairs for flushes are counted behind the others.
            Some(at) => flushes[at].is_stalled = true,
        });
        for at in self.flush_silence.look(flushes) {
            receiver.fail_queue_pair(others + at);
        }
    }

    /// Loses the queue pairs of a device that is gone, if it is known that the device accesses no
    /// memory.
    fn lose_on(&mut self, device: usize) {
        let on_it = |at: &usize| self.places[*at].device == device;
        let places: Vec<usize> = (0..self.places.len()).filter(on_it).collect();
        let is_gone = |qp: Option<&D::Qp>| qp.is_some_and(|qp| qp.gone().is_some());
        let Self { sender, receiver, .. } = self;
        if let Some(sender) = sender {
            for &place in &places {
                if is_gone(sender.queue_pairs().nth(place)) {
                    // SAFETY: `gone` is the proof that the device accesses no memory any more.
                    unsafe { sender.lose_queue_pair(place) };
                }
            }
        }
        if let Some(receiver) = receiver {
            for &place in &places {
                if is_gone(receiver.queue_pairs().nth(place)) {
                    // SAFETY: `gone` is the proof that the device accesses no memory any more.
                    unsafe { receiver.lose_queue_pair(place) };
                }
            }
            // Queue pairs for flushes are counted behind the others.
            let others = receiver.queue_pairs().len();
            let flushes = receiver.flush_queue_pairs().len();
            for at in 0..flushes {
                if is_gone(receiver.flush_queue_pairs().nth(at)) {
                    // SAFETY: `gone` is the proof that the device accesses no memory any more.
                    unsafe { receiver.lose_queue_pair(others + at) };
                }
            }
        }
    }
}

impl<D: Domain, const ROUTES: usize> Owned<'_, D, ROUTES> {
    fn is_failed(&self, end: End) -> bool {
        self.member.failure_of(end).is_some()
    }

    /// Lets the weights of rails follow the rate of a port.
    fn weigh(&mut self, device: usize, port: u8, mbps: u32) {
        let P2pMember { sender: Some(sender), weights: Some(weights), .. } = &mut *self.member
        else {
            return;
        };
        weights.note((device, port), mbps);
        let split = split_policy(weights, sender.config().standby);
        sender.set_split(split);
    }
}

impl<D: Domain, const ROUTES: usize> Repaired<RAILS> for Owned<'_, D, ROUTES> {
    type Rail = QueuePairId;
    type Qp = D::Qp;
    type Error = NoQueuePair;

    fn rails() -> impl Iterator<Item = QueuePairId> {
        let of = |end| (0..QUEUE_PAIRS as u8).map(move |index| QueuePairId { end, index });
        of(End::Sender).chain(of(End::Receiver))
    }

    fn index(rail: QueuePairId) -> Option<usize> {
        rail.place()
    }

    fn named_by_peer(QueuePairId { end, index }: QueuePairId) -> QueuePairId {
        QueuePairId { end: end.of_peer(), index }
    }

    fn offers(&self, rail: QueuePairId) -> bool {
        rail.end == End::Sender
    }

    fn is_connected(&self) -> bool {
        self.member.joined.is_over()
    }

    fn is_whole(&self) -> bool {
        !self.member.is_taking_back()
            && !self.is_failed(End::Sender)
            && !self.is_failed(End::Receiver)
            && Self::rails()
                .all(|rail| self.state(rail).is_none_or(|(state, _)| state == RailState::InService))
    }

    fn has_failed(&self) -> bool {
        let P2pMember { sender, receiver, .. } = &*self.member;
        (sender.is_none() || self.is_failed(End::Sender))
            && (receiver.is_none() || self.is_failed(End::Receiver))
    }

    fn state(&self, QueuePairId { end, index }: QueuePairId) -> Option<(RailState, u16)> {
        self.member.queue_pair_state(end, index.into())
    }

    fn is_out_on_purpose(&self, QueuePairId { end, index }: QueuePairId) -> bool {
        let P2pMember { sender, receiver, .. } = &*self.member;
        let place = index.into();
        match end {
            End::Sender => sender.as_ref().is_some_and(|sender| sender.is_out_on_purpose(place)),
            End::Receiver => receiver.as_ref().is_some_and(|each| each.is_out_on_purpose(place)),
        }
    }

    fn carried(&self, QueuePairId { end, index }: QueuePairId) -> Carried {
        let counters = self.member.queue_pair_counters(end, index.into());
        let counters = counters.unwrap_or_default();
        let completed = counters.completions.saturating_sub(counters.errors);
        Carried { posted: counters.send_requests, completed, acknowledged: completed }
    }

    fn place(&self, rail: QueuePairId) -> Option<Place> {
        self.member.places.get(usize::from(rail.index)).copied()
    }

    fn home(&self, rail: QueuePairId) -> Option<Place> {
        self.place(rail)
    }

    /// Messages wait for no particular rail.
    fn can_move(&self, _: QueuePairId) -> bool {
        false
    }

    fn is_needed(&self, _: QueuePairId) -> bool {
        true
    }

    fn stalled(&mut self) -> [bool; RAILS] {
        let mut stalled = [false; RAILS];
        let (sending, receiving) = stalled.split_at_mut(QUEUE_PAIRS);
        if let Some(sender) = &mut self.member.sender {
            sender.check_stalled(|place| sending[place] = true);
        }
        self.member.check_receiver(receiving);
        stalled
    }

    /// A message is only sent to a buffer that the peer has offered.
    fn peer_may_be_late(&self, _: QueuePairId) -> bool {
        false
    }

    /// Not asked for where the peer cannot be late.
    fn fails_without(&self, _: QueuePairId) -> bool {
        false
    }

    /// Not asked for where the peer cannot be late.
    fn has_requests_without_receive(&self) -> bool {
        false
    }

    /// Only messages that are sent wait, also those that no rail takes; a rail that returns and
    /// carries nothing is detected by what its failure reports as lost.
    fn waiting(&self, _: impl Fn(QueuePairId) -> Proof) -> Waiting<RAILS> {
        let (mut unfenced, mut on_purpose) = ([false; RAILS], [false; RAILS]);
        let (mut is_any_out, mut is_any_in_service) = (false, false);
        let sender = self.member.sender.as_deref().filter(|sender| sender.failure().is_none());
        for place in 0..QUEUE_PAIRS {
            let state = sender.and_then(|sender| sender.queue_pair_state(place));
            let Some((state, _)) = state else { break };
            let is_in_service = state == RailState::InService;
            unfenced[place] = matches!(state, RailState::Draining | RailState::Fenced);
            on_purpose[place] = self.member.awaits_fence_on_purpose(place);
            // A fence on purpose is no failure, and has a limit of its own.
            is_any_out |= !is_in_service && !on_purpose[place];
            is_any_in_service |= is_in_service;
        }
        let waits = |sender: &EngineSender<_>| sender.under_way() > 0 || sender.waits_for_rail();
        Waiting {
            is_waiting: is_any_out && sender.is_some_and(waits),
            // Rails in service send again what others lost.
            waits_for_peer: is_any_in_service,
            has_good_rail: is_any_in_service,
            acknowledged: if is_any_out { self.member.completed(End::Sender) } else { 0 },
            unfenced,
            on_purpose,
        }
    }

    fn next_control(&mut self) -> Option<EndControl> {
        self.member.next_control()
    }

    fn control(&mut self, EndControl { from, control }: EndControl) -> Result<(), ControlError> {
        match from {
            End::Sender => {
                let receiver = self.member.receiver.as_mut().ok_or(ControlError::OneWay)?;
                receiver.control(control)
            }
            End::Receiver => {
                let sender = self.member.sender.as_mut().ok_or(ControlError::OneWay)?;
                sender.control(control)
            }
        }
    }

    fn control_lost(&mut self) {
        let P2pMember { sender, receiver, .. } = &mut *self.member;
        sender.iter_mut().for_each(|sender| sender.control_lost());
        receiver.iter_mut().for_each(|receiver| receiver.control_lost());
    }

    fn fail_rail(&mut self, rail: QueuePairId, detected: Detected) {
        if self.member.fail_queue_pair(rail) {
            self.member.log.note_detected(rail, detected);
        }
    }

    fn fence_cancelled(&mut self, now: Instant) {
        self.member.fence_cancelled(now);
    }

    fn end_fence_on_purpose(&mut self, place: usize, waited: Duration) -> bool {
        let index = match u8::try_from(place) {
            // The receiver's queue pairs, which are behind the sender's, fence nothing by themselves.
            Ok(index) if place < QUEUE_PAIRS => index,
            _ => return false,
        };
        if !self.member.awaits_fence_on_purpose(place) {
            return false;
        }
        let rail = QueuePairId { end: End::Sender, index };
        if self.state(rail).is_some_and(|(state, _)| state == RailState::InService) {
            self.fail_rail(rail, Detected::NotFenced(waited));
            return true;
        }
        // What waits for its fence fails, and says why. Otherwise the queue pair counts as failed.
        let carries = self.member.sender.as_ref().is_some_and(|sender| sender.under_way() > 0);
        !carries && self.member.fail_queue_pair(rail)
    }

    fn note_detected(&mut self, rail: QueuePairId, detected: Detected) {
        self.member.log.note_detected(rail, detected);
    }

    fn device_gone(&mut self, device: usize) {
        for rail in Self::rails() {
            if self.place(rail).is_some_and(|place| place.device == device) {
                self.fail_rail(rail, Detected::DeviceGone);
            }
        }
        self.member.lose_on(device);
    }

    /// Nothing: a device that is gone is reported as an event.
    fn lose_gone_rails(&mut self) {}

    fn give_up(&mut self, passed: Passed) {
        let sender = self.member.sender.iter_mut();
        match passed {
            Passed::Fence { .. } => sender.for_each(|sender| sender.not_fenced()),
            Passed::Rails { .. } => sender.for_each(|sender| sender.not_healed()),
        }
    }

    fn log_rail_events(&mut self, _: Instant) {
        self.member.log_events();
    }

    fn next_event(&self, device: usize, cursor: &mut EventCursor) -> Option<DeviceEvent> {
        self.shared.domains[device].next_event(cursor)
    }

    fn port(&self, device: usize, number: u8) -> Result<Port, DeviceError> {
        self.shared.domains[device].port(number)
    }

    fn measure(&mut self, now: Instant) {
        let P2pMember { sender: Some(sender), weights: Some(weights), rails, .. } =
            &mut *self.member
        else {
            return;
        };
        if !weights.is_look_due(now) {
            return;
        }
        let rails = *rails;
        let has_changed = weights.look(now, |rail| {
            let first = Some(usize::from(rail)).filter(|rail| *rail < rails)?;
            let mut posted = 0u64;
            for place in (first..sender.queue_pairs().len()).step_by(rails) {
                // What one of a rail's queue pairs has lost was not carried.
                let (state, _) = sender.queue_pair_state(place)?;
                (state == RailState::InService).then_some(())?;
                posted = posted.wrapping_add(sender.counters(place)?.bytes);
            }
            let in_flight = sender.bytes_in_flight(rail);
            let completed = posted.saturating_sub(in_flight);
            // A message is only sent to a buffer that the peer has offered.
            Some(Carrying { completed, in_flight, is_held: false })
        });
        if has_changed {
            let split = split_policy(weights, sender.config().standby);
            sender.set_split(split);
        }
    }

    fn follows_rates_of(&self, device: usize) -> bool {
        self.member.weights.as_ref().is_some_and(|weights| weights.follows_rates_of(device))
    }

    fn read_rate(&mut self, device: usize, number: u8) {
        if self.follows_rates_of(device)
            && let Ok(mbps) = self.shared.domains[device].port_mbps(number)
        {
            self.weigh(device, number, mbps);
        }
    }

    fn note_rate(&mut self, device: usize, number: u8) {
        let domain = &self.shared.domains[device];
        if let Ok(mbps) = domain.port_mbps(number) {
            // Both ends use the port, and their events name the connection by the same number.
            let MessageEnd { qp, .. } = self.member.log.end(End::Sender);
            trace::port_speed(qp, domain.device_name(), number, mbps);
            self.weigh(device, number, mbps);
        }
    }

    fn options(&self) -> ConnectOptions {
        self.member.options
    }

    fn candidates(&self, rail: QueuePairId) -> Vec<Place> {
        // An end that has failed uses no new queue pair.
        self.place(rail).filter(|_| !self.is_failed(rail.end)).into_iter().collect()
    }

    fn place_for(&self, peer: &ReplacementAddress<QueuePairId>) -> Result<Place, NoQueuePair> {
        let ReplacementAddress { rail, generation: offered, .. } = *peer;
        let (state, generation) = self.state(rail).ok_or(NoQueuePair::NoEnd)?;
        if self.is_failed(rail.end) {
            return Err(NoQueuePair::Failed);
        }
        if state != RailState::Down || offered != generation.wrapping_add(1) {
            return Err(NoQueuePair::Generation { offered, state, generation });
        }
        self.place(rail).ok_or(NoQueuePair::NoEnd)
    }

    fn make(&self, rail: QueuePairId, place: &Place) -> Connecting<(D::Qp, Port)> {
        let Shared { cq, pools, domains, .. } = &*self.shared;
        let at = (&domains[place.device], place.port.number);
        let srq = (rail.end == End::Receiver).then(|| &pools.0[place.device].1);
        self.shared.shape().make_aside(at, cq.cqs(), srq)
    }

    fn check(
        &self,
        _: &ReplacementAddress<QueuePairId>,
        _: &ReplacementAddress<QueuePairId>,
    ) -> Result<(), NoQueuePair> {
        Ok(())
    }

    fn replace(
        &mut self,
        own: &ReplacementAddress<QueuePairId>,
        _: Place,
        queue_pair: D::Qp,
        peer: &RailAddress,
    ) -> Result<(), NoQueuePair> {
        let ReplacementAddress { rail: QueuePairId { end, index }, generation, .. } = *own;
        let (cq, place, device) = (&mut self.shared.cq, usize::from(index), peer.device);
        let (to_send, to_receive) = (self.member.sender_index(), self.member.receiver_index());
        let P2pMember { sender, receiver, .. } = &mut *self.member;
        let replaced = match end {
            End::Sender => sender.as_mut().map(|sender| {
                sender.replace_queue_pair((cq, to_send), place, generation, queue_pair, device)
            }),
            End::Receiver => receiver.as_mut().map(|receiver| {
                receiver.replace_queue_pair((cq, to_receive), place, generation, queue_pair, device)
            }),
        };
        match replaced.ok_or(NoQueuePair::NoEnd)? {
            Ok(old) => {
                old.retire();
                // The port may have come up at another rate.
                if let Some(Place { device, port }) = self.member.places.get(place).copied() {
                    self.read_rate(device, port.number);
                }
                Ok(())
            }
            Err(Rejected { error, queue_pair }) => {
                queue_pair.retire();
                Err(error.into())
            }
        }
    }

    fn device_error(&self, _: QueuePairId, _: &Place, source: DeviceError) -> NoQueuePair {
        NoQueuePair::Device(source)
    }

    fn attempt_failed(&self, QueuePairId { end, index }: QueuePairId, error: &dyn Error) {
        self.member.report_attempt(end, index.into(), error);
    }
}
