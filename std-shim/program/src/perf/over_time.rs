//! Measurements over time: one run without rounds and memcpy, which is sampled.

use super::config::{Limit, PerfConfig};
use super::cpu_time::cpu_time;
use super::drive::Sender;
use super::error::PerfError;
use super::messages::MessageEnd;
use super::near::Near;
use super::progress::PerfProgress;
use super::requests::RequestSender;
use super::rig::ends_between;
use super::round::{Ended, Ends};
use super::sampler::Sampler;
use super::timeline::Timeline;
use crate::fault::{RailFault, check_rails};
use crate::fault_schedule::FaultSchedule;
use crate::hosts::hosts_with_rate;
use crate::job::Operation;
use crate::session::{ServerAddress, SessionError};
use crate::threads::watched;
use polyrail::backend::Domain;
use std::mem;
use std::time::{Duration, Instant};

/// Number of samples of a measurement with a time limit: about as many as fit in a plot.
const SAMPLES: u32 = 300;

/// Minimum time between two samples if it is not chosen, in which many requests of usual sizes
/// complete.
const MIN_INTERVAL: Duration = Duration::from_millis(2);

/// Time between samples of a measurement without a time limit.
const INTERVAL: Duration = Duration::from_millis(10);

/// Measures one configuration over time, with both ends in this process, on the software NIC, while
/// these faults happen. `interval` is the time between samples; without it there are up to 300. The
/// sampler looks at the clock each millisecond. `watch` is called ten times a second on this
/// thread, while another thread measures.
///
/// # Errors
///
/// The configuration is not valid; a fault is for an unknown rail; a rail failed; it was
/// [interrupted](PerfProgress::interrupted) before anything was measured.
pub fn measure_over_time(
    config: &PerfConfig,
    interval: Option<Duration>,
    faults: &[RailFault],
    progress: &PerfProgress,
    watch: impl FnMut(),
) -> Result<Timeline, PerfError> {
    check_rails(faults, config.rails).map_err(PerfError::Fault)?;
    config.workload_of_one_direction()?;
    let (here, there) = hosts_with_rate(config.devices, config.line_rate)?;
    let mut rig = ends_between(config, &here.domains(), &there.domains(), &progress.rails)?;
    let begin = || FaultSchedule::start(faults, &here, &there, &progress.faults);
    let measure = || watch_ends(config, interval, &mut *rig, progress, begin);
    Ok(watched("measures", measure, watch)??.measured)
}

/// Like [`measure_over_time`], to a [server](crate::serve); see [`measure_to`](super::measure_to).
///
/// # Errors
///
/// As [`measure_to`](super::measure_to).
pub fn measure_over_time_to<D: Domain + Sync>(
    config: &PerfConfig,
    interval: Option<Duration>,
    server: impl Into<ServerAddress>,
    domains: &[D],
    progress: &PerfProgress,
    watch: impl FnMut(),
) -> Result<Timeline, PerfError> {
    let server = server.into();
    let workload = config.workload_of_one_direction()?;
    let measure = || match config.operation {
        Operation::P2p => {
            let near = Near::<MessageEnd<D>>::reach(config, workload, &server, domains, progress);
            watch_near(config, interval, near?, progress)
        }
        _ => {
            let near =
                Near::<RequestSender<D>>::reach(config, workload, &server, domains, progress);
            watch_near(config, interval, near?, progress)
        }
    };
    watched("measures", measure, watch)?
}

fn watch_near<S: Sender>(
    config: &PerfConfig,
    interval: Option<Duration>,
    mut near: Near<'_, S>,
    progress: &PerfProgress,
) -> Result<Timeline, PerfError> {
    let no_faults = || Ok(FaultSchedule::default());
    let measured = watch_ends(config, interval, &mut near, progress, no_faults);
    near.end(S::posted, measured)
}

/// Measures between two ends, under a schedule that begins with the measurement.
fn watch_ends(
    config: &PerfConfig,
    interval: Option<Duration>,
    ends: &mut dyn Ends,
    progress: &PerfProgress,
    begin: impl FnOnce() -> Result<FaultSchedule, SessionError>,
) -> Result<Ended<Timeline>, PerfError> {
    // Warm-up: every slot is used before the measurement.
    ends.run(Limit::Count(2 * config.workload()?.slots() as u64 + 16), progress)?;
    if progress.is_interrupted() {
        return Err(SessionError::Interrupted.into());
    }
    let every = interval.unwrap_or(match config.limit {
        Limit::Count(_) => INTERVAL,
        Limit::Time(time) => (time / SAMPLES).max(MIN_INTERVAL),
    });
    let rails = ends.rail_names();
    let schedule = begin()?;
    progress.samples.begin(Instant::now());
    *ends.sampler() = Sampler::new(every, config.limit, &progress.samples);
    let cpu_before = cpu_time();
    let round = ends.run(config.limit, progress);
    let cpu = cpu_time().saturating_sub(cpu_before);
    let samples = mem::replace(ends.sampler(), Sampler::off()).finish();
    let (requests, is_cut) = match round {
        Ok(round) => (round.requests, false),
        Err(error) => match (&error, samples.last()) {
            (PerfError::Session(SessionError::Interrupted), Some(last)) if last.completed > 0 => {
                (last.completed / u64::from(config.message_size), true)
            }
            _ => return Err(error),
        },
    };
    schedule.end();
    let marks = progress.marks();
    Ok(Ended { measured: Timeline { rails, samples, marks, requests, cpu }, is_cut })
}
