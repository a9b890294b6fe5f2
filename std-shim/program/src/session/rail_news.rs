//! Events of rails during a job, for display, and what the rails count, for metrics.

use crate::fault::Side;
use polyrail::endpoint::NamedRailEvent;
use polyrail::metrics::{Metrics, Source};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An event of a rail of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailNewsItem {
    /// The side of the rail.
    pub side: Side,
    /// The event.
    pub event: NamedRailEvent,
}

/// Events of the rails of the sides in this process. A cheap handle: clones share the log.
#[derive(Clone, Debug, Default)]
pub struct RailNews {
    log: Arc<Mutex<Log>>,
    /// Where the sides publish what their rails count, and under which name.
    metrics: Option<(Metrics, &'static str)>,
}

#[derive(Debug, Default)]
struct Log {
    items: Vec<RailNewsItem>,
    /// Number of items that were taken.
    taken: usize,
}

impl RailNews {
    /// Returns an empty log. The sides of the job publish their [metrics](polyrail::metrics) under
    /// this name.
    pub fn counted(metrics: Metrics, name: &'static str) -> Self {
        Self { log: Arc::default(), metrics: Some((metrics, name)) }
    }

    /// Returns a source of metrics for one side, if metrics were asked for.
    pub(crate) fn source(&self) -> Option<Source> {
        self.metrics.as_ref().map(|(metrics, name)| metrics.source(name))
    }

    /// Takes the events since the last call, oldest first.
    pub fn take(&self) -> Vec<RailNewsItem> {
        let mut log = self.lock();
        let news = log.items[log.taken..].to_vec();
        log.taken = log.items.len();
        news
    }

    /// Returns all events, oldest first.
    pub fn all(&self) -> Vec<RailNewsItem> {
        self.lock().items.clone()
    }

    pub(crate) fn add(&self, side: Side, event: NamedRailEvent) {
        self.lock().items.push(RailNewsItem { side, event });
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the rail events of one side to a log.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    pub(crate) side: Side,
    pub(crate) news: RailNews,
}

impl Reporter {
    /// Returns a reporter whose log is not read.
    #[cfg(test)]
    pub(crate) fn unheard() -> Self {
        Self { side: Side::Near, news: RailNews::default() }
    }

    pub(crate) fn tell(&self, event: NamedRailEvent) {
        self.news.add(self.side, event);
    }
}
