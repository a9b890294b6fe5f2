//! What can go wrong between two sides, whatever their job.

use crate::job::{Job, Message};
use polyrail::DeviceCountMismatch;
use polyrail::backend::{Connect, DeviceError};
use polyrail::endpoint::{BuildError, ConnectError, Endpoint, EndpointError};
use polyrail::exchange::{ControlError, HandshakeError, Reason};
use polyrail::hardware::{CompletionQueue, CqError};
use polyrail::memory::OutOfRange;
use polyrail::p2p::{CallError, P2pBuildError, P2pConnectError};
use polyrail::virtual_qp::{PostError, PostRecvError};
use std::error::Error;
use std::time::Duration;

/// Why one side could not do its part, apart from problems with its files or figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The other side wants more memory than it may have.
    #[error(
        "the other side asks for {bytes} bytes of memory here, but the limit is {limit}: a smaller \
         window or message size needs less"
    )]
    TooMuchMemory {
        /// Bytes that it asks for.
        bytes: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// Nothing happened.
    #[error("nothing happened for {waited:?} while waiting for {awaited}")]
    Idle {
        /// What this side waited for.
        awaited: &'static str,
        /// For how long.
        waited: Duration,
    },
    /// The other side was alive, but no data moved.
    #[error(
        "no data moved for {waited:?} while waiting for {awaited}, though the other side reports that it \
         is alive"
    )]
    NoProgress {
        /// What this side waited for.
        awaited: &'static str,
        /// For how long.
        waited: Duration,
    },
    /// The endpoint failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The endpoint refused a request that it should have taken.
    #[error("posting")]
    Post(#[source] EndpointError),
    /// The endpoint could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The endpoint for messages could not be built.
    #[error(transparent)]
    BuildP2p(#[from] P2pBuildError),
    /// The two endpoints for messages could not be connected.
    #[error(transparent)]
    ConnectP2p(#[from] P2pConnectError),
    /// The endpoint for messages failed, or refused what it should have taken.
    #[error("messages")]
    Messages(#[from] CallError),
    /// No message made progress.
    #[error("no message made progress for {waited:?}")]
    MessagesStalled {
        /// For how long.
        waited: Duration,
    },
    /// A completion queue of the endpoint for messages broke.
    #[error(transparent)]
    Queue(#[from] CqError),
    /// The two endpoints could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A device could not be opened, or refused to register a buffer.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The peer's buffer does not match ours.
    #[error(transparent)]
    Devices(#[from] DeviceCountMismatch),
    /// The peer's buffer, as it described it, is too short.
    #[error("the peer's buffer is too short")]
    Range(#[from] OutOfRange),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// The peer gave up, for this reason.
    #[error("the other side gave up: {0}")]
    Peer(Reason),
    /// The control channel failed, or carried something invalid.
    #[error(transparent)]
    Control(ControlError),
    /// A server is busy with other peers.
    #[error(
        "busy with {peers} other{}, as many as are served at a time: try again later", if *.peers == 1 {
            ""
        } else {
            "s"
        }
    )]
    Busy {
        /// How many peers.
        peers: usize,
    },
    /// A peer whose control channel broke comes back too late.
    #[error("what the peer asked for has ended while its control channel was broken")]
    Ended,
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl From<PostRecvError> for SessionError {
    /// Without the names that [`EndpointQp::post_error`](polyrail::endpoint::EndpointQp::post_error) knows.
    fn from(error: PostRecvError) -> Self {
        Self::Post(EndpointError::Refused(error.into()))
    }
}

impl From<ControlError> for SessionError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::GaveUp { reason } => Self::Peer(reason),
            error => Self::Control(error),
        }
    }
}

/// A side's failure, which it reports to the other side.
pub(crate) trait Failure: Error {
    /// Returns whether it only reports a failure of the other side, which has the reason.
    fn is_echo(&self) -> bool;
}

impl Failure for SessionError {
    fn is_echo(&self) -> bool {
        matches!(self, Self::Peer(_) | Self::Control(ControlError::HungUp { .. }))
    }
}

impl SessionError {
    /// Both sides have a purpose, but only one may ask.
    pub(crate) fn both_ask(purpose: &Job) -> Self {
        Self::Protocol(format!("both sides ask; the other one for \"{}\"", purpose.name()))
    }

    /// Returns whether a rail may be what failed.
    pub(crate) const fn is_of_rails(&self) -> bool {
        matches!(self, Self::Endpoint(_) | Self::Messages(_) | Self::MessagesStalled { .. })
    }

    /// The other side reports the end of another job.
    pub(crate) fn other_outcome() -> Self {
        Self::Protocol("its \"done\" is for another job than the one asked for".into())
    }

    /// The peer's endpoint is for `theirs`, requests or messages, and this side's for the other.
    pub(crate) fn other_kind(theirs: &'static str, ours: &'static str) -> Self {
        ControlError::from(HandshakeError::Reach { theirs, ours }).into()
    }

    /// A post was refused; the cause is an earlier failure, if there is one.
    pub(crate) fn refused<Q: Connect, C: CompletionQueue>(
        endpoint: &mut Endpoint<Q, C>,
        refusal: impl Into<PostError>,
    ) -> Self {
        let refusal = refusal.into();
        match endpoint.explain_refusal(refusal) {
            Some(failure) => Self::Endpoint(failure),
            None => Self::Post(endpoint.post_error(refusal)),
        }
    }

    pub(crate) fn out_of_turn(message: &Message, expected: &'static str) -> Self {
        ControlError::from(message.out_of_turn(expected)).into()
    }
}
