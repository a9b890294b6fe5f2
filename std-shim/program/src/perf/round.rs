//! One round of a measurement.

use super::config::Limit;
use super::error::PerfError;
use super::sampler::Sampler;
use polyrail::virtual_qp::RailCounters;
use std::time::Duration;

/// Two connected ends, wherever they are.
pub(super) trait Ends {
    /// Returns the sum of what the sender's rails did so far.
    fn counters(&self) -> RailCounters;

    /// Returns the names of the sender's rails that carry payload, with their devices.
    fn rail_names(&self) -> Vec<String>;

    /// Returns what samples the sender.
    fn sampler(&mut self) -> &mut Sampler;

    /// Runs one round: requests up to the limit, until all are complete.
    fn run(&mut self, limit: Limit) -> Result<Round, PerfError>;
}

/// One round's result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) requests: u64,
    /// Requests of the other end that were complete meanwhile, if both are in this process and send.
    pub(super) back: Option<u64>,
    pub(super) time: Duration,
}

impl Round {
    pub(super) fn seconds_per_request(self) -> f64 {
        self.seconds() / self.requests.max(1) as f64
    }

    /// Requests of the other end a second, if there are any.
    pub(super) fn back_per_second(self) -> Option<f64> {
        self.back.map(|requests| requests as f64 / self.seconds())
    }

    fn seconds(self) -> f64 {
        self.time.as_secs_f64().max(1e-9)
    }
}
