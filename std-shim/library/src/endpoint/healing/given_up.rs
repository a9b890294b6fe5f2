//! Why an endpoint that heals by itself gave up.

use polyrail_core::virtual_qp::{RailId, RailSet};
use std::time::Duration;

/// Why it gave up.
#[derive(Clone, Copy, Debug)]
pub(in crate::endpoint) enum GivenUp {
    /// It is not known what arrived on a rail.
    NoFence { rail: RailId, waited: Duration, unfenced: RailSet },
    /// Requests wait for rails that did not return.
    NotHealed { out_of_service: RailSet, waited: Duration, unfenced: RailSet },
}
