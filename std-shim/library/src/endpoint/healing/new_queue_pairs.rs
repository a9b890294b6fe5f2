//! New queue pairs for rails that are Down: one end offers, the other answers.

use super::message::HealingMessage;
use super::walk::{Owner, Walk};
use crate::backend::Connect;
use crate::endpoint::rail_log::Noticed;
use crate::endpoint::replace::{Source, begin_to_join, can_move, put_in_place};
use crate::endpoint::replace_error::ReplaceError;
use crate::endpoint::replacement::{Replacement, ReplacementAddress};
use crate::trace;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_qp::{RailId, RailState};

impl<Q, C, const ROUTES: usize> Walk<'_, Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// Offers the peer a new queue pair, if that is due.
    pub(super) fn offer(&mut self, rail: RailId) {
        let (now, options) = (self.now, self.healer.options);
        let is_down = self.qp.next_generation(rail).is_ok();
        let has_room = self.healer.link.has_room();
        let Some(care) = self.healer.care(rail) else { return };
        let is_under_way = care.offered.is_some() || care.joining.is_some();
        if !is_down || is_under_way || !care.is_due(now, &options, can_move(rail)) || !has_room {
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
        trace::no_new_queue_pair(self.qp.virtual_qp().virtual_qp_num(), rail, error);
        let (now, options) = (self.now, self.healer.options);
        if let Some(care) = self.healer.care(rail) {
            care.attempts.failed(now, &options);
        }
    }

    /// A queue pair in the best place that a rail may have now, devices that carried nothing last; in another one each
    /// time that the peer had none there. The error is of the first one that was tried.
    fn make(&mut self, rail: RailId) -> Result<Replacement<Q>, ReplaceError> {
        let (now, options) = (self.now, self.healer.options);
        let mut places = self.qp.candidates(rail)?;
        let Some(care) = self.healer.care(rail) else { return Err(ReplaceError::no_rail(rail)) };
        if !care.may_move(now, &options) {
            places.truncate(1);
        }
        // The others keep their order.
        places.sort_by_key(|place| care.barren.contains(&place.device));
        let first = care.refusals % places.len().max(1);
        places.rotate_left(first);
        self.source().make_in(self.qp, rail, &places)
    }

    fn source(&self) -> Source<'_, Q, C> {
        Source { devices: self.owner.devices, cqs: self.owner.cq.cqs() }
    }

    /// The peer has made a queue pair. It is answered once the rail is Down here too.
    pub(super) fn offered(&mut self, peer: ReplacementAddress) {
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
    pub(super) fn answer(&mut self, rail: RailId, state: RailState) {
        let next = self.qp.virtual_qp().rail_generation(rail).unwrap_or_default().wrapping_add(1);
        let Some(care) = self.healer.care(rail) else { return };
        let Some(peer) = care.asked else { return };
        let is_waiting = matches!(state, RailState::Draining | RailState::Fenced);
        if (is_waiting && peer.generation == next) || care.joining.is_some() {
            return;
        }
        care.asked = None;
        if self.turns_down(&peer) {
            return self.refuse(rail, peer.generation);
        }
        let own = self.source().make_for(self.qp, &peer);
        if let Err(error) = own.and_then(|own| self.begin_to_join(own, &peer, Some(peer.qp_num))) {
            self.attempt_failed(rail, &error);
            self.refuse(rail, peer.generation);
        }
    }

    /// Whether this end knows better than to come back where the peer offers.
    fn turns_down(&mut self, peer: &ReplacementAddress) -> bool {
        let has_others = self.qp.candidates(peer.rail).is_ok_and(|places| places.len() > 1);
        let place = self.qp.candidate_on(peer.rail, peer.address.device.into());
        let Some(care) = self.healer.care(peer.rail).filter(|_| has_others) else { return false };
        place.is_ok_and(|place| care.turns_down(place.device))
    }

    /// Connects a queue pair with the peer's; `answers` is the number of the peer's that is answered then.
    fn begin_to_join(
        &mut self,
        own: Replacement<Q>,
        peer: &ReplacementAddress,
        answers: Option<u32>,
    ) -> Result<(), ReplaceError> {
        let rail = own.address().rail;
        let joining = begin_to_join(self.qp, own, peer)?;
        if let Some(care) = self.healer.care(rail) {
            care.joining = Some((joining, answers));
        }
        // With most devices it is there already.
        self.join(rail);
        Ok(())
    }

    /// Puts a queue pair in the rail's place, once it is connected.
    pub(super) fn join(&mut self, rail: RailId) {
        let Some(care) = self.healer.care(rail) else { return };
        let Some((joining, _)) = &mut care.joining else { return };
        let Some(connected) = joining.take() else { return };
        let Some((joining, answers)) = care.joining.take() else { return };
        let Owner { cq, index, .. } = &mut self.owner;
        let joined = match connected {
            Ok(connected) => put_in_place(cq, *index, self.qp, connected),
            Err(source) => Err(self.qp.refused(rail, joining.place, source)),
        };
        let with = joining.address;
        match (joined, answers) {
            (Ok(()), Some(to)) => self.healer.link.say(HealingMessage::Answer { to, with }),
            (Ok(()), None) => {}
            (Err(error), _) => {
                self.attempt_failed(rail, &error);
                self.refuse(rail, with.generation);
            }
        }
    }

    /// The peer's queue pair is in place, and waits for the one that was offered.
    pub(super) fn answered(&mut self, to: u32, peer: &ReplacementAddress) {
        let ReplacementAddress { rail, generation, .. } = *peer;
        let is_it = |own: &mut Replacement<Q>| {
            own.address().generation == generation && own.address().qp_num == to
        };
        let own = self.healer.care(rail).and_then(|care| care.offered.take_if(is_it));
        let Some(own) = own else { return self.refuse(rail, generation) };
        if let Err(error) = self.begin_to_join(own, peer, None) {
            self.attempt_failed(rail, &error);
            self.refuse(rail, generation);
        }
    }

    /// The queue pair here has no other end.
    pub(super) fn refused(&mut self, rail: RailId, generation: u16) {
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
}
