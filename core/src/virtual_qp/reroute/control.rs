//! What the two ends of a virtual queue pair tell each other.

use crate::hardware::QueuePair;
use crate::rail::{
    ControlError, ControlMessage, FailedBecause, RailEvent, RailEventKind, RailId, RailNews,
    RailState,
};
use crate::virtual_qp::error::Failure;
use crate::virtual_qp::qp::VirtualQp;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// The next message for the peer, if there is one: after every poll and every other call, its owner
    /// carries all there are, in order, to [`control`](Self::control) of the other end.
    pub fn next_control(&mut self) -> Option<ControlMessage> {
        if core::mem::take(&mut self.reroute.tells_error) {
            return Some(ControlMessage::Error);
        }
        if self.health.failed {
            return None;
        }
        let mut news = self.all_rails_mut().map(|rail| rail.lifecycle.take_news(rail.id));
        news.find_map(|news| news.map(ControlMessage::Rail))
    }

    /// Takes a message of the peer's. What it allows is done at once; what is complete with it comes out
    /// of the next poll.
    ///
    /// # Errors
    ///
    /// No correct peer says that: the virtual queue pair is in the error state. Or it does not re-route:
    /// nothing changed.
    pub fn control(&mut self, message: ControlMessage) -> Result<(), ControlError> {
        if !self.reroute.is_on {
            return Err(ControlError::NotRerouting);
        }
        if self.health.failed {
            self.reroute.ignored += 1;
            return Ok(());
        }
        let heard = match message {
            ControlMessage::Error => {
                self.give_up(Failure::Peer);
                Ok(())
            }
            ControlMessage::Rail(news) => self.hear(&news),
        };
        if let Err(error) = heard {
            self.give_up(Failure::Control(error));
        }
        self.pump_all();
        heard
    }

    fn hear(&mut self, news: &RailNews) -> Result<(), ControlError> {
        let id = news.rail;
        let Some(rail) = self.rail_mut(id) else { return Err(ControlError::NoRail(id)) };
        let posted = rail.sends.receives_due();
        // A message of the next generation ends this one first.
        let generation = rail.lifecycle.generation();
        let heard = rail.lifecycle.hear(news, posted)?;
        self.reroute.ignored += u64::from(heard.ignored);
        if heard.stopped {
            self.rail_stopped(id, FailedBecause::Peer);
        }
        if let Some(arrived) = heard.fenced {
            self.rail_fenced(id, generation, arrived);
        }
        if heard.adopted {
            self.generation_adopted(id);
        }
        if heard.returned {
            self.rail_returned(id);
        }
        self.health.needs_care = true;
        Ok(())
    }

    /// The peer had a queue pair of the next generation, which failed before there was one here.
    fn generation_adopted(&mut self, id: RailId) {
        let Some(rail) = self.rail_mut(id) else { return };
        let generation = rail.lifecycle.generation();
        rail.start_over(generation);
        let (why, refused) = (FailedBecause::Peer, None);
        rail.note_event(generation, RailEventKind::Failed { why, refused });
        if rail.lifecycle.state() == RailState::Down {
            self.rail_fenced(id, generation, 0);
        }
    }

    /// A rail carries requests again.
    pub(super) fn rail_returned(&mut self, id: RailId) {
        if let Some(rail) = self.rail_mut(id) {
            let generation = rail.lifecycle.generation();
            rail.note_event(generation, RailEventKind::Returned);
        }
        self.update_rail(id);
    }

    /// The link that carried control messages broke, and both owners have a new one: **both** ends tell
    /// everything again that may have been lost.
    pub fn control_lost(&mut self) {
        self.reroute.tells_error = self.reroute.is_on && self.health.failed;
        for rail in self.all_rails_mut() {
            rail.lifecycle.tell_again();
        }
    }

    /// Messages of the peer's that told nothing new: of queue pairs that are gone, or said twice.
    pub fn ignored_controls(&self) -> u64 {
        self.reroute.ignored
    }

    /// Returns the oldest event of a rail that was not taken yet, if there is one. Events of one rail come in the
    /// order in which they happened. The newest five of each rail are kept, and one call adds four at most: an owner
    /// that takes all events after each poll and each other call misses none.
    pub fn take_rail_event(&mut self) -> Option<RailEvent> {
        let mut events = self.all_rails_mut().filter_map(|rail| rail.events.take());
        events.next()
    }

    /// Where a rail stands between failure and return.
    pub fn rail_state(&self, rail: RailId) -> Option<RailState> {
        self.rail(rail).map(|rail| rail.lifecycle.state())
    }

    /// Which queue pair in the rail's place: 0 for the first one, counted up modulo 2^16 with each that
    /// failed and was replaced, here or at the peer.
    pub fn rail_generation(&self, rail: RailId) -> Option<u16> {
        self.rail(rail).map(|rail| rail.lifecycle.generation())
    }
}
