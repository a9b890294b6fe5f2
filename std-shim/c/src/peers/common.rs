//! State of peers that both kinds of connections have: numbers, links and events.

use super::connections::{Connections, Member};
use crate::events::EventQueue;
use crate::metrics;
use crate::numbers::Numbers;
use crate::pace::Pace;
use crate::peer_state::PeerState;
use polyrail::metrics::Source;

/// State of an object's peers that both kinds of connections have.
#[derive(Default)]
pub(super) struct Common {
    pub(super) numbers: Numbers,
    /// The state of each peer, by place.
    pub(super) states: Vec<PeerState>,
    pub(super) events: EventQueue,
    pub(super) pace: Pace,
    metrics: Option<Source>,
}

impl Common {
    /// Returns the state of an object without peers, whose metrics are published if they are
    /// exported.
    pub(super) fn new() -> Self {
        Self { metrics: metrics::source(), ..Self::default() }
    }

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
        if let Some(metrics) = &mut self.metrics {
            metrics.publish_if_wanted(|| set.metrics());
        }
    }

    /// Publishes the metrics of a connection before it is removed: of this one alone, so that to
    /// remove all of many peers does not take a time that grows with the square of their number.
    pub(super) fn publish_metrics(&mut self, set: &dyn Connections, place: usize) {
        if let Some(metrics) = &mut self.metrics {
            set.metrics_of(place).into_iter().for_each(|one| metrics.publish_one(one));
        }
    }

    /// Publishes metrics for the last time, while the connections are there.
    pub(super) fn end_metrics(&mut self, set: &dyn Connections) {
        if let Some(mut metrics) = self.metrics.take() {
            metrics.publish(set.metrics());
        }
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
            state.note_rail_event(&event);
            events.push(peer, event);
        }
        if let Some(failure) = set.failure(place) {
            state.fail(peer, || failure, events);
        }
    }
}
