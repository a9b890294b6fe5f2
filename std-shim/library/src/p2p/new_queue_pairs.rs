//! New queue pairs in the places of those that failed.
//!
//! For each place the sending end makes a queue pair once its own is Down, and offers it; by then the receiving end's is
//! Down, too, or will be as soon as it has heard what was said before. That end makes the other queue pair, connects it,
//! puts it into place, and answers; the sending end does the same. Whoever cannot says so, and the engines go on to the
//! next generation.
//!
//! Where devices take their time to make and to connect queue pairs, nobody waits for them: what is under way is
//! looked at in later polls.

use super::address::QueuePairAddress;
use super::healer::{Answering, Care, Offering, Step};
use super::member::P2pMember;
use super::message::{End, P2pMessage};
use super::shared::Shared;
use crate::backend::{Connect, Connecting, DeviceError, Domain, Port};
use crate::endpoint::{RailAddress, join};
use polyrail_core::hardware::QueuePair;
use polyrail_core::p2p::ConnectionEnd;
use polyrail_core::virtual_qp::{RailState, Rejected};
use std::error::Error;
use std::time::Instant;

/// Both ends.
impl<D: Domain> P2pMember<D> {
    /// Goes on with the places that are Down.
    pub(super) fn renew<const ROUTES: usize>(
        &mut self,
        shared: &mut Shared<D, ROUTES>,
        now: Instant,
    ) {
        for place in 0..self.places.len() {
            self.answer(shared, place);
            self.join_offered(shared, place);
            self.offer(shared, place, now);
        }
    }

    fn care(&mut self, place: usize) -> Option<&mut Care<D::Qp>> {
        self.healer.as_mut()?.places.get_mut(place)
    }

    fn rail_address_on(&self, place: usize, port: &Port) -> RailAddress {
        RailAddress::new(self.places[place].device, port, self.psn, &self.options)
    }

    /// A new queue pair for a place of either end, on the place's port as that is now.
    fn make<T: Send + 'static, const ROUTES: usize>(
        &self,
        shared: &Shared<D, ROUTES>,
        (end, place): (End, usize),
        steps: impl FnOnce(&D::Qp, Port) -> Result<T, DeviceError> + Send + 'static,
    ) -> Connecting<(D::Qp, T)> {
        let Some(healer) = &self.healer else {
            return Connecting::done(Err(DeviceError::NoDevice));
        };
        let device = self.places[place].device;
        let at = (&healer.domains[device], self.places[place].port.number);
        let srq = (end == End::Receiver).then(|| &shared.pools.0[device].1);
        healer.shape.make_aside(at, shared.cq.cqs(), srq, steps)
    }

    /// There is no queue pair of this end that goes with the peer's.
    fn refuse(&mut self, from: End, place: usize, generation: u16) {
        self.tell(P2pMessage::Refused { from, place: place as u8, generation });
    }

    /// A queue pair of this end comes to nothing, and the peer's has no other end.
    fn give_up(&mut self, end: End, place: usize, generation: u16, error: &dyn Error) {
        self.tell_attempt(end, place, error);
        self.refuse(end, place, generation);
    }

    /// The peer has no queue pair for this place and generation.
    pub(super) fn refused(&mut self, from: End, place: u8, generation: u16) {
        let at = usize::from(place);
        match from {
            // The next attempt makes another offer.
            End::Receiver => {
                let is_it = |offering: &mut Offering<D::Qp>| offering.generation == generation;
                let refused = self.care(at).and_then(|care| care.offering.take_if(is_it));
                refused.into_iter().for_each(Offering::give_up);
            }
            // The one that is in place here has no other end.
            End::Sender => {
                let joining = Some((RailState::Joining, generation));
                if self.queue_pair_state(End::Receiver, at) == joining {
                    self.fail_place(End::Receiver, at);
                }
            }
        }
    }
}

/// The sending end.
impl<D: Domain> P2pMember<D> {
    /// Offers a queue pair for a place that is Down, if that is due.
    fn offer<const ROUTES: usize>(
        &mut self,
        shared: &Shared<D, ROUTES>,
        place: usize,
        now: Instant,
    ) {
        let Some((state, generation)) = self.queue_pair_state(End::Sender, place) else { return };
        let next = generation.wrapping_add(1);
        let Some(healer) = &mut self.healer else { return };
        let care = &mut healer.places[place];
        if state == RailState::InService && care.attempts.is_due(now) {
            // It works, and has for as long as the last interval: the next failure is another matter.
            care.attempts.hurry();
        }
        let is_down = state == RailState::Down;
        let is_over = |offering: &mut Offering<D::Qp>| {
            !is_down || offering.generation != next || offering.is_late(now)
        };
        care.offering.take_if(is_over).into_iter().for_each(Offering::give_up);
        if is_down && care.offering.is_none() && care.attempts.is_due(now) {
            // An offer that comes to nothing counts as well.
            care.attempts.failed(now, &healer.options);
            let making = self.make(shared, (End::Sender, place), |_, port| Ok(port));
            if let Some(care) = self.care(place) {
                care.offering = Some(Offering { generation: next, step: Step::Making(making) });
            }
        }
        self.offer_made(place, now);
    }

