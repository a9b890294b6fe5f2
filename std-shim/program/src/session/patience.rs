//! How long one side waits for the other: never for ever, unless somebody asks for that.

use polyrail::exchange::{MESSAGE_TIMEOUT, Timeouts};
use std::time::Duration;

/// How long one side waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Until a connection stands, and for each answer while the two sides meet and part.
    pub answer: Duration,
    /// While data moves: how long nothing at all may happen, neither over the rails nor beside them.
    pub idle: Duration,
    /// While data moves: how long nothing may move, though the other side says that it is there. Of a
    /// measured WRITE or READ the far end sees nothing move, so there it limits the whole.
    pub progress: Duration,
}

impl Default for Patience {
    /// 10 seconds for an answer, a minute of silence, 10 minutes in which nothing moves.
    fn default() -> Self {
        let idle = Duration::from_secs(60);
        let progress = Duration::from_secs(600);
        Self { answer: MESSAGE_TIMEOUT, idle, progress }
    }
}

impl Patience {
    /// What it means for a connection.
    pub(crate) fn timeouts(&self) -> Timeouts {
        Timeouts { connect: self.answer, message: self.answer, ..Timeouts::default() }
    }
}
