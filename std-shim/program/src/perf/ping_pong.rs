//! Ping-pong: one request at a time, there and back, and half of its time.

use super::config::{Limit, PerfConfig};
use super::drive::{Eager, Flush, Interrupt};
use super::error::PerfError;
use super::progress::PerfProgress;
use super::round::Ended;
use crate::session::SessionError;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Round trips of the warm-up.
const WARM_UP: u64 = 200;

/// Rounds without an answer between two looks at the clock.
const ROUNDS_PER_LOOK: u32 = 4096;

/// Significant digits of a histogram: its values are exact to 1 in 1000.
const DIGITS: u8 = 3;

/// Latencies in nanoseconds: half the time from the post of a request until its answer arrives. For
/// a request that [is a round trip by itself](crate::perf::Operation::fetches), the whole time
/// until it is complete. Percentiles come from a [`Histogram`], exact to 1 in 1000.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Round trips that were measured.
    pub round_trips: u64,
    /// Whether the times are halves of round trips, not whole round trips.
    pub halved: bool,
    /// The shortest.
    pub min_ns: f64,
    /// The median.
    pub p50_ns: f64,
    /// 90% are no longer.
    pub p90_ns: f64,
    /// 99% are no longer.
    pub p99_ns: f64,
    /// 99.9% are no longer.
    #[serde(rename = "p99_9_ns")]
    pub p999_ns: f64,
    /// The longest.
    pub max_ns: f64,
    /// The mean.
    pub mean_ns: f64,
    /// How many round trips took how long, from the shortest to the longest.
    #[serde(skip)]
    pub counts: Vec<LatencyCount>,
}

/// Round trips of the same latency, exact to 1 in 1000.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyCount {
    /// The latency in nanoseconds.
    pub ns: f64,
    /// How many had it.
    pub round_trips: u64,
}

impl Latency {
    fn new(round_trips: &Histogram<u64>, halved: bool) -> Self {
        let part = if halved { 0.5 } else { 1.0 };
        let of = |nanoseconds: u64| nanoseconds as f64 * part;
        let counts = round_trips.iter_recorded().map(|count| LatencyCount {
            ns: of(count.value_iterated_to()),
            round_trips: count.count_at_value(),
        });
        let at = |quantile| of(round_trips.value_at_quantile(quantile));
        Self {
            round_trips: round_trips.len(),
            halved,
            min_ns: of(round_trips.min()),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: of(round_trips.max()),
            mean_ns: round_trips.mean() * part,
            counts: counts.collect(),
        }
    }
}

/// Either end of a ping-pong.
pub(super) trait Player: Flush {
    /// Makes room for more requests of the other end. Called while a request is in flight.
    fn make_room(&mut self) -> Result<(), PerfError>;

    /// Posts a request; returns `false` if there is no room.
    fn hit(&mut self) -> Result<bool, PerfError>;

    /// Polls, and returns how many requests of the other end have arrived so far. For requests that
    /// are round trips by themselves, returns how many requests of this end are complete.
    fn arrivals(&mut self) -> Result<u64, PerfError>;

    /// Checks that requests make progress.
    fn check_progress(&mut self) -> Result<(), PerfError>;
}

/// The end that begins.
pub(super) struct Pinger<P> {
    pub(super) player: P,
    /// Round trips so far.
    pub(super) round_trips: u64,
}

impl<P: Player> Pinger<P> {
    pub(super) const fn new(player: P) -> Self {
        Self { player, round_trips: 0 }
    }

    /// Plays up to the limit or an interrupt, and records each round trip in nanoseconds. Every
    /// round of the loop calls `other`, which runs the other end.
    fn play(
        &mut self,
        limit: Limit,
        progress: &PerfProgress,
        times: &mut Histogram<u64>,
        mut other: impl FnMut() -> Result<(), PerfError>,
    ) -> Result<(), PerfError> {
        let begin = Instant::now();
        let mut last = begin;
        for done in 1.. {
            self.round_trip(progress, &mut other)?;
            let now = Instant::now();
            let time = now.duration_since(last).as_nanos();
            // The histogram grows, so this only fails for times that no clock measures.
            _ = times.record(u64::try_from(time).unwrap_or(u64::MAX));
            last = now;
            let is_over = match limit {
                Limit::Count(count) => done >= count,
                Limit::Time(time) => now.duration_since(begin) >= time,
            };
            if is_over || progress.is_interrupted() {
                break;
            }
        }
        Ok(())
    }

