//! What becomes of rails that fail.

use polyrail::endpoint::{EndpointBuilder, Healing};
use polyrail::virtual_qp::RailFailure;
use std::time::Duration;

/// What becomes of the rails of a side when they fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailCare {
    /// Whether other rails take over; a single one always fails for good.
    pub rail_failure: RailFailure,
    /// Time without progress after which a rail is considered dead.
    pub stall_timeout: Duration,
    /// How long requests wait for rails that are out of service, and for the other side's word about one that
    /// failed.
    pub rail_timeout: Duration,
}

impl Default for RailCare {
    /// Other rails take over. 10 s without progress, a minute without rails.
    fn default() -> Self {
        Self {
            rail_failure: RailFailure::Reroute,
            stall_timeout: Duration::from_secs(10),
            rail_timeout: Duration::from_secs(60),
        }
    }
}

impl RailCare {
    /// Adds this choice to those of an endpoint with so many rails.
    pub(crate) fn chosen(&self, builder: EndpointBuilder, rails: usize) -> EndpointBuilder {
        if rails < 2 || self.rail_failure == RailFailure::Fatal {
            return builder.rail_failure(RailFailure::Fatal);
        }
        let timeout = Some(self.rail_timeout);
        let healing = Healing {
            stall_timeout: Some(self.stall_timeout),
            rail_timeout: timeout,
            fence_timeout: timeout,
            ..Healing::default()
        };
        // With all rails gone there is time to wait for one.
        builder.rail_failure(RailFailure::Reroute).min_rails(0).healing(healing)
    }
}
