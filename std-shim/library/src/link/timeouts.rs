//! How long the parts of a link's life may take.

use std::time::Duration;

/// How long a peer may take for one message, from its first byte to its last, and for its part of
/// the set-up: long enough for a host that swaps or registers much memory, short enough for people.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the parts of a link's life may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until a link is connected, for all addresses of a name together. The system has a separate
    /// timeout for the lookup of the name.
    pub connect: Duration,
    /// Until a peer connects; `None`: no limit.
    pub accept: Option<Duration>,
    /// For one message, from its first byte to its last, and for the peer's part of the set-up,
    /// which may take [longer](super::Link::time_left) if the link breaks meanwhile.
    pub message: Duration,
    /// Until a link that broke is resumed, if both sides agree to that.
    ///
    /// The owner's calls resume a link, and no thread does: up to seven calls of the side that
    /// connects, three more if the address that answered before does not answer or refuses, and up
    /// to three more for each address that is tried before the one that answers; and up to three of
    /// the side that listens. A gap between two calls counts as at most 500 ms of this side's
    /// limits, so that an owner that was stopped, or was busy, does not give up at its next call.
    /// The peer's limits go on meanwhile: 5 s for each answer of the side that listens, or 1 s once
    /// the address that answered before has refused, and [`reset`](Self::reset) for the whole of
    /// the side that connects.
    pub resume: Duration,
    /// Until the side that connects again gives up because the address that answered before refuses
    /// each attempt: its peer answers that there is no such link, or the peer's system that there
    /// is no such process. If it has other addresses, they are tried first, one after another, each
    /// for up to 1 s to connect and 1 s for each answer.
    pub refused: Duration,
    /// The [`resume`](Self::resume) limit of the side that listens after its link was reset. A
    /// process that is killed resets its links, too, so this is how late that is noticed.
    pub reset: Duration,
    /// Until a link breaks whose peer's host does not answer, if both sides agree to resume it.
    pub silence: Duration,
}

impl Default for Timeouts {
    /// 10 seconds to connect, to accept and for a message; a minute until a link is resumed, but 5
    /// seconds after a reset, and none after a refusal once its other addresses were tried; 9
    /// seconds of silence, so that a link breaks before the messages over it are given up.
    fn default() -> Self {
        Self {
            connect: MESSAGE_TIMEOUT,
            accept: Some(MESSAGE_TIMEOUT),
            message: MESSAGE_TIMEOUT,
            resume: Duration::from_secs(60),
            refused: Duration::ZERO,
            reset: Duration::from_secs(5),
            silence: Duration::from_secs(9),
        }
    }
}
