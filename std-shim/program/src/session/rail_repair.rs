//! How a side handles rails that fail.

use polyrail::endpoint::EndpointBuilder;
use polyrail::heal::Healing;
use polyrail::virtual_qp::RailFailure;
use std::time::Duration;

/// How a side handles rails that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailRepair {
    /// Whether other rails carry the data of a failed rail. The failure of a single rail is always
    /// fatal.
    pub rail_failure: RailFailure,
    /// Time without progress after which a rail counts as failed.
    pub stall_timeout: Duration,
    /// How long requests wait while nothing is acknowledged, and rails are out of service or carry
    /// nothing; also how long a failed rail waits for the other side's report about it.
    pub rail_timeout: Duration,
}

impl Default for RailRepair {
    /// Reroutes; a rail fails after 10 s without progress, and requests wait a minute for its
    /// return.
    fn default() -> Self {
        Self {
            rail_failure: RailFailure::Reroute,
            stall_timeout: Duration::from_secs(10),
            rail_timeout: Duration::from_secs(60),
        }
    }
}

impl RailRepair {
    /// Applies this to the builder of an endpoint with this number of rails.
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
        // Without a minimum, requests can wait for a rail to return after all have failed.
        builder.rail_failure(RailFailure::Reroute).min_rails(0).healing(healing)
    }
}
