//! What becomes of queue pairs that fail, if rails are re-routed: the engines of both ends agree on what is lost, new
//! queue pairs take the places of the old ones, and all that the two endpoints tell each other goes through here.
//!
//! For each place the sending end offers a queue pair once its own is Down; by then the receiving end's is, too, or
//! will be as soon as it has heard what was said before. That end makes the other queue pair, puts it into place, and
//! answers; the sending end does the same. Whoever cannot says so, and the engines go on to the next generation.

use super::address::QueuePairAddress;
use super::healer::{Healer, Offered};
use super::member::P2pMember;
use super::message::{End, P2pMessage};
use super::shared::Shared;
use crate::backend::{Connect, DeviceError, DeviceEvent, Domain, Port};
use crate::endpoint::{RailAddress, join};
use polyrail_core::hardware::QueuePair;
use polyrail_core::virtual_qp::{ControlError, RailState};
use std::time::{Duration, Instant};

/// How long an offer may go unanswered: its link may have lost it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// What the owners of endpoints whose rails are re-routed do.
impl<D: Domain> P2pMember<D> {
    /// The next message for the peer, if there is one: its owner carries all there are, in order, to
    /// [`hear`](super::P2pEndpoint::hear) of the peer's endpoint. None of an endpoint whose rails are not re-routed.
    pub fn next_message(&mut self) -> Option<P2pMessage> {
        self.collect();
        self.healer.as_mut()?.outbox.pop_front()
    }

    /// Takes a message of the peer's.
    pub(super) fn hear<const ROUTES: usize>(
        &mut self,
        shared: &mut Shared<D, ROUTES>,
        message: P2pMessage,
    ) -> Result<(), ControlError> {
        if self.healer.is_none() {
            return Err(ControlError::NotRerouting);
        }
        match message {
            P2pMessage::Control { from: End::Sender, control } => self.receiver.control(control)?,
            P2pMessage::Control { from: End::Receiver, control } => self.sender.control(control)?,
            P2pMessage::Offer { place, generation, with } => {
                if self.answer(shared, place, generation, &with).is_none() {
                    self.tell(P2pMessage::Refused { from: End::Receiver, place, generation });
                }
            }
            P2pMessage::Answer { to, place, generation, with } => {
                if self.put_in_place(shared, to, place, generation, &with).is_none() {
                    self.tell(P2pMessage::Refused { from: End::Sender, place, generation });
                }
            }
            P2pMessage::Refused { from, place, generation } => {
                self.refused(from, place, generation)
            }
        }
        Ok(())
    }

    /// What carried the messages broke, and both ends have a new way: everything that may have been lost is told
    /// again. The owners of **both** ends call it, each before it carries anything over the new way.
    pub fn link_restored(&mut self) {
        if let Some(healer) = &mut self.healer {
            healer.outbox.clear();
            for care in &mut healer.places {
                care.offered.take().into_iter().for_each(|offered| offered.queue_pair.retire());
                care.attempts.hurry();
            }
        }
        self.sender.control_lost();
        self.receiver.control_lost();
    }

    /// Looks for failures, and makes new queue pairs.
    #[cold]
    pub(super) fn heal<const ROUTES: usize>(&mut self, shared: &mut Shared<D, ROUTES>) {
        if self.healer.is_some() {
            let now = Instant::now();
            self.notice();
            self.watch(now);
            self.offer(shared, now);
            self.collect();
        }
    }
}

/// Steps.
impl<D: Domain> P2pMember<D> {
    fn tell(&mut self, message: P2pMessage) {
        if let Some(healer) = &mut self.healer {
            healer.outbox.push_back(message);
        }
    }

    /// What the engines have to tell.
    fn collect(&mut self) {
        while let Some(control) = self.sender.next_control() {
            self.tell(P2pMessage::Control { from: End::Sender, control });
        }
        while let Some(control) = self.receiver.next_control() {
            self.tell(P2pMessage::Control { from: End::Receiver, control });
        }
    }

