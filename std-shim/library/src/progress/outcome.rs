//! How a request ended.

use super::error::RequestError;
use polyrail_core::virtual_cq::VirtualWc;
use std::fmt::Debug;

/// How a request ended, for each kind of request that a thread takes: what its [`Pending`](super::Pending) holds in
/// the end. Implemented in this crate only.
pub trait Outcome: Copy + Debug {
    /// The caller's name for the request, which does not travel.
    type Name: Copy + Debug;

    /// The thread is gone, and whether the request was carried out is unknown.
    const ABANDONED: Self;

    /// The same under the caller's name.
    #[must_use]
    fn named(self, name: Self::Name) -> Self;
}

/// From the thread to a handle: how a request ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report<O> {
    pub(super) slot: u16,
    pub(super) outcome: O,
}

/// How a request to a virtual queue pair ended.
pub(super) type RequestOutcome = Result<VirtualWc, RequestError>;

impl Outcome for RequestOutcome {
    type Name = u64;

    const ABANDONED: Self = Err(RequestError::Abandoned);

    fn named(self, wr_id: u64) -> Self {
        self.map(|wc| VirtualWc { wr_id, ..wc })
    }
}