    fn round_trip(
        &mut self,
        progress: &PerfProgress,
        other: &mut impl FnMut() -> Result<(), PerfError>,
    ) -> Result<(), PerfError> {
        let Self { player, round_trips } = self;
        let mut idle = Eager::default();
        let mut interrupt = Interrupt::default();
        let mut rounds = 0;
        let mut wait = |player: &mut P| {
            other()?;
            idle.note(false);
            rounds += 1;
            if rounds % ROUNDS_PER_LOOK != 0 {
                return Ok(());
            }
            interrupt.check(progress)?;
            player.check_progress()
        };
        while !player.hit()? {
            player.arrivals()?;
            wait(player)?;
        }
        *round_trips += 1;
        player.make_room()?;
        while player.arrivals()? < *round_trips {
            wait(player)?;
        }
        Ok(())
    }
}

/// The end that answers each request with one.
pub(super) struct Ponger<P> {
    pub(super) player: P,
    /// Requests that were answered.
    pub(super) answered: u64,
}

impl<P: Player> Flush for Pinger<P> {
    fn flush(&mut self, timeout: Duration) {
        self.player.flush(timeout);
    }
}

impl<P: Player> Flush for Ponger<P> {
    fn flush(&mut self, timeout: Duration) {
        self.player.flush(timeout);
    }
}

impl<P: Player> Ponger<P> {
    pub(super) const fn new(player: P) -> Self {
        Self { player, answered: 0 }
    }

    /// Answers the requests that have arrived, and returns whether there were any.
    pub(super) fn answer(&mut self) -> Result<bool, PerfError> {
        let Self { player, answered } = self;
        let asked = player.arrivals()?;
        let before = *answered;
        while *answered < asked && player.hit()? {
            *answered += 1;
        }
        player.make_room()?;
        Ok(*answered > before)
    }
}

/// Warms up, and measures. A request that an interrupt leaves in flight ends the measurement with
/// the round trips before it.
pub(super) fn play<P: Player>(
    near: &mut Pinger<P>,
    config: &PerfConfig,
    progress: &PerfProgress,
    mut other: impl FnMut() -> Result<(), PerfError>,
) -> Result<Ended<Latency>, PerfError> {
    let mut times = Histogram::new(DIGITS).map_err(|error| PerfError::Memory(error.to_string()))?;
    near.player.make_room()?;
    near.play(Limit::Count(WARM_UP), progress, &mut times, &mut other)?;
    if progress.is_interrupted() {
        return Err(SessionError::Interrupted.into());
    }
    times.reset();
    let is_cut = match near.play(config.limit, progress, &mut times, other) {
        Err(PerfError::Session(SessionError::Interrupted)) if !times.is_empty() => true,
        played => {
            played?;
            false
        }
    };
    Ok(Ended { measured: Latency::new(&times, !config.operation.fetches()), is_cut })
}

#[cfg(test)]
mod rt_tests {
    use super::*;

    /// The time that the other end takes.
    const PAUSE: Duration = Duration::from_millis(2);

    /// A player for which every third request finds no room at first. Its other end answers in the
    /// second round.
    #[derive(Default)]
    struct Slow {
        asked: u64,
        posted: u64,
        answered: u64,
    }

    impl Flush for Slow {
        fn flush(&mut self, _: Duration) {}
    }

    impl Player for Slow {
        fn make_room(&mut self) -> Result<(), PerfError> {
            Ok(())
        }

        fn hit(&mut self) -> Result<bool, PerfError> {
            self.asked += 1;
            let has_room = !self.asked.is_multiple_of(3);
            self.posted += u64::from(has_room);
            Ok(has_room)
        }

        fn arrivals(&mut self) -> Result<u64, PerfError> {
            let before = self.answered;
            self.answered = self.posted;
            Ok(before)
        }

        fn check_progress(&mut self) -> Result<(), PerfError> {
            Ok(())
        }
    }

    #[test]
    fn a_round_trip_takes_as_long_as_the_other_end() {
        let mut near = Pinger::new(Slow::default());
        let mut times = Histogram::new(DIGITS).unwrap();
        let begin = Instant::now();
        let pause = || {
            std::thread::sleep(PAUSE);
            Ok(())
        };
        near.play(Limit::Count(20), &PerfProgress::default(), &mut times, pause).unwrap();
        let took = begin.elapsed().as_nanos() as f64;
        assert_eq!((near.round_trips, near.player.posted), (20, 20));
        let latency = Latency::new(&times, true);
        let whole = Latency::new(&times, false);
        assert_eq!((whole.halved, whole.min_ns), (false, 2.0 * latency.min_ns));
        assert!(latency.counts.is_sorted_by(|a, b| a.ns < b.ns), "{latency:?}");
        assert_eq!(latency.counts.iter().map(|count| count.round_trips).sum::<u64>(), 20);
        assert_eq!(latency.round_trips, 20);
        let pause = PAUSE.as_nanos() as f64;
        assert!(2.0 * latency.min_ns >= 0.99 * pause, "{latency:?}");
        assert!(2.0 * latency.max_ns <= 1.01 * took, "{latency:?}");
        let all = 20.0 * 2.0 * latency.mean_ns;
        assert!((0.5 * took..1.01 * took).contains(&all), "{latency:?}");
    }
}