    /// What happened to devices.
    fn notice(&mut self) {
        let Some(healer) = &mut self.healer else { return };
        let mut happened = Vec::new();
        for (device, (domain, cursor)) in healer.domains.iter_mut().enumerate() {
            while let Some(event) = domain.next_event(cursor) {
                happened.push((device, event));
            }
        }
        for (device, event) in happened {
            match event {
                DeviceEvent::PortDown { port } => self.fail_at(device, Some(port)),
                DeviceEvent::PortUp { port } => self.hurry(device, port),
                DeviceEvent::Gone => self.lose_at(device),
            }
        }
    }

    /// The places of queue pairs on a device, or on one port of it.
    fn places_at(&self, device: usize, port: Option<u8>) -> Vec<usize> {
        let is_there = |at: &usize| {
            let place = &self.places[*at];
            place.device == device && port.is_none_or(|port| place.port.number == port)
        };
        (0..self.places.len()).filter(is_there).collect()
    }

    fn fail_at(&mut self, device: usize, port: Option<u8>) {
        for place in self.places_at(device, port) {
            self.sender.fail_queue_pair(place);
            self.receiver.fail_queue_pair(place);
        }
    }

    /// Puts an end to the queue pairs of a device that is gone, where it is known that it accesses no memory.
    fn lose_at(&mut self, device: usize) {
        self.fail_at(device, None);
        let is_gone = |qp: Option<&D::Qp>| qp.is_some_and(|qp| qp.gone().is_some());
        for place in self.places_at(device, None) {
            if is_gone(self.sender.queue_pairs().nth(place)) {
                // SAFETY: that is what `gone` says.
                unsafe { self.sender.lose_queue_pair(place) };
            }
            if is_gone(self.receiver.queue_pairs().nth(place)) {
                // SAFETY: that is what `gone` says.
                unsafe { self.receiver.lose_queue_pair(place) };
            }
        }
        // Those for flushes are counted behind the others.
        let others = self.receiver.queue_pairs().len();
        let flushes = self.receiver.flush_queue_pairs().len();
        for at in 0..flushes {
            if is_gone(self.receiver.flush_queue_pairs().nth(at)) {
                // SAFETY: that is what `gone` says.
                unsafe { self.receiver.lose_queue_pair(others + at) };
            }
        }
    }

    /// Queue pairs that make no headway for too long have failed.
    fn watch(&mut self, now: Instant) {
        let Self { sender, receiver, healer, .. } = self;
        let Some(Healer { stalls, options, .. }) = healer.as_deref_mut() else { return };
        let Some(timeout) = options.stall_timeout else { return };
        if !stalls.is_due(now, timeout) {
            return;
        }
        for place in stalls.note(End::Sender, |each| sender.check_stalled(each)) {
            sender.fail_queue_pair(place);
        }
        for place in stalls.note(End::Receiver, |each| receiver.check_stalled(each)) {
            receiver.fail_queue_pair(place);
        }
    }

    /// A port is up: what waits for its next attempt there, tries now.
    fn hurry(&mut self, device: usize, port: u8) {
        let places = self.places_at(device, Some(port));
        let Some(healer) = &mut self.healer else { return };
        for place in places {
            healer.places[place].attempts.hurry();
        }
    }

    /// Offers queue pairs for the places that are Down.
    fn offer<const ROUTES: usize>(&mut self, shared: &Shared<D, ROUTES>, now: Instant) {
        for place in 0..self.places.len() {
            let Some((state, generation)) = self.sender.queue_pair_state(place) else { continue };
            let Some(healer) = &mut self.healer else { return };
            let care = &mut healer.places[place];
            if state == RailState::InService && care.attempts.is_due(now) {
                // It works, and has for as long as the last interval: the next failure is another matter.
                care.attempts.hurry();
            }
            if state != RailState::Down {
                continue;
            }
            if let Some(late) =
                care.offered.take_if(|offered| now - offered.since >= ANSWER_TIMEOUT)
            {
                late.queue_pair.retire();
            }
            if care.offered.is_some() || !care.attempts.is_due(now) {
                continue;
            }
            let generation = generation.wrapping_add(1);
            let made = self.make(shared, place, End::Sender);
            let Some(healer) = &mut self.healer else { return };
            let care = &mut healer.places[place];
            // An offer that comes to nothing counts as well.
            care.attempts.failed(now, &healer.options);
            if let Ok((queue_pair, port)) = made {
                let with = self.address_of(&queue_pair, place, &port);
                let offered = Offered { queue_pair, port, generation, since: now };
                if let Some(healer) = &mut self.healer {
                    healer.places[place].offered = Some(offered);
                }
                self.tell(P2pMessage::Offer { place: place as u8, generation, with });
            }
        }
    }

