//! What becomes of queue pairs that fail, if rails are re-routed: the engines of both ends agree on what is lost, new
//! queue pairs take the places of the old ones, and all that the two endpoints tell each other goes through here.

use super::healer::{Healer, Offering};
use super::member::P2pMember;
use super::message::{End, P2pMessage};
use super::shared::Shared;
use super::sizes::QUEUE_PAIRS;
use crate::backend::{Connect, DeviceEvent, Domain};
use crate::heal::{Look, Passed, Waiting};
use polyrail_core::p2p::ConnectionEnd;
use polyrail_core::virtual_qp::{ControlError, RailEventKind, RailState};
use std::time::Instant;

/// What the owners of endpoints whose rails are re-routed do.
impl<D: Domain> P2pMember<D> {
    /// Returns the next message for the peer, if there is one. Carry all messages, in order, to
    /// [`hear`](super::P2pEndpoint::hear) of the peer's endpoint. There are none unless rails are
    /// re-routed.
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
            P2pMessage::Control { from: End::Sender, control } => {
                let receiver = self.receiver.as_mut().ok_or(ControlError::OneWay)?;
                receiver.control(control)?;
            }
            P2pMessage::Control { from: End::Receiver, control } => {
                let sender = self.sender.as_mut().ok_or(ControlError::OneWay)?;
                sender.control(control)?;
            }
            P2pMessage::Offer { place, generation, with } => {
                self.offered(shared, place, generation, with);
            }
            P2pMessage::Answer { to, place, generation, with } => {
                self.answered(shared, to, place, generation, &with);
            }
            P2pMessage::Refused { from, place, generation } => {
                self.refused(from, place, generation)
            }
            P2pMessage::Wanted { place } => self.wanted(place),
        }
        Ok(())
    }

    /// Call this when the channel of the messages was replaced: all state that may have been lost
    /// is sent again. The owners of **both** ends call it, each before it carries anything over the
    /// new channel.
    pub fn link_restored(&mut self) {
        if let Some(healer) = &mut self.healer {
            healer.outbox.clear();
            for care in &mut healer.places {
                care.offering.take().into_iter().for_each(Offering::give_up);
                care.answering = None;
                care.attempts.hurry();
            }
        }
        for place in 0..self.places.len() {
            // The peer may never have heard of it.
            if self.is_joining(place) {
                self.fail_place(End::Receiver, place);
            }
        }
        let Self { sender, receiver, .. } = self;
        sender.iter_mut().for_each(|sender| sender.control_lost());
        receiver.iter_mut().for_each(|receiver| receiver.control_lost());
    }

    /// Looks for failures, and makes new queue pairs.
    #[cold]
    pub(super) fn heal<const ROUTES: usize>(&mut self, shared: &mut Shared<D, ROUTES>) {
        if self.healer.is_some() {
            let now = Instant::now();
            self.notice(now);
            self.watch(now);
            self.renew(shared, now);
            self.keep_to_limits(now);
            self.collect();
            self.log_events();
        }
    }
}

/// Steps.
impl<D: Domain> P2pMember<D> {
    pub(super) fn tell(&mut self, message: P2pMessage) {
        if let Some(healer) = &mut self.healer {
            healer.outbox.push_back(message);
        }
    }

    /// What the engines have to tell.
    fn collect(&mut self) {
        while let Some(control) = self.sender.as_mut().and_then(|sender| sender.next_control()) {
            self.tell(P2pMessage::Control { from: End::Sender, control });
        }
        while let Some(control) = self.receiver.as_mut().and_then(|each| each.next_control()) {
            self.tell(P2pMessage::Control { from: End::Receiver, control });
        }
    }

    /// What happened to queue pairs is told, and kept for the owner; and why an end failed.
    pub(super) fn log_events(&mut self) {
        loop {
            let Self { sender, receiver, .. } = self;
            let sent = sender.as_mut().and_then(|sender| sender.take_rail_event());
            let sent = sent.map(|(place, event)| (End::Sender, place, event));
            let received = || {
                let (place, event) = receiver.as_mut()?.take_rail_event()?;
                Some((End::Receiver, place, event))
            };
            let Some((end, place, event)) = sent.or_else(received) else { break };
            self.tell_event(end, place, event);
            if let RailEventKind::Fenced { arrived, again } = event.kind {
                self.fenced(end, arrived > 0, again > 0);
            }
            if let Some(healer) = &mut self.healer {
                healer.add_event(end, place, event);
            }
        }
        if self.send_failure().is_some() {
            self.tell_failure(End::Sender);
        }
        if self.recv_failure().is_some() {
            self.tell_failure(End::Receiver);
        }
    }

    /// What was in flight on a queue pair that failed had arrived, or was lost. If nothing but losses has been heard of
    /// for too long, the end fails.
    fn fenced(&mut self, end: End, arrived: bool, lost: bool) {
        let completed = self.completed(end);
        let Some(healer) = &mut self.healer else { return };
        let limit = healer.options.rail_timeout;
        let patience = &mut healer.patience[usize::from(end == End::Receiver)];
        if arrived {
            patience.arrived();
        } else if lost && patience.lost(Instant::now(), completed, limit) {
            let Self { sender, receiver, .. } = self;
            match end {
                End::Sender => sender.iter_mut().for_each(|sender| sender.not_healed()),
                End::Receiver => receiver.iter_mut().for_each(|receiver| receiver.not_healed()),
            }
        }
    }

    /// What has completed, and not in vain, at one end.
    fn completed(&self, end: End) -> u64 {
        let Self { sender, receiver, .. } = self;
        let counters = (0..).map_while(|place| match end {
            End::Sender => sender.as_ref()?.counters(place),
            End::Receiver => receiver.as_ref()?.counters(place),
        });
        counters.map(|each| each.completions.saturating_sub(each.errors)).sum()
    }

