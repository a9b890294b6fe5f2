//! Measuring in rounds, with memcpy.

use super::config::{Limit, PerfConfig};
use super::drive::Sender;
use super::error::PerfError;
use super::memcpy::Memcpy;
use super::messages::MessageEnd;
use super::near::Near;
use super::requests::RequestSender;
use super::rig::ends_between;
use super::round::Ends;
use crate::hosts::hosts_with_rate;
use crate::job::Operation;
use crate::session::{RailNews, ServerAddress};
use polyrail::backend::Domain;
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Rounds of one measurement. Odd, so that there is a median.
pub const ROUNDS: usize = 5;

/// Limits of time and bytes for memcpy in each round: its speed is steady, and a far end waits meanwhile.
const MEMCPY_TIME: Duration = Duration::from_secs(1);
const MEMCPY_BYTES: u64 = 4 << 30;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Requests measured in all rounds together.
    pub requests: u64,
    /// Requests a second; this and the following are medians of the rounds.
    pub requests_per_second: f64,
    /// Payload, in GB/s (10^9 bytes a second).
    pub gigabytes_per_second: f64,
    /// The same in Gbit/s (10^9 bits a second), as the rate of a link is given.
    pub gigabits_per_second: f64,
    /// Time of a request in nanoseconds: a round's time divided by its requests.
    pub nanoseconds_per_request: f64,
    /// Doorbells that the sender rang for a request.
    pub doorbells_per_request: f64,
    /// Completions that the sender saw for a request.
    pub completions_per_request: f64,
    /// Throughput of memcpy for the same bytes, in GB/s.
    pub memcpy_gigabytes_per_second: f64,
    /// Throughput relative to memcpy.
    pub relative_to_memcpy: f64,
}

/// Measures one configuration, with both ends in this process, on the software NIC. `news` tells what
/// happens to rails.
///
/// # Errors
///
/// The configuration is not valid, or a rail failed.
pub fn measure(config: &PerfConfig, news: &RailNews) -> Result<Measurement, PerfError> {
    let (here, there) = hosts_with_rate(config.devices, config.line_rate)?;
    measure_ends(config, &mut *ends_between(config, &here.domains(), &there.domains(), news)?)
}

/// Measures one configuration, with this process at the near end and this [server](crate::serve),
/// such as `10.0.0.2:7471`, at the far one. Devices beyond the number of rails are not used.
/// Setting `interrupted` ends it.
///
/// # Errors
///
/// The configuration is not valid; there is no such server, or it refuses; a rail failed; not everything
/// arrived; the user wants to stop.
pub fn measure_to<D: Domain>(
    config: &PerfConfig,
    server: impl Into<ServerAddress>,
    domains: &[D],
    news: &RailNews,
    interrupted: &AtomicBool,
) -> Result<Measurement, PerfError> {
    let server = server.into();
    match config.operation {
        Operation::P2p => {
            let near = Near::<MessageEnd<D>>::reach;
            measure_near(config, near(config, false, &server, domains, news, interrupted)?)
        }
        _ => {
            let near = Near::<RequestSender<D>>::reach;
            measure_near(config, near(config, false, &server, domains, news, interrupted)?)
        }
    }
}

fn measure_near<S: Sender>(
    config: &PerfConfig,
    mut near: Near<'_, S>,
) -> Result<Measurement, PerfError> {
    let measured = measure_ends(config, &mut near);
    near.finish(S::posted, measured)
}

fn measure_ends(config: &PerfConfig, ends: &mut dyn Ends) -> Result<Measurement, PerfError> {
    let slots = config.workload()?.slots();
    let mut memcpy = Memcpy::new(config.message_size as usize, slots)
        .map_err(|error| PerfError::Memory(error.to_string()))?;
    // Everything runs once before it is measured.
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
    let mut requests = 0;
    let mut moved = Vec::new();
    let mut copied = Vec::new();
    for _ in 0..ROUNDS {
        let round = ends.run(limit)?;
        requests += round.requests;
        moved.push(round.seconds_per_request());
        copied.push(memcpy.run(copies).seconds_per_request());
    }
    let after = ends.counters();
    let moved = median(&mut moved);
    let copied = median(&mut copied);
    let bytes = f64::from(bytes);
    let per_request = |after: u64, before: u64| (after - before) as f64 / requests as f64;
    Ok(Measurement {
        requests,
        requests_per_second: 1.0 / moved,
        gigabytes_per_second: bytes / moved / 1e9,
        gigabits_per_second: 8.0 * bytes / moved / 1e9,
        nanoseconds_per_request: moved * 1e9,
        doorbells_per_request: per_request(after.doorbells, before.doorbells),
        completions_per_request: per_request(after.completions, before.completions),
        memcpy_gigabytes_per_second: bytes / copied / 1e9,
        relative_to_memcpy: copied / moved,
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
