//! Healing, step by step: what an endpoint does after some of its polls.
//!
//! 1. What the peer says is heeded, and what devices say.
//! 2. A rail that makes no headway, though others do, is given up.
//! 3. Of a rail that is Down at both ends, one end makes a new queue pair and offers it; the other makes
//!    one that goes with it, puts it in the rail's place, and answers; the first does the same. If
//!    either cannot, it says so, and the offer is made anew, at growing intervals.
//! 4. What the engine has to tell the peer is handed to the link.
//! 5. If requests have waited for too long, the endpoint is given up.
//!
//! The order is here; 1 and 2 are in `notice`, 3 in `new_queue_pairs`, 5 in `limits`.

use super::healer::{Carried, Healer};
use super::message::HealingMessage;
use crate::backend::Connect;
use crate::endpoint::devices::Devices;
use crate::endpoint::place::rail_ids;
use crate::endpoint::qp::EndpointQp;
use crate::endpoint::rail_log::Noticed;
use crate::endpoint::sizes::MAX_DEVICES;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{QpState, RailId, RailState};
use std::time::Instant;

/// Polls from one repair step to the next: a look at the clock costs a few times what is tolerable for each poll. A set
/// adds its number of members, because looking at each of them costs, too.
pub(in crate::endpoint) const HEAL_EVERY: usize = 8;

/// Messages that are heard at once, so that a peer that never stops does not hold up a poll.
const MOST_AT_ONCE: usize = 256;

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

/// One walk.
pub(super) struct Walk<'w, Q, C, const ROUTES: usize> {
    pub(super) qp: &'w mut EndpointQp<Q>,
    pub(super) healer: &'w mut Healer<Q>,
    pub(super) owner: Owner<'w, Q, C, ROUTES>,
    pub(super) now: Instant,
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
                HealingMessage::Control(message) => _ = self.qp.qp.control(message),
                HealingMessage::Offer(peer) => self.offered(peer),
                HealingMessage::Answer { to, with } => self.answered(to, &with),
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
        self.qp.qp.control_lost();
    }

    /// Hands the link what the engine has to tell.
    fn tell(&mut self) {
        while self.healer.link.has_room()
            && let Some(message) = self.qp.qp.next_control()
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
        let device = self.qp.place_of(rail).map(|place| place.device);
        let carried = self.carried(rail);
        let Some(care) = self.healer.care(rail) else { return };
        match state {
            RailState::InService => care.is_in_service(now),
            _ => care.is_out(now, &options, device, carried),
        }
        let next = self.qp.next_generation(rail).ok();
        let Some(care) = self.healer.care(rail) else { return };
        // Of a generation that has passed.
        care.offered.take_if(|own| Some(own.address().generation) != next);
        care.joining.take_if(|(own, _)| Some(own.address.generation) != next);
        self.join(rail);
        if self.healer.offers {
            self.offer(rail);
        } else {
            self.answer(rail, state);
        }
    }

    pub(super) fn give_up_rail(&mut self, rail: RailId, noticed: Noticed) {
        if self.qp.fail_rail(rail) {
            self.qp.log.notice(rail, noticed);
        }
    }

    pub(super) fn state(&self, rail: RailId) -> Option<RailState> {
        self.qp.virtual_qp().rail_state(rail)
    }

    /// Whether it failed, and is not back yet.
    pub(super) fn is_out(&self, rail: RailId) -> bool {
        self.state(rail).is_some_and(|state| state != RailState::InService)
    }

    /// What a rail has carried so far.
    pub(super) fn carried(&self, rail: RailId) -> Carried {
        let counters = self.qp.virtual_qp().counters(rail).unwrap_or_default();
        let completed = counters.completions.saturating_sub(counters.errors);
        Carried { posted: counters.send_requests, completed }
    }
}
