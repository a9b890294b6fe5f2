//! Queue pairs that are being connected with the peer's, to take the place of those that failed.

use super::place::Place;
use super::replacement::ReplacementAddress;
use crate::backend::{Connecting, DeviceError};

/// A queue pair that is being connected with the peer's.
#[derive(Debug)]
pub(super) struct Joining<Q> {
    pub(super) connecting: Connecting<Q>,
    pub(super) place: Place,
    pub(super) address: ReplacementAddress,
}

/// A queue pair that is connected with the peer's.
pub(super) struct Connected<Q> {
    pub(super) queue_pair: Q,
    pub(super) place: Place,
    pub(super) address: ReplacementAddress,
}

impl<Q> Joining<Q> {
    /// The queue pair, once it is connected.
    pub(super) fn take(&mut self) -> Option<Result<Connected<Q>, DeviceError>> {
        let Self { place, address, .. } = *self;
        let taken = self.connecting.take()?;
        Some(taken.map(|queue_pair| Connected { queue_pair, place, address }))
    }
}
