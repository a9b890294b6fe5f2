//! Measuring in rounds, with memcpy.

use super::config::{Limit, PerfConfig};
use super::cpu_time::cpu_percent;
use super::drive::Sender;
use super::error::PerfError;
use super::memcpy::Memcpy;
use super::messages::MessageEnd;
use super::near::Near;
use super::progress::PerfProgress;
use super::requests::RequestSender;
use super::rig::ends_between;
use super::round::{Ended, Ends};
use crate::hosts::hosts_with_rate;
use crate::job::Operation;
use crate::session::{ServerAddress, SessionError};
use polyrail::backend::Domain;
use serde::Serialize;
use std::time::Duration;

/// Rounds of one measurement. Odd, so that the median is one of them.
pub const ROUNDS: usize = 5;

/// Limits of time and bytes for memcpy in each round. Its speed is steady, and the far end waits
/// meanwhile.
const MEMCPY_TIME: Duration = Duration::from_secs(1);
const MEMCPY_BYTES: u64 = 4 << 30;

/// How fast requests were.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// Requests a second.
    pub requests_per_second: f64,
    /// Payload, in GB/s (10^9 bytes a second).
    pub gigabytes_per_second: f64,
    /// Payload in Gbit/s (10^9 bits a second), the unit of link rates.
    pub gigabits_per_second: f64,
}

impl Rate {
    /// Computes the rates from requests per second and bytes per request.
    fn new(requests_per_second: f64, bytes: f64) -> Self {
        let gigabytes_per_second = bytes * requests_per_second / 1e9;
        let gigabits_per_second = 8.0 * gigabytes_per_second;
        Self { requests_per_second, gigabytes_per_second, gigabits_per_second }
    }
}

/// The result of a measurement. Figures are medians of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Requests measured in all rounds together; if both ends send, only the near end's.
    pub requests: u64,
    /// How fast they were; if both ends send, the sum of both directions.
    #[serde(flatten)]
    pub all: Rate,
    /// Time of a request in nanoseconds: a second divided by requests a second.
    pub nanoseconds_per_request: f64,
    /// Doorbells of the sender per request.
    pub doorbells_per_request: f64,
    /// Completions of the sender per request.
    pub completions_per_request: f64,
    /// Processor time that this process used while requests were measured, in percent of that time:
    /// 100 is one processor. Includes the threads of devices in software; if the far end is in this
    /// process, also the far end's.
    pub cpu_percent: f64,
    /// Throughput of memcpy for the same number of bytes, in GB/s.
    pub memcpy_gigabytes_per_second: f64,
    /// Throughput relative to memcpy.
    pub relative_to_memcpy: f64,
    /// If both ends send, the rates of the near end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub there: Option<Rate>,
    /// If both ends send, the rates of the far end. If it is on another host, its rates are over
    /// the whole time, and not medians of rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back: Option<Rate>,
}

/// Measures one configuration, with both ends in this process, on the software NIC.
///
/// # Errors
///
/// The configuration is not valid, or a rail failed; it was
/// [interrupted](PerfProgress::interrupted) before anything was measured.
pub fn measure(config: &PerfConfig, progress: &PerfProgress) -> Result<Measurement, PerfError> {
    let (here, there) = hosts_with_rate(config.devices, config.line_rate)?;
    let ends = ends_between(config, &here.domains(), &there.domains(), &progress.rails);
    Ok(measure_ends(config, &mut *ends?, progress)?.measured)
}

/// Measures one configuration, with this process as the near end and a [server](crate::serve), such
/// as `10.0.0.2:7471`, as the far end. Devices beyond the number of rails are not used.
///
/// # Errors
///
/// As [`measure`]; also if the server cannot be reached, or refuses, or if requests are missing at
/// the far end.
pub fn measure_to<D: Domain>(
    config: &PerfConfig,
    server: impl Into<ServerAddress>,
    domains: &[D],
    progress: &PerfProgress,
) -> Result<Measurement, PerfError> {
    let server = server.into();
    let workload = config.workload()?;
    match config.operation {
        Operation::P2p => {
            let near = Near::<MessageEnd<D>>::reach;
            measure_near(config, near(config, workload, &server, domains, progress)?, progress)
        }
        _ => {
            let near = Near::<RequestSender<D>>::reach;
            measure_near(config, near(config, workload, &server, domains, progress)?, progress)
        }
    }
}

fn measure_near<S: Sender>(
    config: &PerfConfig,
    mut near: Near<'_, S>,
    progress: &PerfProgress,
) -> Result<Measurement, PerfError> {
    if !config.bidirectional {
        let measured = measure_ends(config, &mut near, progress);
        return near.end(S::posted, measured);
    }
    let mut copies = Copies::new(config)?;
    let moved = Moved::measure(config, &mut near, progress, || ());
    // Without the far end's report there are no figures of both directions.
    let moved = moved.and_then(|moved| match moved.is_cut {
        true => Err(SessionError::Interrupted.into()),
        false => Ok(moved),
    });
    let (moved, back) = near.finish_both_ways(moved)?;
    // memcpy runs afterwards, because the far end sends all the time.
    let rounds = if progress.is_interrupted() { 1 } else { ROUNDS };
    (0..rounds).for_each(|_| copies.round());
    Ok(moved.with(config, copies, Some(back.per_second())))
}

