//! Why a rail was not given a new queue pair.

use super::rail_mismatch::RailMismatch;
use crate::backend::DeviceError;
use polyrail_core::virtual_qp::{self, RailId};

/// A rail was not given a new queue pair. It is as it was, Down if it was; what was made is destroyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReplaceError {
    /// The engine refuses: the rail is not Down, or the queue pair was made for another generation than is
    /// the next now.
    #[error(transparent)]
    Engine(#[from] virtual_qp::ReplaceError),
    /// The peer's queue pair is for another rail.
    #[error("the queue pair here is for {here}, the peer's for {peer}")]
    Rails {
        /// The rail of the queue pair here.
        here: RailId,
        /// The rail of the peer's.
        peer: RailId,
    },
    /// The peer's queue pair was made for another failure of this rail.
    #[error("the queue pair for {rail} is of generation {here} here, of {peer} at the peer")]
    Generation {
        /// The rail.
        rail: RailId,
        /// The generation here.
        here: u16,
        /// The peer's.
        peer: u16,
    },
    /// The two queue pairs are not on devices, or ports, that go together.
    #[error(transparent)]
    Ends(#[from] RailMismatch),
    /// A device has no queue pair to give, or cannot connect it.
    #[error("{rail} (device {device})")]
    Device {
        /// The rail.
        rail: RailId,
        /// The device's name.
        device: String,
        /// Why.
        source: DeviceError,
    },
}

impl ReplaceError {
    pub(super) const fn no_rail(rail: RailId) -> Self {
        Self::Engine(virtual_qp::ReplaceError::NoRail(rail))
    }
}
