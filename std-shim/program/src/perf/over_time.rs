//! Measurements over time: one run without rounds and memcpy, which is sampled.

use super::config::{Limit, PerfConfig};
use super::drive::Sender;
use super::error::PerfError;
use super::messages::MessageEnd;
use super::near::Near;
use super::requests::RequestSender;
use super::rig::ends_between;
use super::round::Ends;
use super::sampler::Sampler;
use super::timeline::{Cause, Mark, Timeline};
use crate::fault::{RailFault, Side, check_rails};
use crate::fault_schedule::{FaultEvent, FaultLog, FaultSchedule, Phase};
use crate::hosts::hosts_with_rate;
use crate::job::Operation;
use crate::session::{RailNews, RailNewsItem, ServerAddress, SessionError};
use crate::threads::watched;
use polyrail::backend::Domain;
use polyrail::virtual_qp::RailEventKind;
use std::mem;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Number of samples of a measurement with a time limit: about as many as fit in a plot.
const SAMPLES: u32 = 300;

/// Minimum time between two samples, in which many requests of usual sizes complete.
const MIN_INTERVAL: Duration = Duration::from_millis(2);

/// Time between samples of a measurement without a time limit.
const INTERVAL: Duration = Duration::from_millis(10);

/// Measures one configuration over time, with both ends in this process, on the software NIC, while
/// these faults happen; `log` receives the faults with their times, and `news` the events of rails.
/// `watch` is called ten times a second on this thread, while another thread measures.
///
/// # Errors
///
/// The configuration is not valid; a fault is for an unknown rail; a rail failed.
pub fn measure_over_time(
    config: &PerfConfig,
    faults: &[RailFault],
    log: &FaultLog,
    news: &RailNews,
    watch: impl FnMut(),
) -> Result<Timeline, PerfError> {
    check_rails(faults, config.rails).map_err(PerfError::Fault)?;
    config.workload_of_one_direction()?;
    let (here, there) = hosts_with_rate(config.devices, config.line_rate)?;
    let mut rig = ends_between(config, &here.domains(), &there.domains(), news)?;
    let begin = || FaultSchedule::start(faults, &here, &there, log);
    watched("measures", || watch_ends(config, &mut *rig, news, begin), watch)?
}

/// Like [`measure_over_time`], to a [server](crate::serve); see [`measure_to`](super::measure_to).
///
/// # Errors
///
/// As [`measure_to`](super::measure_to).
pub fn measure_over_time_to<D: Domain>(
    config: &PerfConfig,
    server: impl Into<ServerAddress>,
    domains: &[D],
    news: &RailNews,
    interrupted: &AtomicBool,
) -> Result<Timeline, PerfError> {
    let server = server.into();
    let workload = config.workload_of_one_direction()?;
    match config.operation {
        Operation::P2p => {
            let near = Near::<MessageEnd<D>>::reach;
            watch_near(config, near(config, workload, &server, domains, news, interrupted)?, news)
        }
        _ => {
            let near = Near::<RequestSender<D>>::reach;
            watch_near(config, near(config, workload, &server, domains, news, interrupted)?, news)
        }
    }
}

fn watch_near<S: Sender>(
    config: &PerfConfig,
    mut near: Near<'_, S>,
    news: &RailNews,
) -> Result<Timeline, PerfError> {
    let measured = watch_ends(config, &mut near, news, || Ok(FaultSchedule::default()));
    near.finish(S::posted, measured)
}

/// Measures between two ends, under a schedule that begins with the measurement.
fn watch_ends(
    config: &PerfConfig,
    ends: &mut dyn Ends,
    news: &RailNews,
    begin: impl FnOnce() -> Result<FaultSchedule, SessionError>,
) -> Result<Timeline, PerfError> {
    // Warm-up: every slot is used before the measurement.
    ends.run(Limit::Count(2 * config.workload()?.slots() as u64 + 16))?;
    let every = match config.limit {
        Limit::Count(_) => INTERVAL,
        Limit::Time(time) => (time / SAMPLES).max(MIN_INTERVAL),
    };
    let rails = ends.rail_names();
    let schedule = begin()?;
    let start = Instant::now();
    *ends.sampler() = Sampler::new(every);
    let round = ends.run(config.limit)?;
    let samples = mem::replace(ends.sampler(), Sampler::off()).finish();
    let mut marks: Vec<Mark> =
        news.all().iter().filter_map(|item| Mark::of_rail(item, start)).collect();
    marks.extend(schedule.end().into_iter().map(Mark::from));
    marks.sort_by_key(|mark| mark.at);
    Ok(Timeline { rails, samples, marks, requests: round.requests })
}

impl Mark {
    /// Returns the mark of a rail of the sender that failed or is back.
    fn of_rail(RailNewsItem { side, event }: &RailNewsItem, start: Instant) -> Option<Self> {
        let begins = match event.event.kind {
            RailEventKind::Failed { .. } => true,
            RailEventKind::Returned => false,
            RailEventKind::Fenced { .. } => return None,
        };
        if *side != Side::Near {
            return None;
        }
        let at = event.at.checked_duration_since(start)?;
        let rail = event.event.rail;
        let what = if begins { "failed" } else { "returned" };
        let text = format!("{rail} (device {}) {what}", event.device);
        Some(Self { at, cause: Cause::Rail(rail), begins, text })
    }
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
