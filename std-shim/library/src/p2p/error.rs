//! Errors of building and connecting message endpoints, and why they fail.

use super::message::End;
use super::sizes::QUEUE_PAIRS;
use crate::backend::{ConnectOptionError, DeviceError, Gid, link_layers};
use crate::endpoint::{self, NamedRailError};
use crate::queue_pair::backends;
use polyrail_core::p2p::{self, CardError, Failure, PoolError, TooManyKeys};
use polyrail_core::virtual_cq::{AttachError, TooManyCqs};
use std::error::Error;
use std::fmt;

/// An endpoint could not be built; everything created for it was destroyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum P2pBuildError {
    /// The rails cannot be placed, or a device refused.
    #[error(transparent)]
    Rails(#[from] endpoint::BuildError),
    /// No queue pairs, or more than an endpoint supports.
    #[error("{rails} rails of {each} queue pairs, but 1 to {QUEUE_PAIRS} are allowed in all")]
    QueuePairs {
        /// Requested rails.
        rails: usize,
        /// Requested queue pairs per rail.
        each: usize,
    },
    /// A value of [`ConnectOptions`](crate::backend::ConnectOptions) does not fit its field.
    #[error(transparent)]
    ConnectOption(#[from] ConnectOptionError),
    /// The memory of rings and records could not be registered.
    #[error("cannot register memory for the protocol")]
    Memory(#[source] DeviceError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] p2p::BuildError),
    /// A device's shared receive queue has no room for another member that receives: see
    /// [capacities](super::P2pEndpointSet#capacities).
    #[error(
        "the shared receive queue of device {device} has no room for another member that receives"
    )]
    Pool {
        /// The device's name.
        device: String,
        /// Receives that are needed, and that are left.
        source: PoolError,
    },
    /// The set is full.
    #[error("the set is full: it was built for {most} members")]
    Members {
        /// The maximum number of members.
        most: u16,
    },
    /// More devices than a region has room for keys.
    #[error(transparent)]
    Keys(#[from] TooManyKeys),
    /// The engine refused the completion queues.
    #[error(transparent)]
    Cqs(#[from] TooManyCqs),
    /// The engine refused to route completions.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

impl P2pBuildError {
    /// Whether the system has no file descriptor left for the endpoint, which is temporary. Over
    /// TCP, each completion queue has one.
    pub const fn lacks_descriptor(&self) -> bool {
        let Self::Rails(endpoint::BuildError::Device { source, .. }) = self else { return false };
        source.lacks_descriptor()
    }
}

/// Why an end of a message endpoint failed, with its device's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFailure {
    /// The end that failed.
    pub end: End,
    /// The failure.
    pub failure: Failure,
    /// Name of the device of the rail that failed; empty after other failures.
    pub device: String,
}

impl fmt::Display for NamedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failure {
            Failure::Rail(error) => {
                let device = self.device.clone();
                write!(f, "{}: {}", self.end, NamedRailError { error, device })
            }
            failure => write!(f, "{}: {failure}", self.end),
        }
    }
}

impl Error for NamedFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self.failure {
            // The message has all of it, and the device's name.
            Failure::Rail(_) => None,
            _ => self.failure.source(),
        }
    }
}

/// Two endpoints do not match, or a queue pair refused. Queue pairs that changed state keep it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum P2pConnectError {
    /// An end has no counterpart at the other endpoint. An endpoint that only sends needs one that
    /// receives, and the reverse.
    #[error(
        "{end}: {}",
        if *here { "the peer has no counterpart" } else { "this endpoint has none, but the peer has its counterpart" }
    )]
    OneWay {
        /// The end of this endpoint.
        end: End,
        /// Whether this endpoint has it.
        here: bool,
    },
    /// The i-th queue pair connects to the peer's i-th queue pair, so both ends need the same
    /// number.
    #[error(
        "{end}: {here} queue pairs here, {peer} at the peer: the two ends need the same rails and queue_pairs_per_rail"
    )]
    QueuePairs {
        /// The end of this endpoint.
        end: End,
        /// Queue pairs here.
        here: usize,
        /// Queue pairs at the peer.
        peer: usize,
    },
    /// One end of a queue pair is over TCP, and the other is not.
    #[error("{end}: queue pair {queue_pair} (device {device}): {}", backends(*here_is_tcp))]
    Backends {
        /// The end of this endpoint.
        end: End,
        /// Index of the queue pair.
        queue_pair: usize,
        /// Its device's name.
        device: String,
        /// Whether the end here is the one over TCP.
        here_is_tcp: bool,
    },
    /// One of two ports is InfiniBand, and the other is Ethernet.
    #[error("{end}: queue pair {queue_pair} (device {device}): {}", link_layers(*here_is_infiniband))]
    LinkLayers {
        /// The end of this endpoint.
        end: End,
        /// Index of the queue pair.
        queue_pair: usize,
        /// Its device's name.
        device: String,
        /// Whether the port here is the one of InfiniBand.
        here_is_infiniband: bool,
    },
    /// Two ports have addresses of different IP versions, so they cannot reach each other.
    #[error(
        "{end}: queue pair {queue_pair} (device {device}): {} here ({here}), {} at the peer ({peer})",
        here.kind(),
        peer.kind()
    )]
    Gids {
        /// The end of this endpoint.
        end: End,
        /// Index of the queue pair.
        queue_pair: usize,
        /// Its device's name.
        device: String,
        /// GID of its port here.
        here: Gid,
        /// GID of its port at the peer.
        peer: Gid,
    },
    /// The port here is a loopback, which reaches only this host, and the peer is on another host.
    #[error(
        "{end}: queue pair {queue_pair} (device {device}): loopback here ({here}), {peer} at the peer, which is on another host"
    )]
    Loopback {
        /// The end of this endpoint.
        end: End,
        /// Index of the queue pair.
        queue_pair: usize,
        /// Its device's name.
        device: String,
        /// GID of its port here.
        here: Gid,
        /// GID of its port at the peer.
        peer: Gid,
    },
    /// The cards of the two ends do not match.
    #[error("{end}: the cards of the two ends do not match")]
    Card {
        /// The end of this endpoint.
        end: End,
        /// The mismatch.
        source: CardError,
    },
    /// A queue pair could not change its state.
    #[error("{end}: queue pair {queue_pair} (device {device})")]
    Modify {
        /// The end of this endpoint.
        end: End,
        /// Index of the queue pair.
        queue_pair: usize,
        /// Its device's name.
        device: String,
        /// The device's error.
        source: DeviceError,
    },
}

impl P2pConnectError {
    /// Whether the same call may succeed later, because a port is down, no path to the peer is
    /// found, or the system can start no thread that connects a queue pair.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Modify { source, .. } if source.may_pass())
    }
}
