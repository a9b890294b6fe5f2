//! Healing, step by step: what an endpoint does after some of its polls.
//!
//! 1. What the peer says is heeded, and what devices say.
//! 2. A rail that makes no headway, though others do, is given up.
//! 3. Of a rail that is Down at both ends, one end makes a new queue pair and offers it; the other makes
//!    one that goes with it, puts it in the rail's place, and answers; the first does the same. If
//!    either cannot, it says so, and the offer is made anew, at growing intervals.
//! 4. What the engine has to tell the peer is handed to the link.
//! 5. If requests have waited for too long, the endpoint is given up.

use super::given_up::GivenUp;
use super::headway::Look;
use super::healer::Healer;
use super::message::HealingMessage;
use super::options::Healing;
use crate::backend::{Connect, DeviceEvent};
use crate::endpoint::devices::Devices;
use crate::endpoint::place::{Place, rail_ids, rail_index};
use crate::endpoint::qp::EndpointQp;
use crate::endpoint::rail_log::Noticed;
use crate::endpoint::replace::{Source, can_move, put_in_place};
use crate::endpoint::replace_error::ReplaceError;
use crate::endpoint::replacement::{Replacement, ReplacementAddress};
use crate::endpoint::sizes::MAX_DEVICES;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{QpState, RailId, RailSet, RailState};
use std::time::{Duration, Instant};

/// How often devices are asked for events: a system call for each, with real verbs.
const EVENTS_EVERY: Duration = Duration::from_millis(1);

/// Messages that are heard at once, so that a peer that never stops does not hold up a poll.
const MOST_AT_ONCE: usize = 256;

/// Walks that there are at least while a limit of time passes.
const WALKS: u32 = 8;

/// What the owner of a virtual queue pair has: its completion queues, where it is attached at `index`, and
/// its devices.
pub(in crate::endpoint) struct Owner<'o, Q, C, const ROUTES: usize> {
    pub(in crate::endpoint) cq: &'o mut VirtualCq<C, MAX_DEVICES, ROUTES>,
    pub(in crate::endpoint) index: u16,
    pub(in crate::endpoint) devices: &'o Devices<Q, C>,
}

impl<Q: Connect> EndpointQp<Q> {
    /// Heals, if it does so by itself and there is anything to heal.
    pub(in crate::endpoint) fn heal<C: CompletionQueue, const ROUTES: usize>(
        &mut self,
        owner: Owner<'_, Q, C, ROUTES>,
        now: Instant,
    ) {
        if !self.connected {
            // What devices and the peer say until then is heeded afterwards.
            return;
        }
        let Some(mut healer) = self.healer.take() else { return };
        Walk { qp: self, healer: &mut healer, owner, now }.go();
        self.healer = Some(healer);
    }
}

struct Walk<'w, Q, C, const ROUTES: usize> {
    qp: &'w mut EndpointQp<Q>,
    healer: &'w mut Healer<Q>,
    owner: Owner<'w, Q, C, ROUTES>,
    now: Instant,
}

