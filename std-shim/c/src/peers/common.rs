//! State of peers that both kinds of connections have: numbers, links and events.

use super::connections::{Connections, Member};
use crate::events::EventQueue;
use crate::numbers::Numbers;
use crate::pace::Pace;
use crate::peer_state::PeerState;

/// State of an object's peers that both kinds of connections have.
#[derive(Default)]
pub(super) struct Common {
    pub(super) numbers: Numbers,
    /// The state of each peer, by place.
    pub(super) states: Vec<PeerState>,
    pub(super) events: EventQueue,
    pub(super) pace: Pace,
}

impl Common {
    /// Registers the new peer in this place, and returns its number.
    pub(super) fn welcome(&mut self, set: &mut dyn Connections, place: usize) -> u64 {
        let peer = self.numbers.add(place);
        PeerState::welcome(&mut self.states, place);
        set.welcome(place, peer);
        peer
    }

    /// Closes the link of the peer in this place, and discards its events.
    pub(super) fn forget(&mut self, place: usize, peer: u64) {
        self.states[place].end_link();
        self.events.forget(peer);
    }

    /// Drives links and rails in some of the polls.
    #[inline]
    pub(super) fn drive_sometimes(&mut self, set: &mut dyn Connections) {
        if self.pace.is_time() {
            self.drive(set);
        }
    }

    /// Drives the links of all peers, and collects the events of their rails.
    #[cold]
    pub(super) fn drive(&mut self, set: &mut dyn Connections) {
        let all: Vec<_> = self.numbers.all().collect();
        all.into_iter().for_each(|(place, peer)| self.drive_one(set, place, peer));
    }

    pub(super) fn drive_one(&mut self, set: &mut dyn Connections, place: usize, peer: u64) {
        let Self { states, events, .. } = self;
        if !set.has(place) {
            return;
        }
        let state = &mut states[place];
        state.drive(peer, &mut Member { set, place }, events);
        while events.has_room(peer)
            && let Some(event) = set.next_rail_event(place)
        {
            events.push(peer, event);
        }
        if let Some(failure) = set.failure(place) {
            state.fail(peer, || failure, events);
        }
    }
}
