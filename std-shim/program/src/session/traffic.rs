//! Requests of one side over its endpoint: posts them, counts completions, and checks progress.

use super::error::SessionError;
use super::rail_news::Reporter;
use polyrail::backend::Domain;
use polyrail::endpoint::{Endpoint, RailReport, StallWatch};
use polyrail::metrics::Source;
use polyrail::verbs::{SendWr, WcStatus};
use polyrail::virtual_cq::{Event, VirtualWc};
use std::time::Duration;

/// Most events that one poll returns.
const POLL_BUDGET: usize = 64;

/// Polls between two checks for rail events.
const NEWS_EVERY: u32 = 64;

/// An endpoint and the counts of its requests. Requests are numbered from 0 and complete in order,
/// so counts identify them.
pub(crate) struct Traffic<D: Domain> {
    pub(crate) endpoint: Endpoint<D::Qp, D::Cq>,
    /// Requests of this side that were posted.
    pub(crate) posted: u64,
    /// Requests of this side that were reported as complete.
    pub(crate) reported: u64,
    /// Completions of receives.
    pub(crate) arrived: u64,
    watch: StallWatch,
    reporter: Reporter,
    metrics: Option<Source>,
    /// Polls until the next check for rail events.
    until_news: u32,
}

/// Which side's request completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// A request of this side.
    Own,
    /// A request of this side whose `wr_id` is its number, and all requests before it, which were
    /// unsignaled or have been reported.
    OwnAndBefore,
    /// A request of the other side, which consumed a receive.
    Arrival,
}

impl<D: Domain> Traffic<D> {
    /// Takes over `endpoint`. Its requests fail after `stall_timeout` without progress; `reporter`
    /// receives its rail events.
    pub(crate) fn new(
        endpoint: Endpoint<D::Qp, D::Cq>,
        stall_timeout: Duration,
        reporter: Reporter,
    ) -> Self {
        let watch = StallWatch::new(stall_timeout);
        let metrics = reporter.news.source();
        let until_news = NEWS_EVERY;
        Self { endpoint, posted: 0, reported: 0, arrived: 0, watch, reporter, metrics, until_news }
    }

    /// Posts a request. Returns `false` if the queue is full until a request completes.
    ///
    /// # Errors
    ///
    /// The request cannot be posted, now or later.
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

    /// Polls and counts completions. Calls `about` with each completion and the number of arrivals
    /// before it, to find out whose request completed. Returns the number of requests that
    /// completed.
    ///
    /// # Errors
    ///
    /// A request or a completion queue failed.
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

    /// Passes rail events to the reporter, and publishes metrics if a reader asked for them.
    pub(crate) fn tell_news(&mut self) {
        self.until_news = NEWS_EVERY;
        while let Some(event) = self.endpoint.take_rail_event() {
            self.reporter.tell(event);
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.publish_if_wanted(|| vec![self.endpoint.metrics()]);
        }
    }

    /// Checks that requests of this side make progress.
    ///
    /// # Errors
    ///
    /// They have made no progress for the stall timeout.
    pub(crate) fn check_progress(&mut self) -> Result<(), SessionError> {
        Ok(self.watch.check(&mut self.endpoint, self.posted, self.reported)?)
    }

    /// Returns the counts of each rail.
    pub(crate) fn rail_reports(&mut self) -> Vec<RailReport> {
        self.tell_news();
        self.endpoint.rail_reports()
    }
}

/// What it has counted stays in the metrics.
impl<D: Domain> Drop for Traffic<D> {
    fn drop(&mut self) {
        if let Some(metrics) = &mut self.metrics {
            metrics.publish(vec![self.endpoint.metrics()]);
        }
    }
}
