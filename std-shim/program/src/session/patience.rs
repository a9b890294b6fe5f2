//! How long one side waits for the other: never forever, unless the caller asks for that.

use polyrail::exchange::{MESSAGE_TIMEOUT, Timeouts};
use std::time::Duration;

/// How long one side waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Until a connection stands, and for each answer while the two sides meet and part.
    pub answer: Duration,
    /// While data moves: how long nothing may happen, neither over the rails nor on the control channel; and how
    /// long a control channel that broke may be missing.
    pub idle: Duration,
    /// While data moves: how long no data may move, though the other side reports that it is alive. The far
    /// end sees no data of a measured WRITE or READ, so there it limits the whole measurement.
    pub progress: Duration,
}

impl Default for Patience {
    /// 10 seconds for an answer, a minute of silence, 10 minutes without data.
    fn default() -> Self {
        let idle = Duration::from_secs(60);
        let progress = Duration::from_secs(600);
        Self { answer: MESSAGE_TIMEOUT, idle, progress }
    }
}

impl Patience {
    /// Returns the timeouts of a control channel.
    pub(crate) fn timeouts(&self) -> Timeouts {
        let Self { answer, idle, .. } = *self;
        Timeouts { connect: answer, message: answer, anew: idle, ..Timeouts::default() }
    }
}
