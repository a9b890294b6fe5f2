//! Errors of replacing queue pairs.

use super::rail_mismatch::RailMismatch;
use crate::backend::DeviceError;
use polyrail_core::virtual_qp::{self, RailId};

/// A rail was not given a new queue pair. Its state is unchanged; the new queue pair was destroyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReplaceError {
    /// The engine refuses: the rail is not Down, or the queue pair was created for another
    /// generation.
    #[error(transparent)]
    Engine(#[from] virtual_qp::ReplaceError),
    /// The peer's queue pair is for another rail.
    #[error("the queue pair here is for {here}, the peer's for {peer}")]
    Rails {
        /// The rail of the queue pair here.
        here: RailId,
        /// The rail of the peer's queue pair.
        peer: RailId,
    },
    /// The peer's queue pair was created for another failure of this rail.
    #[error("the queue pair for {rail} has generation {here} here, {peer} at the peer")]
    Generation {
        /// The rail.
        rail: RailId,
        /// The generation here.
        here: u16,
        /// The peer's generation.
        peer: u16,
    },
    /// The queue pairs are on devices or ports that do not match.
    #[error(transparent)]
    Ends(#[from] RailMismatch),
    /// A device cannot create or connect a queue pair.
    #[error("{rail} (device {device})")]
    Device {
        /// The rail.
        rail: RailId,
        /// The device's name.
        device: String,
        /// The device's error.
        source: DeviceError,
    },
}

impl ReplaceError {
    pub(super) const fn no_rail(rail: RailId) -> Self {
        Self::Engine(virtual_qp::ReplaceError::NoRail(rail))
    }
}
