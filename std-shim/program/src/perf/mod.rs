//! Measuring: how fast requests move through a virtual queue pair, beside plain memcpy of the same
//! bytes.
//!
//! [`measure`] has both ends in this process, on the software NIC; [`measure_to`] has its far end in
//! another one, a [server](crate::serve), over any [backend](polyrail::backend). The figures are for
//! comparison with each other and with memcpy in the same run: the time of a machine says little by
//! itself. Requests and copies are measured in turn, in [`ROUNDS`] rounds, and the medians are
//! reported.
//!
//! # Between two hosts
//!
//! One connection is one measurement. The near end says what it wants, a [`Workload`] and the shape of
//! its endpoint; the far end makes the same, posts receives if the operation consumes any, and takes
//! what comes. The near end counts what is acknowledged, so a round ends with the last
//! acknowledgement. When it is done it says how many requests it saw complete. Of an operation that
//! is [received](Operation::is_received) the far end waits until as many have arrived, and a
//! difference is an error on both sides; a WRITE or a READ passes by unnoticed there, and there is
//! nothing to compare.
//!
//! # Files
//!
//! `ends` an endpoint with its ring; `drive` the loops that keep a
//! window of requests outstanding and post receives, the same for both arrangements: `rig` has two ends
//! in one process, `near` and `far` one each. `memcpy` is what it is compared with.

mod drive;
mod ends;
mod error;
mod far;
mod memcpy;
mod near;
mod rig;
#[cfg(test)]
mod tests;

pub use crate::job::{MAX_MESSAGE_SIZE, MAX_WINDOW, Operation, Workload, WorkloadError};
pub use error::PerfError;
pub use far::Measured;
pub(crate) use far::answer;

use crate::job::Link;
use crate::session::Patience;
use memcpy::Memcpy;
use near::Near;
use polyrail::backend::{ConnectOptions, Domain};
use polyrail::endpoint::EndpointBuilder;
use polyrail::virtual_qp::{RailCounters, Scheme};
use rig::Rig;
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Rounds of one measurement. Odd, so that there is a median.
pub const ROUNDS: usize = 5;

/// memcpy is measured for no longer than this and with no more than so many bytes a round: it is steady,
/// and a far end waits meanwhile.
const MEMCPY_TIME: Duration = Duration::from_secs(1);
const MEMCPY_BYTES: u64 = 4 << 30;

/// Who drives the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread, both ends in turn: no waiting for another processor.
    One,
    /// A thread for each end.
    Two,
}

/// How long a measurement goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many requests in all, rounded up to the same number in each round.
    Count(u64),
    /// Requests for about so long; memcpy takes the same again, up to a second for each round.
    Time(Duration),
}

/// One configuration to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfConfig {
    /// What.
    pub operation: Operation,
    /// How receivers are notified; see [`Operation::has_scheme`].
    pub scheme: Scheme,
    /// Rails of the virtual queue pair.
    pub rails: usize,
    /// Devices on either side, in one process. Between two hosts, they are those that are given.
    pub devices: usize,
    /// Bytes of the longest fragment.
    pub max_msg_size: u32,
    /// Bytes of one request.
    pub message_size: u32,
    /// Requests outstanding.
    pub window: u32,
    /// Who drives the two ends, in one process. Two hosts have a thread each.
    pub threads: Threads,
    /// How long.
    pub limit: Limit,
    /// Code of the time that an acknowledgement is waited for before packets are sent again; see
    /// [`ConnectOptions::timeout`](polyrail::backend::ConnectOptions::timeout).
    pub qp_timeout: u8,
    /// How long a rail may make no headway before it is taken for dead.
    pub stall_timeout: Duration,
    /// How long the far end on another host may take to connect, and for each answer while the two ends
    /// meet and part.
    pub answer_timeout: Duration,
}

impl Default for PerfConfig {
    /// 1 MiB WRITE_WITH_IMM over four rails with SPRAY, 8 outstanding, driven by one thread for
    /// 200 ms: what `polyrail copy` does, without the files.
    fn default() -> Self {
        Self {
            operation: Operation::WriteImm,
            scheme: Scheme::Spray,
            rails: 4,
            devices: 4,
            max_msg_size: 64 << 10,
            message_size: 1 << 20,
            window: 8,
            threads: Threads::One,
            limit: Limit::Time(Duration::from_millis(200)),
            qp_timeout: ConnectOptions::default().timeout,
            stall_timeout: Duration::from_secs(10),
            answer_timeout: Patience::default().answer,
        }
    }
}

impl PerfConfig {
    fn workload(&self) -> Result<Workload, PerfError> {
        Workload::new(self.operation, self.message_size, self.window).map_err(PerfError::Workload)
    }