    /// Offers a queue pair that was being made, once it is.
    fn offer_made(&mut self, place: usize, now: Instant) {
        let Some(care) = self.care(place) else { return };
        let Some(Offering { generation, step: Step::Making(making) }) = &mut care.offering else {
            return;
        };
        let generation = *generation;
        let Some(made) = making.take() else { return };
        care.offering = None;
        let (queue_pair, port) = match made {
            Ok(made) => made,
            // The next attempt makes another.
            Err(error) => return self.tell_attempt(End::Sender, place, &error),
        };
        let address = self.rail_address_on(place, &port);
        let with = QueuePairAddress { qp_num: queue_pair.qp_num(), address };
        let step = Step::Offered { queue_pair, port, since: now };
        if let Some(care) = self.care(place) {
            care.offering = Some(Offering { generation, step });
        }
        self.tell(P2pMessage::Offer { place: place as u8, generation, with });
    }

    /// The peer's queue pair is in place, and waits for the one that was offered.
    pub(super) fn answered<const ROUTES: usize>(
        &mut self,
        shared: &mut Shared<D, ROUTES>,
        to: u32,
        place: u8,
        generation: u16,
        theirs: &QueuePairAddress,
    ) {
        let at = usize::from(place);
        let goes = |offering: &mut Offering<D::Qp>| {
            let Offering { generation: offered, step } = offering;
            *offered == generation
                && matches!(step, Step::Offered { queue_pair, .. } if queue_pair.qp_num() == to)
        };
        let taken = self.care(at).and_then(|care| care.offering.take_if(goes));
        let Some(Offering { step: Step::Offered { queue_pair, port, .. }, .. }) = taken else {
            return self.refuse(End::Sender, at, generation);
        };
        let own = self.rail_address_on(at, &port);
        let (theirs, options) = (*theirs, self.options);
        let joined = queue_pair.connect_aside(move |queue_pair| {
            join((queue_pair, &port, &own), theirs.qp_num, &theirs.address, &options)
        });
        let step = Step::Joining { joined, device: theirs.address.device };
        if let Some(care) = self.care(at) {
            care.offering = Some(Offering { generation, step });
        }
        // With most devices it is there already.
        self.join_offered(shared, at);
    }

    /// Puts a queue pair that was offered and answered into its place, once it is connected.
    fn join_offered<const ROUTES: usize>(&mut self, shared: &mut Shared<D, ROUTES>, place: usize) {
        let Some(care) = self.care(place) else { return };
        let Some(Offering { generation, step: Step::Joining { joined, device } }) =
            &mut care.offering
        else {
            return;
        };
        let (generation, device) = (*generation, *device);
        let Some(joined) = joined.take() else { return };
        care.offering = None;
        let at = (&mut shared.cq, self.sender_index());
        // Who has no sender offers nothing.
        let Some(sender) = &mut self.sender else { return };
        let old = match joined {
            Ok(queue_pair) => sender.replace_queue_pair(at, place, generation, queue_pair, device),
            Err(error) => return self.give_up(End::Sender, place, generation, &error),
        };
        match old {
            Ok(old) => old.retire(),
            Err(Rejected { error, queue_pair }) => {
                queue_pair.retire();
                self.give_up(End::Sender, place, generation, &error);
            }
        }
    }
}

/// The receiving end.
impl<D: Domain> P2pMember<D> {
    /// Whether its queue pair is in place, and it does not know yet that the peer's is.
    pub(super) fn is_joining(&self, place: usize) -> bool {
        let state = self.queue_pair_state(End::Receiver, place);
        state.is_some_and(|(state, _)| state == RailState::Joining)
    }

    /// Begins to make the other end of an offered queue pair, if there is to be one.
    pub(super) fn offered<const ROUTES: usize>(
        &mut self,
        shared: &mut Shared<D, ROUTES>,
        place: u8,
        generation: u16,
        theirs: QueuePairAddress,
    ) {
        let at = usize::from(place);
        let down = Some((RailState::Down, generation.wrapping_sub(1)));
        if self.queue_pair_state(End::Receiver, at) != down {
            return self.refuse(End::Receiver, at, generation);
        }
        let (device, psn, options) = (self.places[at].device, self.psn, self.options);
        let joined = self.make(shared, (End::Receiver, at), move |queue_pair, port| {
            let own = RailAddress::new(device, &port, psn, &options);
            join((queue_pair, &port, &own), theirs.qp_num, &theirs.address, &options)?;
            Ok(own)
        });
        if let Some(care) = self.care(at) {
            care.answering = Some(Answering { generation, joined, theirs });
        }
        // With most devices it is there already.
        self.answer(shared, at);
    }

    /// Puts the other end of an offered queue pair into its place, once it is connected, and answers.
    fn answer<const ROUTES: usize>(&mut self, shared: &mut Shared<D, ROUTES>, place: usize) {
        let Some(care) = self.care(place) else { return };
        let Some(Answering { generation, joined, theirs }) = &mut care.answering else { return };
        let (generation, theirs) = (*generation, *theirs);
        let Some(joined) = joined.take() else { return };
        care.answering = None;
        let (queue_pair, address) = match joined {
            Ok(joined) => joined,
            Err(error) => return self.give_up(End::Receiver, place, generation, &error),
        };
        let with = QueuePairAddress { qp_num: queue_pair.qp_num(), address };
        let at = (&mut shared.cq, self.receiver_index());
        let device = theirs.address.device;
        // Who has no receiver answers nothing.
        let Some(receiver) = &mut self.receiver else { return };
        match receiver.replace_queue_pair(at, place, generation, queue_pair, device) {
            Ok(old) => {
                old.retire();
                let (to, place) = (theirs.qp_num, place as u8);
                self.tell(P2pMessage::Answer { to, place, generation, with });
            }
            Err(Rejected { error, queue_pair }) => {
                queue_pair.retire();
                self.give_up(End::Receiver, place, generation, &error);
            }
        }
    }
}
