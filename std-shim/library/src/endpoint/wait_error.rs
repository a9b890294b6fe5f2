//! What can go wrong when completions are waited for.

use crate::backend::DeviceError;

/// Completions could not be waited for. They can be polled for all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// A completion queue is polled only: see
    /// [`completion_channel`](super::EndpointBuilder::completion_channel).
    #[error("a completion queue has no completion channel")]
    NoChannel,
    /// A completion queue cannot be asked to tell.
    #[error("asking a completion queue to tell when it has something")]
    Device(#[from] DeviceError),
    /// The file descriptor cannot be waited on.
    #[error("waiting on the completion channels: errno {errno}")]
    System {
        /// The system's code.
        errno: i32,
    },
}
