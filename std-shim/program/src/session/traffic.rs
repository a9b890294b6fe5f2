//! Requests of one side over its endpoint: posted, counted as they complete, and watched.

use super::error::SessionError;
use super::rail_news::Reporter;
use polyrail::backend::Domain;
use polyrail::endpoint::{Endpoint, RailReport, StallWatch};
use polyrail::verbs::{SendWr, WcStatus};
use polyrail::virtual_cq::{Event, VirtualWc};
use std::time::Duration;

/// Most events that one poll returns.
const POLL_BUDGET: usize = 64;

/// Polls between two looks at what happened to rails.
const NEWS_EVERY: u32 = 64;

/// An endpoint whose requests are counted. They are numbered from 0 and complete in order, so counters are
/// enough.
pub(crate) struct Traffic<D: Domain> {
    pub(crate) endpoint: Endpoint<D::Qp, D::Cq>,
    /// Requests of this side that were posted.
    pub(crate) posted: u64,
    /// Requests of this side that were reported.
    pub(crate) reported: u64,
    /// Completions of receives.
    pub(crate) arrived: u64,
    watch: StallWatch,
    reporter: Reporter,
    /// Polls until it is told what happened to rails.
    until_news: u32,
}

/// Which side's request completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// A request of this side.
    Own,
    /// A request of this side whose `wr_id` is its number, and all before it, which were posted unsignaled or
    /// reported.
    OwnAndBefore,
    /// A request of the other side, which consumed a receive.
    Arrival,
}

impl<D: Domain> Traffic<D> {
    /// Watches `endpoint`, whose requests may make no progress for `stall_timeout`, and tells `reporter` of its
    /// rails.
    pub(crate) fn new(
        endpoint: Endpoint<D::Qp, D::Cq>,
        stall_timeout: Duration,
        reporter: Reporter,
    ) -> Self {
        let watch = StallWatch::new(stall_timeout);
        let until_news = NEWS_EVERY;
        Self { endpoint, posted: 0, reported: 0, arrived: 0, watch, reporter, until_news }
    }

    /// Posts a request; returns `false` if there is no room until something completes.
    ///
    /// # Errors
    ///
    /// The request cannot be posted later either.
    pub(crate) fn post(&mut self, wr: &SendWr<'_>) -> Result<bool, SessionError> {
        match self.endpoint.post_send(wr) {
            Ok(()) => {
                self.posted += 1;
                Ok(true)
            }
            Err(refusal) if refusal.is_back_pressure() => Ok(false),
            Err(refusal) => Err(SessionError::refused(&mut self.endpoint, refusal)),
        }
    }

    /// Counts completions. `about` is called with each and the number of arrivals so far, and returns whose
    /// request it was. Returns how many completed.
    ///
    /// # Errors
    ///
    /// The first completion that failed, or a completion queue that broke.
    pub(crate) fn poll(
        &mut self,
        mut about: impl FnMut(&VirtualWc, u64) -> About,
    ) -> Result<u64, SessionError> {
        let Self { endpoint, reported, arrived, .. } = self;
        let before = *reported + *arrived;
        let mut failed = None;
        let polled = endpoint.poll_with(POLL_BUDGET, |event| {
            let Event::Completion(wc) = event else { return };
            if wc.status != WcStatus::SUCCESS {
                failed = failed.or(Some(wc.status));
                return;
            }
            match about(&wc, *arrived) {
                About::Own => *reported += 1,
                About::OwnAndBefore => *reported = (*reported).max(wc.wr_id + 1),
                About::Arrival => *arrived += 1,
            }
        });
        let completed = *reported + *arrived - before;
        if let Some(status) = failed {
            let error = endpoint.explain(status);
            self.tell_news();
            return Err(error.into());
        }
        match polled.error {
            Some(error) if !endpoint.survives(&error) => {
                return Err(endpoint.queue_error(error).into());
            }
            _ => {}
        }
        self.until_news -= 1;
        if self.until_news == 0 {
            self.tell_news();
        }
        Ok(completed)
    }

    /// Tells what happened to rails.
    pub(crate) fn tell_news(&mut self) {
        self.until_news = NEWS_EVERY;
        while let Some(event) = self.endpoint.take_rail_event() {
            self.reporter.tell(event);
        }
    }

    /// Checks that requests of this side make progress.
    ///
    /// # Errors
    ///
    /// They have made none for too long.
    pub(crate) fn check_headway(&mut self) -> Result<(), SessionError> {
        Ok(self.watch.check(&mut self.endpoint, self.posted, self.reported)?)
    }

    /// Returns what the rails did.
    pub(crate) fn rail_reports(&mut self) -> Vec<RailReport> {
        self.tell_news();
        self.endpoint.rail_reports()
    }
}
