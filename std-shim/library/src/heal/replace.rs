//! New queue pairs for rails that are Down: one end offers, the other answers.
//!
//! The old queue pair is destroyed when the new one is in its place. Earlier, its number might be
//! assigned again.

use super::message::{HealingMessage, ReplacementAddress};
use super::new_queue_pair::{Joining, Making, NewQueuePair, Next, Step};
use super::repaired::{Detected, Repaired};
use super::step::RepairStep;
use crate::backend::{Connect, DeviceError, Port};
use crate::queue_pair::{Place, RailAddress, join, random_psn};
use polyrail_core::hardware::QueuePair;
use polyrail_core::virtual_qp::RailState;

impl<E: Repaired<RAILS>, const RAILS: usize> RepairStep<'_, E, RAILS> {
    /// Continues the repair of one rail, whatever its state is.
    pub(super) fn repair(&mut self, rail: E::Rail) {
        let Some((state, generation)) = self.end.state(rail) else { return };
        let (now, options) = (self.now, self.healer.options);
        let device = self.end.place(rail).map(|place| place.device);
        let carried = self.end.carried(rail);
        let on_purpose = self.end.is_out_on_purpose(rail);
        let next = (state == RailState::Down).then_some(generation.wrapping_add(1));
        let Some(repair) = self.repair_of(rail) else { return };
        match state {
            RailState::InService => repair.note_in_service(now),
            _ => repair.note_out(now, &options, device, carried, on_purpose),
        }
        if state == RailState::Down && !on_purpose {
            repair.note_down(now, &options, generation);
        }
        // The generation of these queue pairs has passed.
        let passed = repair.next.take_if(|own| Some(own.generation) != next);
        passed.into_iter().for_each(Next::abandon);
        self.advance(rail);
        // What advanced may be in the rail's place by now.
        let Some((state, generation)) = self.end.state(rail) else { return };
        let next = (state == RailState::Down).then_some(generation.wrapping_add(1));
        if self.end.offers(rail) {
            self.offer(rail, next);
        } else {
            self.answer(rail, state, generation);
        }
    }

    /// Takes a queue pair that is ready from one step to the next.
    fn advance(&mut self, rail: E::Rail) {
        let now = self.now;
        // Most devices create and connect queue pairs at once.
        while let Some(repair) = self.repair_of(rail) {
            let reach_within = repair.reach_within();
            let Some(next) = &mut repair.next else { return };
            let generation = next.generation;
            match &mut next.step {
                Step::Offered(_) => return,
                Step::Making(step) => {
                    let Some(made) = step.making.take() else { return };
                    if let Some(Step::Making(step)) = self.take_step(rail) {
                        self.made(rail, generation, step, made);
                    }
                }
                Step::Joining(step) => {
                    let Some(joined) = step.take_joined(now, reach_within) else { return };
                    if let Some(Step::Joining(step)) = self.take_step(rail) {
                        self.joined(rail, step, joined);
                    }
                }
            }
        }
    }

    fn take_step(&mut self, rail: E::Rail) -> Option<Step<E::Rail, E::Qp>> {
        Some(self.repair_of(rail)?.next.take()?.step)
    }

    fn set_step(&mut self, rail: E::Rail, generation: u16, step: Step<E::Rail, E::Qp>) {
        if let Some(repair) = self.repair_of(rail) {
            repair.next = Some(Next { generation, step });
        }
    }

    fn attempt_failed(&mut self, rail: E::Rail, error: &E::Error) {
        self.end.attempt_failed(rail, error);
        let (now, options) = (self.now, self.healer.options);
        if let Some(repair) = self.repair_of(rail) {
            repair.attempt_failed(now, &options);
        }
    }

    /// Informs the peer that its queue pair has no other end.
    fn refuse(&mut self, rail: E::Rail, generation: u16) {
        self.send(HealingMessage::Refused { rail, generation });
    }

    /// Begins to create a queue pair for the peer, if that is due.
    fn offer(&mut self, rail: E::Rail, next: Option<u16>) {
        let (now, options) = (self.now, self.healer.options);
        let (can_move, has_room) = (self.end.can_move(rail), self.healer.link.has_room());
        let Some(generation) = next else { return };
        let Some(repair) = self.repair_of(rail) else { return };
        if repair.next.is_some() || !repair.is_due(now, &options, can_move) || !has_room {
            return;
        }
        repair.begin_attempt(now, &options);
        let may_move = repair.may_move(now, &options);
        let mut places = self.end.candidates(rail);
        let Some(repair) = self.repair_of(rail) else { return };
        if !may_move {
            places.truncate(1);
        }
        // Devices that carried nothing come last; the other ones keep their order. Each time that
        // the peer had no queue pair for a place, the next place is first.
        places.sort_by_key(|place| repair.is_barren(place.device));
        let first = repair.refusals % places.len().max(1);
        places.rotate_left(first);
        places.reverse();
        if let Some(place) = places.pop() {
            let making = self.end.make(rail, &place);
            let making = Making { making, place, others: places, first: None, answers: None };
            self.set_step(rail, generation, Step::Making(making));
            self.advance(rail);
        }
    }

    /// Offers or connects a queue pair that was being created.
    fn made(
        &mut self,
        rail: E::Rail,
        generation: u16,
        step: Making<E::Rail, E::Qp>,
        made: Result<(E::Qp, Port), DeviceError>,
    ) {
        let Making { place, mut others, first, answers, .. } = step;
        let made = made.and_then(|(queue_pair, port)| Ok((queue_pair, port, random_psn()?)));
        let (queue_pair, port, psn) = match made {
            Ok(made) => made,
            Err(error) => {
                let first = first.unwrap_or((place, error));
                if let Some(place) = others.pop() {
                    let making = self.end.make(rail, &place);
                    let making = Making { making, place, others, first: Some(first), answers };
                    return self.set_step(rail, generation, Step::Making(making));
                }
                let (place, error) = first;
                let error = self.end.device_error(rail, &place, error);
                self.attempt_failed(rail, &error);
                if answers.is_some() {
                    self.refuse(rail, generation);
                }
                return;
            }
        };
        let place = Place { port, ..place };
        let address =
            RailAddress::new(&queue_pair, (place.device, &port), psn, &self.end.options());
        let own = NewQueuePair { queue_pair, place, address };
        if let Some(peer) = answers {
            return self.begin_to_join(rail, own, &peer, Some(peer.qp_num));
        }
        let qp_num = own.queue_pair.qp_num();
        self.send(HealingMessage::Offer(ReplacementAddress { rail, generation, qp_num, address }));
        // The offer stays until the peer answers or refuses, or the link breaks. If it were
        // withdrawn after some time, a late answer could meet another queue pair of the same
        // number.
        self.set_step(rail, generation, Step::Offered(own));
    }

    /// Keeps the peer's offer, which is answered once the rail is Down here, too.
    pub(super) fn offered(&mut self, peer: ReplacementAddress<E::Rail>) {
        let ReplacementAddress { rail, generation, .. } = peer;
        let can_answer = self.end.state(rail).is_some() && !self.end.offers(rail);
        match self.repair_of(rail).filter(|_| can_answer) {
            Some(repair) => repair.asked = Some(peer),
            None => self.refuse(rail, generation),
        }
    }

    /// Begins to create the other end of the queue pair that the peer offered, if it can be
    /// answered now.
    fn answer(&mut self, rail: E::Rail, state: RailState, generation: u16) {
        let next = generation.wrapping_add(1);
        let Some(repair) = self.repair_of(rail) else { return };
        let Some(peer) = repair.asked else { return };
        let is_early = matches!(state, RailState::Draining | RailState::Fenced);
        if (is_early && peer.generation == next) || repair.next.is_some() {
            return;
        }
        repair.asked = None;
        match self.end.place_for(&peer) {
            Ok(place) if self.turns_down(rail, place.device) => self.refuse(rail, peer.generation),
            Ok(place) => {
                let making = self.end.make(rail, &place);
                let (others, answers) = (Vec::new(), Some(peer));
                let making = Making { making, place, others, first: None, answers };
                self.set_step(rail, peer.generation, Step::Making(making));
                self.advance(rail);
            }
            Err(error) => {
                self.attempt_failed(rail, &error);
                self.refuse(rail, peer.generation);
            }
        }
    }

    /// Whether the rail carried nothing on this device, so that the peer is to offer another one.
    fn turns_down(&mut self, rail: E::Rail, device: usize) -> bool {
        let has_others = self.end.candidates(rail).len() > 1;
        let repair = self.repair_of(rail).filter(|_| has_others);
        repair.is_some_and(|repair| repair.turns_down(device))
    }

    /// Begins to connect a queue pair with the peer's. `answers` is the number of the peer's queue
    /// pair if it is answered then.
    fn begin_to_join(
        &mut self,
        rail: E::Rail,
        own: NewQueuePair<E::Qp>,
        peer: &ReplacementAddress<E::Rail>,
        answers: Option<u32>,
    ) {
        let NewQueuePair { queue_pair, place, address } = own;
        let (generation, qp_num) = (peer.generation, queue_pair.qp_num());
        let own = ReplacementAddress { rail, generation, qp_num, address };
        if let Err(error) = self.end.check(&own, peer) {
            queue_pair.retire();
            self.attempt_failed(rail, &error);
            return self.refuse(rail, generation);
        }
        let local = (&queue_pair, &place.port, &own.address);
        let connecting = join(local, peer.qp_num, &peer.address, &self.end.options());
        let (peer, ready_at) = (peer.address, None);
        let step = Joining { connecting, queue_pair, place, own, peer, answers, ready_at };
        self.set_step(rail, generation, Step::Joining(step));
    }

    /// Puts a connected queue pair in the rail's place.
    fn joined(
        &mut self,
        rail: E::Rail,
        step: Joining<E::Rail, E::Qp>,
        joined: Result<(), DeviceError>,
    ) {
        let Joining { queue_pair, place, own, peer, answers, .. } = step;
        let failure = match joined {
            Ok(()) => None,
            Err(DeviceError::NotReached { within }) => Some(Detected::NotReached(within)),
            Err(_) => Some(Detected::NotConnected),
        };
        let replaced = match joined {
            Ok(()) => self.end.replace(&own, place, queue_pair, &peer),
            Err(source) => {
                queue_pair.retire();
                Err(self.end.device_error(rail, &place, source))
            }
        };
        if let Some(repair) = self.repair_of(rail).filter(|_| replaced.is_ok()) {
            repair.note_placed(own.generation);
        }
        match (replaced, answers) {
            (Ok(()), Some(to)) => self.send(HealingMessage::Answer { to, with: own }),
            (Ok(()), None) => {}
            (Err(error), Some(_)) => {
                self.attempt_failed(rail, &error);
                self.refuse(rail, own.generation);
            }
            (Err(error), None) => {
                self.end.attempt_failed(rail, &error);
                // The peer fails its queue pair when it is refused, and reports that.
                failure.into_iter().for_each(|failure| self.end.note_detected(rail, failure));
                let (now, options) = (self.now, self.healer.options);
                if let Some(repair) = self.repair_of(rail) {
                    if let Some(Detected::NotReached(_)) = failure {
                        repair.not_reached();
                    }
                    // The next offer is for another place, as after a refusal of the peer.
                    repair.refused(now, &options);
                }
                self.refuse(rail, own.generation);
            }
        }
    }

    /// Connects the queue pair that was offered, because the peer's is in its place.
    pub(super) fn answered(&mut self, to: u32, peer: &ReplacementAddress<E::Rail>) {
        let ReplacementAddress { rail, generation, .. } = *peer;
        let own = self.repair_of(rail).and_then(|repair| repair.take_offered(generation, to));
        let Some(own) = own else { return self.refuse(rail, generation) };
        self.begin_to_join(rail, own, peer, None);
        self.advance(rail);
    }

    /// Abandons the queue pair that the peer refuses.
    pub(super) fn refused(&mut self, rail: E::Rail, generation: u16) {
        let (now, options, offers) = (self.now, self.healer.options, self.end.offers(rail));
        let Some(repair) = self.repair_of(rail) else { return };
        let is_refused = |next: &mut Next<E::Rail, E::Qp>| {
            offers && next.generation == generation && !matches!(next.step, Step::Making(_))
        };
        let refused = repair.next.take_if(is_refused);
        if let Some(refused) = refused {
            refused.abandon();
            repair.refused(now, &options);
        }
        if self.end.state(rail) == Some((RailState::Joining, generation)) {
            self.end.fail_rail(rail, Detected::NoOtherEnd);
        }
    }
}
