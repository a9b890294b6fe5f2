//! What becomes of rails that fail, with [`RailFailure::Reroute`].
//!
//! 1. `stop`: a completion failed, a driver refused, the owner or the peer said so. The rail's queue pair
//!    is moved to the error state, and what is in flight on it succeeds or is lost (`rail::in_flight`).
//! 2. `fence`: all its completions are in, so the peer is told what arrived; the peer tells the same.
//!    What arrived of what was lost is done.
//! 3. `again`: what did not arrive is posted again, plain fragments already before the peer's word, on
//!    rails with credits; SENDs and notifies on the new queue pair of their rail.
//! 4. `replace`: a new queue pair takes the rail's place, and its receives are posted.
//!
//! `control` is what the two ends say to each other; the states in between are in `rail::lifecycle`.
//! `give_up` is the end of a virtual queue pair that cannot go on.
//!
//! While it is not known what arrived of what a rail lost, nothing is moved past `posted` in the ring:
//! a fragment that was posted again is acknowledged, and the lost one may still be carried out after
//! that. So nobody is told that the request is done before.

mod again;
mod control;
mod fence;
mod give_up;
mod replace;
mod stop;

pub use replace::{Rejected, ReplaceError};

use super::config::RailFailure;
use crate::rail::RailSet;

/// What becomes of rails that fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reroute {
    /// Other rails take over.
    pub(super) is_on: bool,
    /// It is not known what arrived of what a rail lost: nothing moves past `posted`.
    pub(super) awaits_fence: bool,
    /// The peer is to be told that the virtual queue pair failed.
    tells_error: bool,
    /// Rails whose stragglers may still write the peer's memory, of a virtual queue pair that failed.
    unfenced: RailSet,
    /// Messages of the peer's that told nothing new.
    ignored: u64,
}

impl Reroute {
    pub(super) fn new(failure: RailFailure) -> Self {
        Self {
            is_on: failure == RailFailure::Reroute,
            awaits_fence: false,
            tells_error: false,
            unfenced: RailSet::EMPTY,
            ignored: 0,
        }
    }
}
