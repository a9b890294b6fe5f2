//! Measuring over time: one run, without rounds and without memcpy, that is watched as it goes.

use super::config::{Limit, PerfConfig};
use super::error::PerfError;
use super::near::Near;
use super::rig::Rig;
use super::round::Ends;
use super::sampler::Sampler;
use super::timeline::{Cause, Mark, Timeline};
use crate::fault::{RailFault, check_rails};
use crate::hosts::hosts_with_rate;
use crate::watched::watched;
use crate::weather::{FaultEvent, FaultLog, Phase, Weather};
use polyrail::backend::Domain;
use std::mem;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Samples of a measurement that ends after a time: about as many as a picture has room for.
const SAMPLES: u32 = 300;

/// Shortest time between two samples: many requests of usual sizes.
const MIN_INTERVAL: Duration = Duration::from_millis(2);

/// Time between samples of a measurement that takes as long as it takes.
const INTERVAL: Duration = Duration::from_millis(10);

/// Measures one configuration over time, with both ends in this process, on the software NIC, while these
/// faults happen; `log` tells when. `watch` is called ten times a second, on this thread, while another one
/// measures.
///
/// # Errors
///
/// The configuration is not valid; a fault is on a rail that does not exist; a rail failed.
pub fn measure_over_time(
    config: &PerfConfig,
    faults: &[RailFault],
    log: &FaultLog,
    watch: impl FnMut(),
) -> Result<Timeline, PerfError> {
    check_rails(faults, config.rails).map_err(PerfError::Fault)?;
    let (here, there) = hosts_with_rate(config.devices, config.line_rate)?;
    let mut rig = Rig::between(config, &here.domains(), &there.domains())?;
    let begin = || Weather::start(faults, &here, &there, log);
    watched(|| watch_ends(config, &mut rig, begin), watch)
}

/// Measures one configuration over time to the [server](crate::serve) at `address`; see
/// [`measure_to`](super::measure_to).
///
/// # Errors
///
/// As [`measure_to`](super::measure_to).
pub fn measure_over_time_to<D: Domain>(
    config: &PerfConfig,
    address: &str,
    domains: &[D],
    interrupted: &AtomicBool,
) -> Result<Timeline, PerfError> {
    let mut near = Near::reach(config, address, domains, interrupted)?;
    let measured = watch_ends(config, &mut near, Weather::default);
    near.finish(measured)
}

/// Measures between two ends, under a weather that begins with the measurement.
fn watch_ends(
    config: &PerfConfig,
    ends: &mut impl Ends,
    begin: impl FnOnce() -> Weather,
) -> Result<Timeline, PerfError> {
    // Everything runs once before it is measured.
    ends.run(Limit::Count(2 * config.workload()?.slots() as u64 + 16))?;
    let every = match config.limit {
        Limit::Count(_) => INTERVAL,
        Limit::Time(time) => (time / SAMPLES).max(MIN_INTERVAL),
    };
    let rails = ends.rail_names();
    let weather = begin();
    *ends.sampler() = Sampler::new(every);
    let round = ends.run(config.limit)?;
    let (samples, mut marks) = mem::replace(ends.sampler(), Sampler::off()).finish();
    marks.extend(weather.end().into_iter().map(Mark::from));
    marks.sort_by_key(|mark| mark.at);
    Ok(Timeline { rails, samples, marks, requests: round.requests })
}

impl From<FaultEvent> for Mark {
    fn from(event: FaultEvent) -> Self {
        Self {
            at: event.at,
            cause: Cause::Fault(event.fault),
            begins: event.phase == Phase::Began,
            text: event.to_string(),
        }
    }
}
