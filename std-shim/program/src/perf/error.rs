//! Errors of measurements.

use crate::fault::UnknownRail;
use crate::job::{JobOutcome, WorkloadError};
use crate::session::{Failure, SessionError};

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// Numbers out of range.
    #[error(transparent)]
    Workload(WorkloadError),
    /// A fault was requested for an unknown rail.
    #[error(transparent)]
    Fault(UnknownRail),
    /// The system has no memory for the comparison with memcpy.
    #[error("no memory for the comparison with memcpy: {0}")]
    Memory(String),
    /// The number of requests that arrived differs from the number sent.
    #[error("{sent} requests were sent, but {received} arrived at the peer")]
    Lost {
        /// Requests that completed at the end that posted them.
        sent: u64,
        /// Requests that arrived at the other end.
        received: u64,
    },
    /// The session between the two ends failed.
    #[error(transparent)]
    Session(SessionError),
}

impl From<WorkloadError> for PerfError {
    fn from(error: WorkloadError) -> Self {
        Self::Workload(error)
    }
}

impl<E: Into<SessionError>> From<E> for PerfError {
    fn from(error: E) -> Self {
        Self::Session(error.into())
    }
}

impl Failure for PerfError {
    fn is_echo(&self) -> bool {
        matches!(self, Self::Session(error) if error.is_echo())
    }
}

/// Returns how many requests the other side counted.
pub(super) fn requests_of(outcome: JobOutcome) -> Result<u64, SessionError> {
    outcome.requests().ok_or_else(SessionError::other_outcome)
}
