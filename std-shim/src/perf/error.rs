//! What can go wrong with a measurement.

use super::workload::{MAX_MESSAGE_SIZE, MAX_WINDOW};
use crate::session::{Failure, SessionError};

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// A message size that cannot be.
    #[error("requests of {0} bytes: 1 to {MAX_MESSAGE_SIZE} can be")]
    MessageSize(u32),
    /// A window that cannot be.
    #[error("a window of {0} requests: 1 to {MAX_WINDOW} can be")]
    Window(u32),
    /// The system gave no memory to compare with.
    #[error("no memory to compare with: {0}")]
    Memory(String),
    /// Not what was sent arrived.
    #[error("{sent} requests were sent, and {received} arrived at the far end")]
    Lost {
        /// Requests that the near end saw complete.
        sent: u64,
        /// Requests that the far end saw arrive.
        received: u64,
    },
    /// The two ends could not work together.
    #[error(transparent)]
    Session(SessionError),
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
