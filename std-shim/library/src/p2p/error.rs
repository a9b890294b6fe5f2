//! What can go wrong when endpoints for messages are made and connected.

use super::message::End;
use super::sizes::QUEUE_PAIRS;
use crate::backend::{ConnectOptionError, DeviceError, Gid};
use crate::endpoint;
use polyrail_core::p2p::{self, CardError, PoolError, TooManyKeys};
use polyrail_core::virtual_cq::{AttachError, TooManyCqs};

/// An endpoint could not be made; nothing of it is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum P2pBuildError {
    /// The rails have no place, or a device refused.
    #[error(transparent)]
    Rails(#[from] endpoint::BuildError),
    /// More queue pairs than there is room for, or none.
    #[error("{rails} rails of {each} queue pairs, but 1 to {QUEUE_PAIRS} are allowed in all")]
    QueuePairs {
        /// Rails asked for.
        rails: usize,
        /// Queue pairs of each.
        each: usize,
    },
    /// A value of the [`ConnectOptions`](crate::backend::ConnectOptions) does not fit its field in packets.
    #[error(transparent)]
    ConnectOption(#[from] ConnectOptionError),
    /// Memory for rings and records.
    #[error("memory of the protocol's own")]
    Memory(#[source] DeviceError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] p2p::BuildError),
    /// A device's pool of receives.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// As many members as the set was made for.
    #[error("{most} members, as many as the set was made for")]
    Members {
        /// That many.
        most: u16,
    },
    /// More devices than memory can have keys for.
    #[error(transparent)]
    Keys(#[from] TooManyKeys),
    /// The engine refused the completion queues.
    #[error(transparent)]
    Cqs(#[from] TooManyCqs),
    /// The engine refused to route completions.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// Two endpoints do not match, or a queue pair refused. Queue pairs that were moved stay where they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum P2pConnectError {
    /// Messages go one way, and not from the one that only sends to the one that only receives.
    #[error(
        "{end}: {}",
        if *here { "the peer has no end that goes with it" } else { "it is not here, and the peer's goes with it" }
    )]
    OneWay {
        /// Which end here.
        end: End,
        /// Whether it is the one that is there.
        here: bool,
    },
    /// The i-th queue pair connects to the peer's i-th, so both sides need the same number.
    #[error("{end}: {here} queue pairs here, {peer} at the peer")]
    QueuePairs {
        /// Which end here.
        end: End,
        /// Queue pairs here.
        here: usize,
        /// Queue pairs at the peer.
        peer: usize,
    },
    /// Two ports have addresses of different versions of IP, and cannot reach each other.
    #[error(
        "{end}: queue pair {queue_pair} (device {device}): {} here ({here}), {} at the peer ({peer})",
        here.kind(),
        peer.kind()
    )]
    Gids {
        /// Which end here.
        end: End,
        /// Its place.
        queue_pair: usize,
        /// Its device's name.
        device: String,
        /// Address of its port here.
        here: Gid,
        /// Address of its port at the peer.
        peer: Gid,
    },
    /// The cards do not fit.
    #[error("{end}")]
    Card {
        /// Which end here.
        end: End,
        /// What does not fit.
        source: CardError,
    },
    /// A queue pair could not change its state.
    #[error("{end}: queue pair {queue_pair} (device {device})")]
    Modify {
        /// Which end here.
        end: End,
        /// Its place.
        queue_pair: usize,
        /// Its device's name.
        device: String,
        /// Why.
        source: DeviceError,
    },
}
