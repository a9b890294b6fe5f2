//! How long a side waits for the other side.

use polyrail::link::{MESSAGE_TIMEOUT, Timeouts};
use std::time::Duration;

/// How long a side waits for the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTimeouts {
    /// To connect, and for each answer while the connection is set up or closed. If the control
    /// channel breaks meanwhile, the time begins again when the channel is reconnected, up to
    /// `idle` later in all.
    pub answer: Duration,
    /// While data moves: without anything from the other side, neither data over the rails nor
    /// messages over the control channel. Also the limit for reconnecting a broken control channel.
    pub idle: Duration,
    /// While data moves: without data, although the other side reports that it is alive. The far
    /// end of a measured WRITE or READ sees no data, so there this limits the whole measurement.
    pub progress: Duration,
}

impl Default for PeerTimeouts {
    /// 10 seconds for an answer, a minute without anything, 10 minutes without data.
    fn default() -> Self {
        let idle = Duration::from_secs(60);
        let progress = Duration::from_secs(600);
        Self { answer: MESSAGE_TIMEOUT, idle, progress }
    }
}

impl PeerTimeouts {
    /// Returns the timeouts of the link that is the control channel.
    pub(crate) fn link(&self) -> Timeouts {
        let Self { answer, idle, .. } = *self;
        Timeouts { connect: answer, message: answer, resume: idle, ..Timeouts::default() }
    }
}
