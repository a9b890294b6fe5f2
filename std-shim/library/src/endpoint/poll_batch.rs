//! Results of a poll, in vectors.

use polyrail_core::hardware::CqError;
use polyrail_core::verbs::{Completion, DeviceId};
use polyrail_core::virtual_cq::{Event, Polled, VirtualWc};

/// Results of one [`Endpoint::poll`](super::Endpoint::poll) or
/// [`EndpointSet::poll`](super::EndpointSet::poll).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a completion queue may have failed"]
pub struct PollBatch {
    /// Completions of requests, in the order in which they are reported.
    pub completions: Vec<VirtualWc>,
    /// Completions of unknown queue pairs.
    pub foreign: Vec<(DeviceId, Completion)>,
    /// The error of the first completion queue that could not be polled; the others were polled.
    pub error: Option<CqError>,
}

impl PollBatch {
    /// Returns the error as a result, for callers that stop at it.
    ///
    /// # Errors
    ///
    /// A completion queue could not be polled.
    pub fn check(&self) -> Result<(), CqError> {
        self.error.map_or(Ok(()), Err)
    }

    pub(super) fn collect(poll: impl FnOnce(&mut dyn FnMut(Event)) -> Polled) -> Self {
        let mut batch = Self::default();
        let polled = poll(&mut |event| match event {
            Event::Completion(wc) => batch.completions.push(wc),
            Event::Foreign { device, completion } => batch.foreign.push((device, completion)),
        });
        batch.error = polled.error;
        batch
    }
}