fn measure_ends(
    config: &PerfConfig,
    ends: &mut dyn Ends,
    progress: &PerfProgress,
) -> Result<Ended<Measurement>, PerfError> {
    let mut copies = Copies::new(config)?;
    let mut moved = Moved::measure(config, ends, progress, || copies.round())?;
    let is_cut = moved.is_cut;
    let back = moved.back();
    Ok(Ended { measured: moved.with(config, copies, back), is_cut })
}

/// Returns the limit of one round.
fn limit_of_round(config: &PerfConfig) -> Limit {
    match config.limit {
        Limit::Count(count) => Limit::Count(count.div_ceil(ROUNDS as u64).max(1)),
        Limit::Time(time) => Limit::Time(time / ROUNDS as u32),
    }
}

/// Results of the rounds of requests.
#[derive(Debug, Default)]
struct Moved {
    requests: u64,
    /// Seconds per request in each round.
    seconds: Vec<f64>,
    /// Requests of the other end a second, in each round.
    back: Vec<f64>,
    /// Doorbells of the sender in all rounds together.
    doorbells: u64,
    completions: u64,
    /// Time and processor time of all rounds together.
    time: Duration,
    cpu: Duration,
    /// Whether requests were still in flight when the time after an interrupt was over.
    is_cut: bool,
}

impl Moved {
    /// Measures, and calls `between` after each round. A round that was interrupted counts only if
    /// it is the first.
    fn measure(
        config: &PerfConfig,
        ends: &mut dyn Ends,
        progress: &PerfProgress,
        mut between: impl FnMut(),
    ) -> Result<Self, PerfError> {
        let slots = config.workload()?.slots();
        // Warm-up: every slot is used before the measurement.
        ends.run(Limit::Count(2 * slots as u64 + 16), progress)?;
        let mut before = ends.counters();
        let mut moved = Self::default();
        for _ in 0..ROUNDS {
            if progress.is_interrupted() {
                break;
            }
            let is_first = moved.requests == 0;
            let round = match ends.run(limit_of_round(config), progress) {
                Err(PerfError::Session(SessionError::Interrupted)) if !is_first => {
                    moved.is_cut = true;
                    break;
                }
                round => round?,
            };
            if progress.is_interrupted() && !is_first {
                break;
            }
            moved.requests += round.requests;
            moved.seconds.push(round.seconds_per_request());
            moved.back.extend(round.back_per_second());
            moved.time += round.time;
            moved.cpu += round.cpu;
            let after = ends.counters();
            moved.doorbells += after.doorbells - before.doorbells;
            moved.completions += after.completions - before.completions;
            before = after;
            between();
        }
        if moved.requests == 0 { Err(SessionError::Interrupted.into()) } else { Ok(moved) }
    }

    /// Requests of the other end a second, if it is in this process and sends.
    fn back(&mut self) -> Option<f64> {
        (!self.back.is_empty()).then(|| median(&mut self.back))
    }

    /// Returns the measurement, with the results of memcpy and the far end's requests per second.
    fn with(self, config: &PerfConfig, copies: Copies, back: Option<f64>) -> Measurement {
        let Self { requests, mut seconds, doorbells, completions, time, cpu, .. } = self;
        let bytes = f64::from(config.message_size);
        let there = Rate::new(1.0 / median(&mut seconds), bytes);
        let back = back.map(|requests| Rate::new(requests, bytes));
        let all = back.map_or(there, |back| {
            Rate::new(there.requests_per_second + back.requests_per_second, bytes)
        });
        let memcpy_gigabytes_per_second = bytes / copies.seconds() / 1e9;
        Measurement {
            requests,
            all,
            nanoseconds_per_request: 1e9 / all.requests_per_second,
            doorbells_per_request: doorbells as f64 / requests as f64,
            completions_per_request: completions as f64 / requests as f64,
            cpu_percent: cpu_percent(cpu, time),
            memcpy_gigabytes_per_second,
            relative_to_memcpy: all.gigabytes_per_second / memcpy_gigabytes_per_second,
            there: back.map(|_| there),
            back,
        }
    }
}

/// Results of the rounds of memcpy.
struct Copies {
    memcpy: Memcpy,
    limit: Limit,
    /// Seconds per request in each round.
    seconds: Vec<f64>,
}

impl Copies {
    fn new(config: &PerfConfig) -> Result<Self, PerfError> {
        let slots = config.workload()?.slots();
        let bytes = config.message_size;
        let mut memcpy = Memcpy::new(bytes as usize, slots)
            .map_err(|error| PerfError::Memory(error.to_string()))?;
        memcpy.run(Limit::Count(slots as u64));
        let limit = match limit_of_round(config) {
            Limit::Count(count) => {
                Limit::Count(count.min((MEMCPY_BYTES / u64::from(bytes)).max(1)))
            }
            Limit::Time(time) => Limit::Time(time.min(MEMCPY_TIME)),
        };
        Ok(Self { memcpy, limit, seconds: Vec::new() })
    }

    fn round(&mut self) {
        self.seconds.push(self.memcpy.run(self.limit));
    }

    fn seconds(mut self) -> f64 {
        median(&mut self.seconds)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
