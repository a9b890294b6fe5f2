//! What happens to rails during a job, for people who watch it.

use crate::fault::Side;
use polyrail::endpoint::NamedRailEvent;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something happened to a rail of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailNewsItem {
    /// The side.
    pub side: Side,
    /// What happened.
    pub event: NamedRailEvent,
}

/// What happened to the rails of the sides that are here. A cheap handle: clones mean the same news.
#[derive(Clone, Debug, Default)]
pub struct RailNews(Arc<Mutex<Log>>);

#[derive(Debug, Default)]
struct Log {
    items: Vec<RailNewsItem>,
    /// How many of them were taken.
    taken: usize,
}

impl RailNews {
    /// Takes what happened since the last time, oldest first.
    pub fn take(&self) -> Vec<RailNewsItem> {
        let mut log = self.lock();
        let news = log.items[log.taken..].to_vec();
        log.taken = log.items.len();
        news
    }

    /// Returns all that happened, oldest first.
    pub fn all(&self) -> Vec<RailNewsItem> {
        self.lock().items.clone()
    }

    pub(crate) fn add(&self, side: Side, event: NamedRailEvent) {
        self.lock().items.push(RailNewsItem { side, event });
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where one side tells of its rails.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    pub(crate) side: Side,
    pub(crate) news: RailNews,
}

impl Reporter {
    /// One whom nobody hears.
    #[cfg(test)]
    pub(crate) fn unheard() -> Self {
        Self { side: Side::Near, news: RailNews::default() }
    }

    pub(crate) fn tell(&self, event: NamedRailEvent) {
        self.news.add(self.side, event);
    }
}
