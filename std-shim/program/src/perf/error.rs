//! What can go wrong with a measurement.

use crate::fault::UnknownRail;
use crate::job::{JobOutcome, WorkloadError};
use crate::session::{Failure, SessionError};

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// Numbers out of range.
    #[error(transparent)]
    Workload(WorkloadError),
    /// A fault was requested on a rail that does not exist.
    #[error(transparent)]
    Fault(UnknownRail),
    /// The system gave no memory to compare with.
    #[error("no memory to compare with: {0}")]
    Memory(String),
    /// What arrived differs from what was sent.
    #[error("{sent} requests were sent, but {received} arrived at the other end")]
    Lost {
        /// Requests that the end which posted them saw complete.
        sent: u64,
        /// Requests that the other end saw arrive.
        received: u64,
    },
    /// The two ends could not work together.
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

/// Returns how many requests the other side counted at the end, if it measured.
pub(super) fn requests_of(outcome: JobOutcome) -> Result<u64, SessionError> {
    outcome.requests().ok_or_else(SessionError::other_outcome)
}
