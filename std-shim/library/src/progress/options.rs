//! How a progress thread is to be.

use std::time::Duration;

/// How patient a progress thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressOptions {
    /// How long a shutdown waits for sends to complete by themselves: 5 s, unless said otherwise.
    /// More than clocks can tell is for ever.
    pub drain_timeout: Duration,
    /// How long a rail may be without headway while it has sends; then its virtual queue pair fails
    /// with [`EndpointError::Silent`](crate::endpoint::EndpointError::Silent). Unless said
    /// otherwise there is no limit: a peer that takes its time to post receives is silent, too.
    pub stall_timeout: Option<Duration>,
}

impl Default for ProgressOptions {
    fn default() -> Self {
        Self { drain_timeout: Duration::from_secs(5), stall_timeout: None }
    }
}
