//! One round of a measurement.

use super::config::Limit;
use super::error::PerfError;
use super::progress::PerfProgress;
use super::sampler::Sampler;
use polyrail::virtual_qp::RailCounters;
use std::time::Duration;

/// Two connected ends, in one process or two.
pub(super) trait Ends {
    /// Returns the sum of the counters of the sender's rails.
    fn counters(&self) -> RailCounters;

    /// Returns the names of the sender's rails that carry payload, with their devices.
    fn rail_names(&self) -> Vec<String>;

    /// Returns the sampler of the sender.
    fn sampler(&mut self) -> &mut Sampler;

    /// Runs one round: requests up to the limit or an interrupt, until all are complete.
    fn run(&mut self, limit: Limit, progress: &PerfProgress) -> Result<Round, PerfError>;
}

/// What was measured, perhaps until an interrupt.
pub(super) struct Ended<T> {
    pub(super) measured: T,
    /// Whether requests were still in flight when the time after an interrupt was over.
    pub(super) is_cut: bool,
}

/// The result of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) requests: u64,
    /// Requests of the other end that completed meanwhile, if both ends are in this process and
    /// send.
    pub(super) back: Option<u64>,
    pub(super) time: Duration,
    /// Processor time that this process used meanwhile.
    pub(super) cpu: Duration,
}

impl Round {
    pub(super) fn seconds_per_request(self) -> f64 {
        self.seconds() / self.requests.max(1) as f64
    }

    /// Returns the requests per second of the other end, if it sends.
    pub(super) fn back_per_second(self) -> Option<f64> {
        self.back.map(|requests| requests as f64 / self.seconds())
    }

    fn seconds(self) -> f64 {
        self.time.as_secs_f64().max(1e-9)
    }
}
