//! Requests of one side over its endpoint: posted, counted as they complete, and watched.

use super::error::SessionError;
use polyrail::backend::Domain;
use polyrail::endpoint::{Endpoint, RailReport, StallWatch};
use polyrail::verbs::{SendWr, WcStatus};
use polyrail::virtual_cq::{Event, VirtualWc};
use std::time::Duration;

/// Events that one poll hands over at most.
const POLL_BUDGET: usize = 64;

/// An endpoint whose requests are counted. They are numbered from 0 on and complete in order, so that
/// counters are all there is to know.
pub(crate) struct Traffic<D: Domain> {
    pub(crate) endpoint: Endpoint<D::Qp, D::Cq>,
    /// Own requests that were posted.
    pub(crate) posted: u64,
    /// Own requests that were reported.
    pub(crate) reported: u64,
    /// Completions of receives.
    pub(crate) arrived: u64,
    watch: StallWatch,
}

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// A request of this side.
    Own,
    /// One of the other side, which a receive met.
    Arrival,
}

impl<D: Domain> Traffic<D> {
    /// `stall_timeout`: how long own requests may make no headway.
    pub(crate) fn new(endpoint: Endpoint<D::Qp, D::Cq>, stall_timeout: Duration) -> Self {
        let watch = StallWatch::new(stall_timeout);
        Self { endpoint, posted: 0, reported: 0, arrived: 0, watch }
    }

    /// Posts a request; `false` if there is no room before something completes.
    ///
    /// # Errors
    ///
    /// The request is refused for good.
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

    /// Counts what completed, as `about` tells of each with the number of arrivals so far. Returns how
    /// many did.
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
                About::Arrival => *arrived += 1,
            }
        });
        let completed = *reported + *arrived - before;
        if let Some(status) = failed {
            return Err(endpoint.explain(status).into());
        }
        match polled.error {
            Some(error) => Err(endpoint.queue_error(error).into()),
            None => Ok(completed),
        }
    }

    /// Looks whether own requests make headway.
    ///
    /// # Errors
    ///
    /// They have made none for too long.
    pub(crate) fn check_headway(&mut self) -> Result<(), SessionError> {
        Ok(self.watch.check(&mut self.endpoint, self.posted, self.reported)?)
    }

    /// What the rails did.
    pub(crate) fn rail_reports(&self) -> Vec<RailReport> {
        self.endpoint.rail_reports()
    }
}
