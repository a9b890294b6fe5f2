//! What can go wrong between two sides, whatever they do.

use crate::job::{Job, Message};
use polyrail::DeviceCountMismatch;
use polyrail::backend::DeviceError;
use polyrail::endpoint::{BuildError, ConnectError, Endpoint, EndpointError};
use polyrail::exchange::{ControlError, Reason};
use polyrail::hardware::{CompletionQueue, QueuePair};
use polyrail::memory::OutOfRange;
use polyrail::virtual_qp::{PostError, PostRecvError};
use std::error::Error;
use std::time::Duration;

/// Why one side could not do its part, though there is nothing wrong with its files or figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The other side wants more memory than it may have.
    #[error(
        "the other side asks for {bytes} bytes of memory here, where it may have {limit}: a smaller \
         window or message size takes less"
    )]
    TooMuchMemory {
        /// Bytes that it asks for.
        bytes: u64,
        /// Bytes that it may have.
        limit: u64,
    },
    /// Nothing happened.
    #[error("nothing happened for {waited:?}, where {awaited} should have come")]
    Idle {
        /// What was waited for.
        awaited: &'static str,
        /// For how long.
        waited: Duration,
    },
    /// The other side was there, and nothing moved.
    #[error(
        "nothing moved for {waited:?}, where {awaited} should have come, though the other side says \
         that it is there"
    )]
    NoProgress {
        /// What was waited for.
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
    /// The endpoint could not be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The two endpoints could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A device could not be opened, or refused to register a buffer.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The peer's buffer does not go with ours.
    #[error(transparent)]
    Devices(#[from] DeviceCountMismatch),
    /// A buffer is too short: the peer's, as it told us.
    #[error("the peer's buffer is too short")]
    Range(#[from] OutOfRange),
    /// The peer did what the protocol does not allow.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// The peer gave up, for this reason.
    #[error("the other side gave up: {0}")]
    Peer(Reason),
    /// The other side cannot be heard or understood.
    #[error(transparent)]
    Control(ControlError),
    /// A server has other peers to serve.
    #[error(
        "busy with {peers} other{}, as many as are served at a time: try again later", if *.peers == 1 {
            ""
        } else {
            "s"
        }
    )]
    Busy {
        /// How many.
        peers: usize,
    },
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

/// A side's failure, which the other side is told of.
pub(crate) trait Failure: Error {
    /// Whether it only says that the other side has the reason.
    fn is_echo(&self) -> bool;
}

impl Failure for SessionError {
    fn is_echo(&self) -> bool {
        matches!(self, Self::Peer(_) | Self::Control(ControlError::HungUp { .. }))
    }
}

impl SessionError {
    /// The other side has a purpose of its own, where one side has to ask.
    pub(crate) fn both_ask(purpose: &Job) -> Self {
        Self::Protocol(format!("both sides ask; the other one for \"{}\"", purpose.name()))
    }

    /// The other side is done with something else.
    pub(crate) fn other_outcome() -> Self {
        Self::Protocol("it says \"done\" of something else than was asked for".into())
    }

    /// A post was refused: for what failed before it, if anything did.
    pub(crate) fn refused<Q: QueuePair, C: CompletionQueue>(
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