    fn builder(&self) -> EndpointBuilder {
        // The requester's; the far end has no requests.
        let options = ConnectOptions { timeout: self.qp_timeout, ..ends::connect_options() };
        ends::builder(self.operation, self.rails, self.scheme, self.max_msg_size)
            .connect_options(options)
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Requests that were measured, all rounds together.
    pub requests: u64,
    /// Requests a second; from here on medians of the rounds.
    pub requests_per_second: f64,
    /// Payload, in GB/s (10^9 bytes a second).
    pub gigabytes_per_second: f64,
    /// Time of a request, in nanoseconds: that of a round over its requests.
    pub nanoseconds_per_request: f64,
    /// Doorbells that the sender rang for a request.
    pub doorbells_per_request: f64,
    /// Completions that the sender saw for a request.
    pub completions_per_request: f64,
    /// What memcpy moves of the same bytes, in GB/s.
    pub memcpy_gigabytes_per_second: f64,
    /// Throughput relative to memcpy.
    pub relative_to_memcpy: f64,
}

/// Measures one configuration, with both ends in this process, on the software NIC.
///
/// # Errors
///
/// The configuration cannot be, or a rail failed.
pub fn measure(config: &PerfConfig) -> Result<Measurement, PerfError> {
    measure_ends(config, &mut Rig::new(config)?)
}

/// Measures one configuration, with this process at the near end and the [server](crate::serve) at
/// `address`, such as `10.0.0.2:7471`, at the far one. Of the devices those are used that rails
/// take. Setting `interrupted` ends it.
///
/// # Errors
///
/// The configuration cannot be; there is no such server, or it refuses; a rail failed; not everything
/// arrived; the user wants to stop.
pub fn measure_to<D: Domain>(
    config: &PerfConfig,
    address: &str,
    domains: &[D],
    interrupted: &AtomicBool,
) -> Result<Measurement, PerfError> {
    let domains: Vec<&D> = domains.iter().take(config.rails).collect();
    let patience = Patience { answer: config.answer_timeout, ..Patience::default() };
    let link = Link::connect(address, &patience.timeouts())?;
    let mut near = Near::meet(config, link, &domains, interrupted)?;
    let measured = measure_ends(config, &mut near);
    near.finish(measured)
}

/// Two ends that are connected, wherever they are.
trait Ends {
    /// What the sender's rails did so far, summed up.
    fn counters(&self) -> RailCounters;

    /// One round: requests up to the limit, until all of them are over.
    fn run(&mut self, limit: Limit) -> Result<Round, PerfError>;
}

fn measure_ends(config: &PerfConfig, ends: &mut impl Ends) -> Result<Measurement, PerfError> {
    let slots = config.workload()?.slots();
    let mut memcpy = Memcpy::new(config.message_size as usize, slots)
        .map_err(|error| PerfError::Memory(error.to_string()))?;
    // Everything happens once before it is measured.
    ends.run(Limit::Count(2 * slots as u64 + 16))?;
    memcpy.run(Limit::Count(slots as u64));
    let before = ends.counters();
    let limit = match config.limit {
        Limit::Count(count) => Limit::Count(count.div_ceil(ROUNDS as u64).max(1)),
        Limit::Time(time) => Limit::Time(time / ROUNDS as u32),
    };
    let bytes = config.message_size;
    let copies = match limit {
        Limit::Count(count) => Limit::Count(count.min((MEMCPY_BYTES / u64::from(bytes)).max(1))),
        Limit::Time(time) => Limit::Time(time.min(MEMCPY_TIME)),
    };
    let (mut requests, mut moved, mut copied) = (0, Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let round = ends.run(limit)?;
        requests += round.requests;
        moved.push(round.seconds_per_request());
        copied.push(memcpy.run(copies).seconds_per_request());
    }
    let after = ends.counters();
    let (moved, copied, bytes) = (median(&mut moved), median(&mut copied), f64::from(bytes));
    let per_request = |after: u64, before: u64| (after - before) as f64 / requests as f64;
    Ok(Measurement {
        requests,
        requests_per_second: 1.0 / moved,
        gigabytes_per_second: bytes / moved / 1e9,
        nanoseconds_per_request: moved * 1e9,
        doorbells_per_request: per_request(after.doorbells, before.doorbells),
        completions_per_request: per_request(after.completions, before.completions),
        memcpy_gigabytes_per_second: bytes / copied / 1e9,
        relative_to_memcpy: copied / moved,
    })
}

/// One round's result.
#[derive(Clone, Copy, Debug)]
struct Round {
    requests: u64,
    time: Duration,
}

impl Round {
    fn seconds_per_request(self) -> f64 {
        self.time.as_secs_f64().max(1e-9) / self.requests.max(1) as f64
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
