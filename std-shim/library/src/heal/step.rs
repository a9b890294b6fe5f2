//! One repair step: what an end does in some of its polls.
//!
//! 1. Messages of the peer are handled, and events of devices; rails are measured.
//! 2. A rail that makes no progress although others do is failed.
//! 3. For a rail that is Down at both ends, one end creates a queue pair and offers it. The other
//!    end creates and connects a matching one, puts it in the rail's place, and answers. Then the
//!    first end does the same, once data can reach the peer. An end that cannot refuses, and the
//!    offer is repeated at growing intervals.
//! 4. The engine's control messages are given to the link.
//! 5. If requests have waited for too long, the end fails.
//!
//! Before 3, the rails that carry requests which are to be taken back are fenced, once these have
//! waited for long enough. The order is here, with 4 and 5; 1 and 2 are in `detect`, 3 is in `replace`.

use super::healer::Healer;
use super::limits::Passed;
use super::message::{HealingMessage, ReplacementAddress};
use super::new_queue_pair::Next;
use super::rail_repair::{Proof, RailRepair};
use super::repaired::{Detected, Repaired};
use polyrail_core::virtual_qp::{ControlError, RailState};
use std::time::Instant;

/// Maximum messages that one step handles, so that a peer that sends without end does not block a
/// poll.
const MOST_AT_ONCE: usize = 256;

/// One repair step.
pub(crate) struct RepairStep<'s, E: Repaired<RAILS>, const RAILS: usize> {
    pub(crate) end: E,
    pub(crate) healer: &'s mut Healer<E::Rail, E::Qp, RAILS>,
    pub(crate) now: Instant,
}

impl<E: Repaired<RAILS>, const RAILS: usize> RepairStep<'_, E, RAILS> {
    pub(crate) fn run(mut self) {
        if !self.end.is_connected() && !self.end.has_failed() {
            // Events and messages until then are handled afterwards: a queue pair that fails before
            // it is connected could neither be connected nor replaced.
            return;
        }
        if self.healer.link.has_news() {
            self.handle_all();
        }
        self.look_at_devices();
        self.end.measure(self.now);
        self.go_home();
        self.watch();
        self.end.fence_cancelled(self.now);
        let is_whole = self.end.is_whole();
        let Healer { is_busy, limits, options, .. } = &*self.healer;
        if is_whole && !is_busy && !limits.is_due(self.now, options) {
            return;
        }
        // One more step follows when all rails are back: the last messages have to be sent, too.
        self.healer.is_busy = !is_whole;
        self.end.lose_gone_rails();
        if !self.end.has_failed() {
            E::rails().for_each(|rail| self.repair(rail));
            self.check_limits();
        }
        self.send_controls();
        self.end.log_rail_events(self.now);
    }

    fn handle_all(&mut self) {
        if self.healer.link.take_broke() {
            self.link_broke();
        }
        for _ in 0..MOST_AT_ONCE {
            if !self.healer.link.has_room_to_answer() {
                self.healer.is_busy = true;
                return;
            }
            let Some(message) = self.healer.link.received() else { return };
            // A control message that a correct peer never sends fails the end, which reports that.
            _ = self.handle(message);
        }
    }

    /// Handles a message of the peer.
    fn handle(&mut self, message: HealingMessage<E::Rail>) -> Result<(), ControlError> {
        let here = E::named_by_peer;
        self.healer.is_busy = true;
        match message {
            HealingMessage::Control(message) => self.end.control(message)?,
            HealingMessage::Offer(peer) => {
                self.offered(ReplacementAddress { rail: here(peer.rail), ..peer });
            }
            HealingMessage::Answer { to, with } => {
                self.answered(to, &ReplacementAddress { rail: here(with.rail), ..with });
            }
            HealingMessage::Refused { rail, generation } => self.refused(here(rail), generation),
            HealingMessage::Wanted { rail } => {
                if let Some(repair) = self.repair_of(here(rail)) {
                    repair.retry_now();
                }
            }
        }
        Ok(())
    }

    /// Abandons new queue pairs, because messages about them may be lost. A queue pair that waits
    /// for the peer's Ready fails, because the peer may not have received the answer.
    fn link_broke(&mut self) {
        self.healer.is_busy = true;
        for repair in &mut self.healer.repairs {
            repair.next.take().into_iter().for_each(Next::abandon);
            repair.asked = None;
            repair.attempts.retry_now();
        }
        for rail in E::rails() {
            if matches!(self.end.state(rail), Some((RailState::Joining, _))) {
                self.end.fail_rail(rail, Detected::NoOtherEnd);
            }
        }
        self.end.control_lost();
    }

    /// Gives the link the engine's control messages.
    fn send_controls(&mut self) {
        while self.healer.link.has_room()
            && let Some(message) = self.end.next_control()
        {
            self.send(HealingMessage::Control(message));
        }
        // What had no room is sent by the next step, even if all rails are in service then.
        self.healer.is_busy |= !self.healer.link.has_room();
    }

    pub(super) fn send(&self, message: HealingMessage<E::Rail>) {
        self.healer.link.send(message);
    }

    pub(super) fn repair_of(&mut self, rail: E::Rail) -> Option<&mut RailRepair<E::Rail, E::Qp>> {
        self.healer.repairs.get_mut(E::index(rail)?)
    }

    /// Whether the rail failed, and is not back yet.
    pub(super) fn is_out(&self, rail: E::Rail) -> bool {
        self.end.state(rail).is_some_and(|(state, _)| state != RailState::InService)
    }

    fn check_limits(&mut self) {
        let Self { end, healer, now } = self;
        let proof = |rail: E::Rail| {
            let repair = E::index(rail).and_then(|at| healer.repairs.get(at));
            repair.map_or(Proof::Given, |repair| repair.proof(end.carried(rail)))
        };
        let waiting = end.waiting(proof);
        let Some(passed) = healer.limits.check(*now, &healer.options, &waiting) else { return };
        match passed {
            Passed::Fence { place, limit } if end.end_fence_on_purpose(place, limit) => {
                if !waiting.unfenced[place] {
                    // It was in service until now, so the peer has as much time as for others.
                    healer.limits.restart_fence(place);
                }
            }
            passed => end.give_up(passed),
        }
    }
}
