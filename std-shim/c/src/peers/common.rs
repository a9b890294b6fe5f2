//! What is kept of peers, whatever their connections are for: numbers, links, news.

use super::connections::{Connections, Member};
use crate::kept::Kept;
use crate::news::News;
use crate::numbers::Numbers;
use crate::pace::Pace;

/// What is kept of the peers of an object, whatever their connections are for.
#[derive(Default)]
pub(super) struct Common {
    pub(super) numbers: Numbers,
    /// What is kept of each peer, by place.
    pub(super) kept: Vec<Kept>,
    pub(super) news: News,
    pub(super) pace: Pace,
}

impl Common {
    /// A new peer is in this place. Returns its number.
    pub(super) fn welcome(&mut self, set: &mut dyn Connections, place: usize) -> u64 {
        let peer = self.numbers.add(place);
        Kept::welcome(&mut self.kept, place);
        set.welcome(place, peer);
        peer
    }

    /// Nothing is told of the peer in this place any more.
    pub(super) fn forget(&mut self, place: usize, peer: u64) {
        self.kept[place].end_link();
        self.news.forget(peer);
    }

    /// Drives links and rails in some of the polls.
    #[inline]
    pub(super) fn drive_sometimes(&mut self, set: &mut dyn Connections) {
        if self.pace.is_time() {
            self.drive(set);
        }
    }

    /// Drives links of all peers, and finds out what happened to rails.
    #[cold]
    pub(super) fn drive(&mut self, set: &mut dyn Connections) {
        let all: Vec<_> = self.numbers.all().collect();
        all.into_iter().for_each(|(place, peer)| self.drive_one(set, place, peer));
    }

    pub(super) fn drive_one(&mut self, set: &mut dyn Connections, place: usize, peer: u64) {
        let Self { kept, news, .. } = self;
        if !set.has(place) {
            return;
        }
        let kept = &mut kept[place];
        kept.drive(peer, &mut Member { set, place }, news);
        while news.has_room()
            && let Some(event) = set.next_rail_event(place)
        {
            news.push(peer, event);
        }
        if let Some(failure) = set.failure(place) {
            kept.fail(peer, || failure, news);
        }
    }
}
