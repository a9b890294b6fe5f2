//! Errors between two sides, for any job.

use super::backend::Backend;
use crate::job::{Job, Message};
use polyrail::backend::{Connect, DeviceError};
use polyrail::endpoint::{BuildError, ConnectError, Endpoint, EndpointError};
use polyrail::hardware::{CompletionQueue, CqError};
use polyrail::link::{HandshakeError, LinkError, Reason};
use polyrail::memory::{DeviceCountMismatch, OutOfRange};
use polyrail::p2p::{CallError, P2pBuildError, P2pConnectError};
use polyrail::virtual_qp::{PostError, PostRecvError};
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

fn joined(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a side failed, apart from problems with its files or its measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The other side requires more memory than it may use.
    #[error(
        "the peer requires {bytes} bytes of memory on this host, but --max-memory is {limit}: \
         choose a smaller window or message size"
    )]
    TooMuchMemory {
        /// Bytes that it requires.
        bytes: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// Neither data nor control messages arrived.
    #[error("nothing happened for {waited:?} while waiting for {awaited}")]
    Idle {
        /// What this side waited for.
        awaited: &'static str,
        /// For how long.
        waited: Duration,
    },
    /// The other side was alive, but no data moved.
    #[error(
        "no data moved for {waited:?} while waiting for {awaited}, although the peer reports that it is \
         alive"
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
    /// The endpoint refused a request that it should have accepted.
    #[error("cannot post a request")]
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
    /// The endpoint for messages failed, or refused a message that it should have accepted.
    #[error("cannot send or receive a message")]
    Messages(#[from] CallError),
    /// No message made progress.
    #[error("no message made progress for {waited:?}")]
    MessagesStalled {
        /// For how long.
        waited: Duration,
    },
    /// A completion queue of the endpoint for messages failed.
    #[error(transparent)]
    Queue(#[from] CqError),
    /// The two endpoints could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A device could not be opened, or refused to register a buffer.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The two sides' buffers are registered with different numbers of devices.
    #[error(transparent)]
    Devices(#[from] DeviceCountMismatch),
    /// The buffer that the peer described is too short.
    #[error("the peer's buffer is too short for the requests")]
    Range(#[from] OutOfRange),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// The peer failed, for this reason, in the words of the peer: "this side" is the peer.
    #[error("the other side reports: {0}")]
    Peer(Reason),
    /// The control channel failed, or carried something invalid.
    #[error(transparent)]
    Link(LinkError),
    /// A server is busy with other peers.
    #[error(
        "the server is busy with {peers} other peer{}: try again later",
        if *.peers == 1 { "" } else { "s" }
    )]
    Busy {
        /// How many peers it serves.
        peers: usize,
    },
    /// The peer uses devices of a kind that this server does not offer.
    #[error(
        "the peer uses {asked} devices, but this server offers only {}: start both sides with the same \
         --backend",
        offered.join(", ")
    )]
    NotOffered {
        /// The kind of the peer's devices.
        asked: Backend,
        /// Devices of this server.
        offered: Vec<String>,
    },
    /// None of this server's network interfaces can reach the peer's.
    #[error("no device here ({}) can reach the peer's at {address}", own.join(", "))]
    NoPartner {
        /// The address of the peer's device.
        address: IpAddr,
        /// Devices of this server.
        own: Vec<String>,
    },
    /// The devices of this server that can reach the peer's do not alternate as the peer's do.
    #[error(
        "rails use devices in turn, but the peer's at {} can be reached here from {}, in this order: \
         select pairs with --device at both ends",
        joined(theirs),
        joined(own)
    )]
    NotInTurn {
        /// The addresses of the peer's devices.
        theirs: Vec<IpAddr>,
        /// The address of this server for each of them.
        own: Vec<IpAddr>,
    },
    /// The system could not start a thread.
    #[error("cannot start a thread that {task}")]
    Thread {
        /// What the thread would have done, as the end of the sentence.
        task: &'static str,
        /// Why: EAGAIN for a limit of the user, the container (`pids.max`) or the system, or for
        /// lack of memory.
        source: io::Error,
    },
    /// The user asked to stop.
    #[error("interrupted by a signal")]
    Interrupted,
}

impl From<PostRecvError> for SessionError {
    /// Converts without the device names that
    /// [`EndpointQp::post_error`](polyrail::endpoint::EndpointQp::post_error) adds.
    fn from(error: PostRecvError) -> Self {
        Self::Post(EndpointError::Refused(error.into()))
    }
}

impl From<LinkError> for SessionError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::GaveUp { reason } | LinkError::TokenRefused { reason } => Self::Peer(reason),
            error => Self::Link(error),
        }
    }
}

/// A failure of a side, which the side reports to the other one.
pub(crate) trait Failure: Error {
    /// Returns whether this is only the effect of a failure of the other side, which has the cause.
    fn is_echo(&self) -> bool;
}

impl Failure for SessionError {
    fn is_echo(&self) -> bool {
        matches!(self, Self::Peer(_) | Self::Link(LinkError::HungUp { .. }))
    }
}

impl SessionError {
    /// Both hellos state a purpose, but only one side may.
    pub(crate) fn both_ask(purpose: &Job) -> Self {
        Self::Protocol(format!("its hello states a purpose, \"{}\", as ours does", purpose.name()))
    }

    /// Returns whether a failed rail may be the cause.
    pub(crate) const fn is_of_rails(&self) -> bool {
        matches!(self, Self::Endpoint(_) | Self::Messages(_) | Self::MessagesStalled { .. })
    }

    /// The report of the other side is for another kind of job.
    pub(crate) fn other_outcome() -> Self {
        Self::Protocol("its \"done\" is for another kind of job than requested".into())
    }

    /// The peer's endpoint is for `theirs`, this side's for `ours`: requests or messages.
    pub(crate) fn other_kind(theirs: &'static str, ours: &'static str) -> Self {
        LinkError::from(HandshakeError::Reach { theirs, ours }).into()
    }

    /// A request was refused: returns the earlier failure that caused it, or else the refusal.
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
        LinkError::from(message.out_of_turn(expected)).into()
    }
}
