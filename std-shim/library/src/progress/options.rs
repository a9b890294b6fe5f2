//! The options of a progress thread.

use std::time::Duration;

/// The timeouts of a progress thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressOptions {
    /// How long a shutdown waits for sends to complete by themselves: 5 s by default. A duration that
    /// overflows the clock means forever.
    pub drain_timeout: Duration,
    /// How long a rail may make no progress while it has sends; then its virtual queue pair fails with
    /// [`EndpointError::Silent`](crate::endpoint::EndpointError::Silent). By default there is no limit:
    /// a peer that is slow to post receives is silent, too. A rail is found after that time and about an eighth of it
    /// more, whether the thread polls or sleeps. It has no effect on virtual queue pairs that heal by
    /// themselves: they have [`Healing::stall_timeout`](crate::endpoint::Healing::stall_timeout).
    pub stall_timeout: Option<Duration>,
}

impl Default for ProgressOptions {
    fn default() -> Self {
        Self { drain_timeout: Duration::from_secs(5), stall_timeout: None }
    }
}
