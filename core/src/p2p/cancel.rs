//! What both ends say when a message or a receive is to be taken back.

use super::error::Failure;

/// How messages and receives are taken back. Both ends need the same version, since the messages of
/// one would otherwise be refused by the other. It travels on the [cards](crate::p2p::Ports).
pub const CANCEL_VERSION: u32 = 1;

/// A message or a receive that cannot be taken back; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CancelError {
    /// The connection failed: `test` returns the failure.
    #[error("the connection failed")]
    Failed(#[source] Failure),
    /// Rails are not re-routed, so they cannot be fenced.
    #[error("a message can be taken back only with re-routing, which fences its rails")]
    NotRerouting,
    /// The peer takes messages back in another way, or does not know how.
    #[error("the peer has version {version} of cancel, but this end has {CANCEL_VERSION}")]
    Peer {
        /// The version on the peer's card; 0 if it has none.
        version: u32,
    },
    /// The handle belongs to no request: `test` has reported it, or it is of another connection.
    #[error("request {number} is unknown, or its result was already returned")]
    NoRequest {
        /// The number in the handle.
        number: u64,
    },
    /// The endpoint has no such end: its messages go one way only. A [`Sender`](super::Sender) or
    /// [`Receiver`](super::Receiver) alone never returns this.
    #[error("the connection carries messages only in the other direction")]
    OneWay,
    /// It is being taken back already.
    #[error("request {number} is being taken back already")]
    AlreadyCancelled {
        /// The number in the handle.
        number: u64,
    },
    /// `test` will return its result.
    #[error("it is too late: request {number} is done")]
    TooLate {
        /// The number in the handle.
        number: u64,
    },
}

/// Whether requests of an end can be taken back at all.
pub(super) const fn check(
    failure: Option<Failure>,
    reroutes: bool,
    peer_version: u32,
) -> Result<(), CancelError> {
    if let Some(failure) = failure {
        return Err(CancelError::Failed(failure));
    }
    if !reroutes {
        return Err(CancelError::NotRerouting);
    }
    if peer_version != CANCEL_VERSION {
        return Err(CancelError::Peer { version: peer_version });
    }
    Ok(())
}