impl<Q, C, const ROUTES: usize> Walk<'_, Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    fn go(mut self) {
        if self.healer.link.has_news() {
            self.hear_all();
        }
        self.look_at_devices();
        self.go_home();
        self.watch();
        let is_ready = self.qp.state() == QpState::Ready;
        if is_ready && !self.healer.is_busy {
            return;
        }
        // Once more when all are back: what was said last is to be carried, too.
        self.healer.is_busy = !is_ready;
        self.forgive_absence();
        self.qp.lose_gone_rails();
        if self.qp.state() != QpState::Error {
            rail_ids().for_each(|rail| self.care_for(rail));
            self.keep_to_limits();
        }
        self.tell();
        self.qp.log_rail_events(self.now);
    }

    fn hear_all(&mut self) {
        self.healer.is_busy = true;
        if self.healer.link.take_broke() {
            self.link_broke();
        }
        for _ in 0..MOST_AT_ONCE {
            if !self.healer.link.has_room_to_answer() {
                return;
            }
            let Some(message) = self.healer.link.heard() else { return };
            match message {
                // A peer that makes no sense has ended the endpoint, which tells it.
                HealingMessage::Control(message) => _ = self.qp.control(message),
                HealingMessage::Offer(peer) => self.offered(peer),
                HealingMessage::Answer(peer) => self.answered(&peer),
                HealingMessage::Refused { rail, generation } => self.refused(rail, generation),
                HealingMessage::Wanted { rail } => self.hurry(rail),
            }
        }
    }

    /// What was under way is lost. New queue pairs that the peer may never have heard of are given up.
    fn link_broke(&mut self) {
        self.healer.forget();
        for rail in rail_ids() {
            if self.qp.virtual_qp().rail_state(rail) == Some(RailState::Joining) {
                self.give_up_rail(rail, Noticed::NoOtherEnd);
            }
        }
        self.qp.control_lost();
    }

    fn give_up_rail(&mut self, rail: RailId, noticed: Noticed) {
        if self.qp.fail_rail(rail) {
            self.qp.log.notice(rail, noticed);
        }
    }

    fn hurry(&mut self, rail: RailId) {
        if let Some(care) = self.healer.care(rail) {
            care.hurry();
        }
    }

    /// Reads what devices say, if that is due.
    fn look_at_devices(&mut self) {
        if self.healer.next_events.is_some_and(|next| self.now < next) {
            return;
        }
        self.healer.next_events = self.now.checked_add(EVENTS_EVERY);
        let mut readers = std::mem::take(&mut self.healer.readers);
        for (device, reader) in readers.iter_mut().enumerate() {
            let id = self.qp.devices[device];
            let next = || self.owner.devices.next_event(id, reader);
            let events: Vec<DeviceEvent> = std::iter::from_fn(next).collect();
            for (at, event) in events.iter().enumerate() {
                self.device_said(device, *event, &events[at + 1..]);
            }
        }
        self.healer.readers = readers;
    }

    /// `later` is what else it said, after that.
    fn device_said(&mut self, device: usize, event: DeviceEvent, later: &[DeviceEvent]) {
        self.healer.is_busy = true;
        match event {
            DeviceEvent::PortDown { port } => {
                // It may be up again; then what is in flight is carried on. It is asked only then: the answer
                // may have to wait until whoever takes the port down is done.
                let may_be_up = later.contains(&DeviceEvent::PortUp { port });
                let id = self.qp.devices[device];
                if !may_be_up || self.owner.devices.port(id, port).is_err() {
                    self.give_up_rails_on(device, Some(port), Noticed::PortDown);
                }
            }
            DeviceEvent::PortUp { .. } => {
                self.hurry_all();
                let after = self.healer.options.home_after;
                self.healer.home_at = after.and_then(|after| self.now.checked_add(after));
            }
            DeviceEvent::Gone => {
                self.qp.lose_gone_rails();
                self.give_up_rails_on(device, None, Noticed::DeviceGone);
            }
        }
    }

    /// Rails whose queue pairs are on a device, on this port of it if there is one.
    fn give_up_rails_on(&mut self, device: usize, port: Option<u8>, noticed: Noticed) {
        for rail in rail_ids() {
            let is_there = |place: &Place| {
                place.device == device && port.is_none_or(|port| port == place.port.number)
            };
            if self.qp.place_of(rail).is_some_and(is_there) {
                self.give_up_rail(rail, noticed);
            }
        }
    }

    /// Rails that requests wait for may be where they share another rail's device: that costs throughput for as
    /// long as they do. If their own device has a port for them again, they fail once more.
    fn go_home(&mut self) {
        if self.healer.home_at.is_none_or(|at| self.now < at) {
            return;
        }
        self.healer.home_at = None;
        self.healer.is_busy = true;
        for rail in rail_ids() {
            let away = self.qp.place_of(rail).zip(self.qp.home_of(rail));
            let Some((_, home)) = away.filter(|(at, home)| at.device != home.device) else {
                continue;
            };
            let device = self.qp.devices[home.device];
            if self.owner.devices.port(device, home.port.number).is_ok() {
                self.give_up_rail(rail, Noticed::Home);
                self.hurry_at(rail);
            }
        }
    }

    /// There may be queue pairs where there were none: who offers tries at once.
    fn hurry_all(&mut self) {
        for rail in rail_ids() {
            if self.is_out(rail) {
                self.hurry_at(rail);
            }
        }
    }

    fn hurry_at(&mut self, rail: RailId) {
        if self.healer.offers {
            self.hurry(rail);
        } else {
            self.healer.link.say(HealingMessage::Wanted { rail });
        }
    }

    /// Whether any rail makes no headway while others do.
    fn watch(&mut self) {
        let Some(timeout) = self.healer.options.stall_timeout else { return };
        if !self.healer.headway.is_due(self.now) {
            return;
        }
        let stalled = self.qp.check_stalled();
        let mut looks = [Look::default(); _];
        for (rail, look) in rail_ids().zip(&mut looks) {
            *look = Look {
                is_stalled: stalled.contains(rail),
                completed: completed(self.qp, rail),
                is_in_service: self.state(rail) == Some(RailState::InService),
            };
        }
        for at in self.healer.headway.look(self.now, timeout, &looks) {
            if let Some(rail) = rail_ids().nth(at) {
                self.give_up_rail(rail, Noticed::Silent(timeout));
            }
        }
    }

    fn state(&self, rail: RailId) -> Option<RailState> {
        self.qp.virtual_qp().rail_state(rail)
    }

    /// Whether it failed, and is not back yet.
    fn is_out(&self, rail: RailId) -> bool {
        self.state(rail).is_some_and(|state| state != RailState::InService)
    }

    /// Hands the link what the engine has to tell.
    fn tell(&mut self) {
        while self.healer.link.has_room()
            && let Some(message) = self.qp.next_control()
        {
            self.healer.link.say(HealingMessage::Control(message));
        }
        // What had no room is told next time, even if all rails are in service then.
        self.healer.is_busy |= !self.healer.link.has_room();
    }

    /// One rail, wherever it stands.
    fn care_for(&mut self, rail: RailId) {
        let Some(state) = self.state(rail) else { return };
        let (now, options) = (self.now, self.healer.options);
        let Some(care) = self.healer.care(rail) else { return };
        match state {
            RailState::InService => care.is_in_service(now),
            _ => care.is_out(now, &options),
        }
        let is_unfenced = matches!(state, RailState::Draining | RailState::Fenced);
        let since = *care.unfenced_since.get_or_insert(now);
        care.unfenced_since = is_unfenced.then_some(since);
        let next = self.qp.next_generation(rail).ok();
        let Some(care) = self.healer.care(rail) else { return };
        // Of a generation that has passed.
        care.offered.take_if(|own| Some(own.address().generation) != next);
        if self.healer.offers {
            self.offer(rail);
        } else {
            self.answer(rail, state);
        }
    }

    /// Offers the peer a new queue pair, if that is due.
    fn offer(&mut self, rail: RailId) {
        let (now, options) = (self.now, self.healer.options);
        let is_down = self.qp.next_generation(rail).is_ok();
        let has_room = self.healer.link.has_room();
        let Some(care) = self.healer.care(rail) else { return };
        if !is_down
            || care.offered.is_some()
            || !care.is_due(now, &options, can_move(rail))
            || !has_room
        {
            return;
        }
        care.tried_to_move = care.may_move(now, &options);
        match self.make(rail) {
            Ok(own) => {
                self.healer.link.say(HealingMessage::Offer(*own.address()));
                if let Some(care) = self.healer.care(rail) {
                    care.offered = Some(own);
                }
            }
            Err(error) => self.attempt_failed(rail, &error),
        }
    }

    fn attempt_failed(&mut self, rail: RailId, error: &ReplaceError) {
        tracing::debug!(%rail, %error, "no new queue pair yet");
        let (now, options) = (self.now, self.healer.options);
        if let Some(care) = self.healer.care(rail) {
            care.attempts.failed(now, &options);
        }
    }

    /// A queue pair in the best place that a rail may have now; in another one each time that the peer had none
    /// there. The error is of the first one that was tried.
    fn make(&mut self, rail: RailId) -> Result<Replacement<Q>, ReplaceError> {
        let (now, options) = (self.now, self.healer.options);
        let mut places = self.qp.candidates(rail)?;
        let Some(care) = self.healer.care(rail) else { return Err(ReplaceError::no_rail(rail)) };
        if !care.may_move(now, &options) {
            places.truncate(1);
        }
        let first = care.refusals % places.len().max(1);
        places.rotate_left(first);
        self.source().make_in(self.qp, rail, &places)
    }

    fn source(&self) -> Source<'_, Q, C> {
        Source { devices: self.owner.devices, cqs: self.owner.cq.cqs() }
    }

    /// The peer has made a queue pair. It is answered once the rail is Down here too.
    fn offered(&mut self, peer: ReplacementAddress) {
        let ReplacementAddress { rail, generation, .. } = peer;
        let offers = self.healer.offers;
        match self.healer.care(rail).filter(|_| !offers) {
            Some(care) if self.qp.virtual_qp().rail_state(rail).is_some() => {
                care.asked = Some(peer);
            }
            _ => self.refuse(rail, generation),
        }
    }

    fn refuse(&mut self, rail: RailId, generation: u16) {
        self.healer.link.say(HealingMessage::Refused { rail, generation });
    }

    /// Answers the peer's offer, if there is one that can be answered.
    fn answer(&mut self, rail: RailId, state: RailState) {
        let next = self.qp.virtual_qp().rail_generation(rail).unwrap_or_default().wrapping_add(1);
        let Some(care) = self.healer.care(rail) else { return };
        let Some(peer) = care.asked else { return };
        let is_waiting = matches!(state, RailState::Draining | RailState::Fenced);
        if is_waiting && peer.generation == next {
            return;
        }
        care.asked = None;
        match self.join(&peer) {
            Ok(own) => self.healer.link.say(HealingMessage::Answer(own)),
            Err(error) => {
                self.attempt_failed(rail, &error);
                self.refuse(rail, peer.generation);
            }
        }
    }

    /// Puts a queue pair that goes with the peer's in the rail's place.
    fn join(&mut self, peer: &ReplacementAddress) -> Result<ReplacementAddress, ReplaceError> {
        let own = self.source().make_for(self.qp, peer)?;
        let address = *own.address();
        self.put_in_place(own, peer)?;
        Ok(address)
    }

    fn put_in_place(
        &mut self,
        own: Replacement<Q>,
        peer: &ReplacementAddress,
    ) -> Result<(), ReplaceError> {
        put_in_place(self.owner.cq, self.owner.index, self.qp, own, peer)
    }

    /// The peer's queue pair is in place, and waits for the one that was offered.
    fn answered(&mut self, peer: &ReplacementAddress) {
        let ReplacementAddress { rail, generation, .. } = *peer;
        let is_it = |own: &mut Replacement<Q>| own.address().generation == generation;
        let own = self.healer.care(rail).and_then(|care| care.offered.take_if(is_it));
        let Some(own) = own else { return self.refuse(rail, generation) };
        if let Err(error) = self.put_in_place(own, peer) {
            self.attempt_failed(rail, &error);
            self.refuse(rail, generation);
        }
    }

    /// The queue pair here has no other end.
    fn refused(&mut self, rail: RailId, generation: u16) {
        let (now, options) = (self.now, self.healer.options);
        let Some(care) = self.healer.care(rail) else { return };
        let is_it = |own: &mut Replacement<Q>| own.address().generation == generation;
        if care.offered.take_if(is_it).is_some() {
            care.refused(now, &options);
        }
        let is_in_place = self.qp.virtual_qp().rail_generation(rail) == Some(generation);
        if is_in_place && self.state(rail) == Some(RailState::Joining) {
            self.give_up_rail(rail, Noticed::NoOtherEnd);
        }
    }

    /// An owner who was away has not waited: what was told meanwhile may not be heard yet. Of the time since
    /// the last walk, only a part of each limit counts.
    fn forgive_absence(&mut self) {
        let Healing { fence_timeout, rail_timeout, .. } = self.healer.options;
        let last = self.healer.last_walk.replace(self.now).unwrap_or(self.now);
        let away = self.now.saturating_duration_since(last);
        let beyond =
            |limit: Option<Duration>| away.saturating_sub(limit.unwrap_or_default() / WALKS);
        for since in self.healer.cares.iter_mut().filter_map(|care| care.unfenced_since.as_mut()) {
            *since += beyond(fence_timeout);
        }
        if let Some((since, _)) = &mut self.healer.waits_since {
            *since += beyond(rail_timeout);
        }
    }

    /// Gives the endpoint up if its requests have waited for too long.
    fn keep_to_limits(&mut self) {
        let headway = rail_ids().map(|rail| completed(self.qp, rail)).sum();
        let has_sends = self.qp.virtual_qp().unreported_sends() > 0;
        let is_waiting = has_sends && rail_ids().any(|rail| self.is_out(rail));
        self.healer.waits_since = match self.healer.waits_since {
            _ if !is_waiting => None,
            Some((since, before)) if before == headway => Some((since, before)),
            _ => Some((self.now, headway)),
        };
        if !is_waiting {
            // Until something waits, the peer may take its time.
            self.healer.cares.iter_mut().for_each(|care| care.unfenced_since = None);
            return;
        }
        if let Some((rail, waited)) = self.unfenced_for_too_long() {
            let unfenced = self.fail();
            self.qp.given_up = Some(GivenUp::NoFence { rail, waited, unfenced });
        } else if let Some(waited) = self.without_rails_for_too_long() {
            let out_of_service = rail_ids().filter(|rail| self.is_out(*rail)).collect();
            let unfenced = self.fail();
            self.qp.given_up = Some(GivenUp::NotHealed { out_of_service, waited, unfenced });
        }
    }

    fn unfenced_for_too_long(&mut self) -> Option<(RailId, Duration)> {
        let limit = self.healer.options.fence_timeout?;
        let is_late = |rail: RailId| {
            let since = self.healer.cares.get(rail_index(rail)?)?.unfenced_since?;
            (self.now.saturating_duration_since(since) >= limit).then_some((rail, limit))
        };
        rail_ids().find_map(is_late)
    }

    fn without_rails_for_too_long(&self) -> Option<Duration> {
        let limit = self.healer.options.rail_timeout?;
        let (since, _) = self.healer.waits_since?;
        if self.qp.virtual_qp().has_sends_in_flight() {
            // A peer may be as late as it likes.
            return None;
        }
        (self.now.saturating_duration_since(since) >= limit).then_some(limit)
    }

    /// Returns the rails through which the peer's memory may still be written.
    fn fail(&mut self) -> RailSet {
        self.qp.fail_all();
        self.qp.virtual_qp().unfenced()
    }
}

/// Requests that a rail has completed so far, those that failed aside.
fn completed<Q: Connect>(qp: &EndpointQp<Q>, rail: RailId) -> u64 {
    let counters = qp.virtual_qp().counters(rail).unwrap_or_default();
    counters.completions.saturating_sub(counters.errors)
}