    fn address_of(&self, qp: &D::Qp, place: usize, port: &Port) -> QueuePairAddress {
        let address = RailAddress::new(self.places[place].device, port, self.psn, &self.options);
        QueuePairAddress { qp_num: qp.qp_num(), address }
    }

    /// A new queue pair for a place of either end, on the place's port as that is now.
    fn make<const ROUTES: usize>(
        &self,
        shared: &Shared<D, ROUTES>,
        place: usize,
        end: End,
    ) -> Result<(D::Qp, Port), DeviceError> {
        let healer = self.healer.as_ref().ok_or(DeviceError::NoDevice)?;
        let device = self.places[place].device;
        let (domain, _) = &healer.domains[device];
        let port = domain.port(self.places[place].port.number)?;
        let srq = (end == End::Receiver).then_some(&shared.pools.0[device].1);
        let qp = healer.shape.make((domain, &port), shared.cq.cqs(), srq)?;
        Ok((qp, port))
    }

    /// Makes the other end of an offered queue pair; `None` if that cannot be.
    fn answer<const ROUTES: usize>(
        &mut self,
        shared: &mut Shared<D, ROUTES>,
        place: u8,
        generation: u16,
        theirs: &QueuePairAddress,
    ) -> Option<()> {
        let at = usize::from(place);
        let (state, now) = self.receiver.queue_pair_state(at)?;
        if state != RailState::Down || now.wrapping_add(1) != generation {
            return None;
        }
        let (queue_pair, port) = self.make(shared, at, End::Receiver).ok()?;
        let with = self.address_of(&queue_pair, at, &port);
        let options = &self.options;
        let own = (&queue_pair, &port, &with.address);
        join(own, theirs.qp_num, &theirs.address, options).ok()?;
        let index = self.receiver_index();
        let device = theirs.address.device;
        let replaced = self.receiver.replace_queue_pair(
            (&mut shared.cq, index),
            at,
            generation,
            queue_pair,
            device,
        );
        replaced.ok()?.retire();
        self.tell(P2pMessage::Answer { to: theirs.qp_num, place, generation, with });
        Some(())
    }

    /// Puts an offered queue pair into its place, whose other end is there; `None` if that cannot be.
    fn put_in_place<const ROUTES: usize>(
        &mut self,
        shared: &mut Shared<D, ROUTES>,
        to: u32,
        place: u8,
        generation: u16,
        theirs: &QueuePairAddress,
    ) -> Option<()> {
        let at = usize::from(place);
        let care = self.healer.as_mut()?.places.get_mut(at)?;
        let goes = |offered: &mut Offered<D::Qp>| {
            offered.queue_pair.qp_num() == to && offered.generation == generation
        };
        let Offered { queue_pair, port, .. } = care.offered.take_if(goes)?;
        let own = self.address_of(&queue_pair, at, &port);
        let joining = (&queue_pair, &port, &own.address);
        join(joining, theirs.qp_num, &theirs.address, &self.options).ok()?;
        let index = self.sender_index();
        let device = theirs.address.device;
        self.sender
            .replace_queue_pair((&mut shared.cq, index), at, generation, queue_pair, device)
            .ok()?
            .retire();
        Some(())
    }

    /// The peer has no queue pair for this place and generation.
    fn refused(&mut self, from: End, place: u8, generation: u16) {
        let at = usize::from(place);
        match from {
            // The next attempt makes another offer.
            End::Receiver => {
                let care = self.healer.as_mut().and_then(|healer| healer.places.get_mut(at));
                let offered = care.and_then(|care| {
                    care.offered.take_if(|offered| offered.generation == generation)
                });
                offered.into_iter().for_each(|offered| offered.queue_pair.retire());
            }
            // The one that is in place here has no other end.
            End::Sender => {
                let joining = Some((RailState::Joining, generation));
                if self.receiver.queue_pair_state(at) == joining {
                    self.receiver.fail_queue_pair(at);
                }
            }
        }
    }
}