    /// What happened to devices, if it is time to ask.
    fn notice(&mut self, now: Instant) {
        let Some(healer) = self.healer.as_deref_mut() else { return };
        let Healer { domains, device_events, .. } = healer;
        let next = |device: usize, cursor: &mut _| domains[device].next_event(cursor);
        let is_up = |device: usize, port| domains[device].port(port).is_ok();
        let happened = device_events.read(now, next, is_up);
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

    /// The queue pair in this place of this end, if that is here, has failed.
    pub(super) fn fail_place(&mut self, end: End, place: usize) {
        let Self { sender, receiver, .. } = self;
        match end {
            End::Sender => sender.iter_mut().for_each(|sender| _ = sender.fail_queue_pair(place)),
            End::Receiver => receiver.iter_mut().for_each(|each| _ = each.fail_queue_pair(place)),
        }
    }

    fn fail_at(&mut self, device: usize, port: Option<u8>) {
        for place in self.places_at(device, port) {
            self.fail_place(End::Sender, place);
            self.fail_place(End::Receiver, place);
        }
    }

    /// Puts an end to the queue pairs of a device that is gone, where it is known that it accesses no memory.
    fn lose_at(&mut self, device: usize) {
        self.fail_at(device, None);
        let places = self.places_at(device, None);
        let is_gone = |qp: Option<&D::Qp>| qp.is_some_and(|qp| qp.gone().is_some());
        let Self { sender, receiver, .. } = self;
        if let Some(sender) = sender {
            for &place in &places {
                if is_gone(sender.queue_pairs().nth(place)) {
                    // SAFETY: that is what `gone` says.
                    unsafe { sender.lose_queue_pair(place) };
                }
            }
        }
        if let Some(receiver) = receiver {
            for &place in &places {
                if is_gone(receiver.queue_pairs().nth(place)) {
                    // SAFETY: that is what `gone` says.
                    unsafe { receiver.lose_queue_pair(place) };
                }
            }
            // Those for flushes are counted behind the others.
            let others = receiver.queue_pairs().len();
            let flushes = receiver.flush_queue_pairs().len();
            for at in 0..flushes {
                if is_gone(receiver.flush_queue_pairs().nth(at)) {
                    // SAFETY: that is what `gone` says.
                    unsafe { receiver.lose_queue_pair(others + at) };
                }
            }
        }
    }

    /// Queue pairs that make no headway for too long have failed.
    fn watch(&mut self, now: Instant) {
        let Self { sender, receiver, healer, .. } = self;
        let Some(Healer { silence, options, .. }) = healer.as_deref_mut() else { return };
        let Some(timeout) = options.stall_timeout else { return };
        if !silence.is_due(now, timeout) {
            return;
        }
        // A message is sent only where the peer has offered buffers, so a late peer stalls no queue pair.
        let stalled = Look { is_stalled: true, peer_is_alive: true };
        let mut looks = [Look::default(); _];
        if let Some(sender) = sender {
            sender.check_stalled(&mut |place| looks[place] = stalled);
        }
        if let Some(receiver) = receiver {
            receiver.check_stalled(&mut |place| looks[QUEUE_PAIRS + place] = stalled);
        }
        for at in silence.look(looks) {
            let end = if at < QUEUE_PAIRS { End::Sender } else { End::Receiver };
            self.fail_place(end, at % QUEUE_PAIRS);
        }
    }

    /// Gives the end that sends up if its messages have waited for too long, for rails or for the peer's report.
    fn keep_to_limits(&mut self, now: Instant) {
        let Some(sender) = self.sender.as_deref().filter(|sender| sender.failure().is_none())
        else {
            return;
        };
        let mut unfenced = [false; QUEUE_PAIRS];
        let (mut is_any_out, mut is_any_in_service) = (false, false);
        for (place, unfenced) in unfenced.iter_mut().enumerate() {
            let Some((state, _)) = sender.queue_pair_state(place) else { break };
            let is_in_service = state == RailState::InService;
            *unfenced = matches!(state, RailState::Draining | RailState::Fenced);
            is_any_out |= !is_in_service;
            is_any_in_service |= is_in_service;
        }
        let waiting = Waiting {
            is_waiting: is_any_out && sender.under_way() > 0,
            // What rails lost goes out again on those in service.
            is_in_flight: is_any_in_service,
            completed: if is_any_out { self.completed(End::Sender) } else { 0 },
            unfenced,
        };
        let Self { sender, healer, .. } = self;
        let (Some(sender), Some(healer)) = (sender, healer) else { return };
        match healer.limits.check(now, &healer.options, &waiting) {
            None => {}
            Some(Passed::Fence { .. }) => sender.not_fenced(),
            Some(Passed::Rails { .. }) => sender.not_healed(),
        }
    }

    /// A port is up: what waits for its next attempt there, tries now, and the peer is told to.
    fn hurry(&mut self, device: usize, port: u8) {
        for place in self.places_at(device, Some(port)) {
            if let Some(healer) = &mut self.healer {
                healer.places[place].attempts.hurry();
            }
            let state = self.queue_pair_state(End::Receiver, place);
            if state.is_some_and(|(state, _)| state != RailState::InService) {
                self.tell(P2pMessage::Wanted { place: place as u8 });
            }
        }
    }

    /// The peer's port is up.
    fn wanted(&mut self, place: u8) {
        let healer = self.healer.as_mut();
        if let Some(care) = healer.and_then(|healer| healer.places.get_mut(usize::from(place))) {
            care.attempts.hurry();
        }
    }
}
