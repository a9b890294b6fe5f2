//! Errors of waiting for completions.

use crate::backend::DeviceError;

/// Waiting for completions failed. Polling still works.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// A completion queue has no channel: see
    /// [`completion_channel`](super::EndpointBuilder::completion_channel).
    #[error("a completion queue has no completion channel: build with completion_channel")]
    NoChannel,
    /// A completion queue cannot be armed.
    #[error("cannot arm a completion queue")]
    Device(#[from] DeviceError),
    /// The file descriptor cannot be polled.
    #[error("cannot wait for completion channels: errno {errno}")]
    System {
        /// The operating system's error code.
        errno: i32,
    },
}
