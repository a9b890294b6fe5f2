//! How long things may take between two sides.

use std::time::Duration;

/// How long a peer may take for one message, from its first byte to its last, and for its part of
/// the set-up: long enough for a host that swaps or registers much memory, short enough for people.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long connections of one side may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until a connection is made, for all addresses of a name together. The system has its own timeout
    /// for looking up the name.
    pub connect: Duration,
    /// Until a peer connects; `None`: forever.
    pub accept: Option<Duration>,
    /// For one message, from its first byte to its last, and for the peer's part of the set-up.
    pub message: Duration,
    /// Until a link that broke is made anew, where both sides agree to that.
    pub anew: Duration,
}

impl Default for Timeouts {
    /// 10 seconds each; a minute until a link is made anew.
    fn default() -> Self {
        let patience = MESSAGE_TIMEOUT;
        let anew = Duration::from_secs(60);
        Self { connect: patience, accept: Some(patience), message: patience, anew }
    }
}
