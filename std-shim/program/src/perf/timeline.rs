//! Goodput over time, as plain data, and the effect of faults on it.

use super::cpu_time::cpu_percent;
use crate::fault::Side;
use crate::fault_schedule::{FaultEvent, Phase};
use crate::session::RailNewsItem;
use polyrail::virtual_qp::{RailEventKind, RailId};
use std::time::{Duration, Instant};

/// How much was acknowledged at which time, in one measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Names of the rails that carry payload, with their devices.
    pub rails: Vec<String>,
    /// Cumulative samples in the order of time; the first is at 0.
    pub samples: Vec<Sample>,
    /// What happened, in the order of time.
    pub marks: Vec<Mark>,
    /// Requests measured.
    pub requests: u64,
    /// Processor time that this process used, as for
    /// [`Measurement::cpu_percent`](super::Measurement::cpu_percent).
    pub cpu: Duration,
}

/// Payload bytes moved up to a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time since the measurement began.
    pub at: Duration,
    /// Bytes of the requests that were reported as complete. Each counts once.
    pub completed: u64,
    /// Bytes posted to each rail. Bytes that are posted again on another rail count again.
    pub rails: Vec<u64>,
}

impl Sample {
    /// Returns the rates since an earlier sample in GB/s: of the completed bytes, and of the bytes
    /// posted to each rail.
    pub fn rates_since(&self, from: &Self) -> (f64, Vec<f64>) {
        let nanos = self.at.saturating_sub(from.at).as_nanos().max(1) as f64;
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / nanos;
        let rails = from.rails.iter().zip(&self.rails).map(|(&from, &to)| rate(from, to));
        (rate(from.completed, self.completed), rails.collect())
    }
}

/// An event during a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Time since the measurement began.
    pub at: Duration,
    /// The fault or rail.
    pub cause: Cause,
    /// Whether the problem begins or ends.
    pub begins: bool,
    /// A description for users.
    pub text: String,
}

/// What begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// One of the requested faults, counted from 0.
    Fault(usize),
    /// A rail, which fails and returns.
    Rail(RailId),
}

impl Mark {
    /// Returns the mark of a rail of the sender that failed or is back, in a measurement that began
    /// at `start`.
    pub(super) fn of_rail(
        RailNewsItem { side, event }: &RailNewsItem,
        start: Instant,
    ) -> Option<Self> {
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

/// Goodput before, during and after a problem, in GB/s (10^9 bytes a second).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goodput {
    /// Goodput before the first problem.
    pub before: f64,
    /// Goodput from the first problem until all problems have ended, or until the end of the
    /// measurement.
    pub during: f64,
    /// Goodput from then on; `None` if a problem does not end before the measurement does.
    pub after: Option<f64>,
}

impl Goodput {
    /// Returns the goodput during the problem relative to before.
    pub fn during_ratio(&self) -> f64 {
        self.during / self.before
    }

    /// Returns the goodput after the problem relative to before.
    pub fn after_ratio(&self) -> Option<f64> {
        self.after.map(|after| after / self.before)
    }
}

impl Timeline {
    /// Returns the time of the last sample.
    pub fn end(&self) -> Duration {
        self.samples.last().map_or(Duration::ZERO, |sample| sample.at)
    }

    /// Returns the goodput of the whole measurement, in GB/s.
    pub fn goodput(&self) -> f64 {
        self.rate(Duration::ZERO, self.end()).unwrap_or_default()
    }

    /// Returns the processor time that this process used, in percent of the time.
    pub fn cpu_percent(&self) -> f64 {
        cpu_percent(self.cpu, self.end())
    }

    /// Returns when a rail failed, if it is not back, and how often it failed.
    pub fn failures_of(&self, rail: RailId) -> (Option<Duration>, usize) {
        let is_its = |mark: &&Mark| mark.cause == Cause::Rail(rail);
        let marks = self.marks.iter().filter(is_its);
        let down = marks.clone().next_back().filter(|mark| mark.begins).map(|mark| mark.at);
        (down, marks.filter(|mark| mark.begins).count())
    }

    /// Returns the rates between samples in GB/s: the end of the interval, the completed bytes, and
    /// the bytes posted to each rail.
    pub fn rates(&self) -> impl Iterator<Item = (Duration, f64, Vec<f64>)> {
        self.samples.iter().zip(self.samples.iter().skip(1)).map(|(from, to)| {
            let (all, rails) = to.rates_since(from);
            (to.at, all, rails)
        })
    }

    /// Returns the goodput before, during and after the problems that the marks show. `None`
    /// without marks, or if no bytes were moved before the first one.
    pub fn goodput_around_marks(&self) -> Option<Goodput> {
        let (begin, end) = self.trouble()?;
        let well = end.unwrap_or(self.end());
        Some(Goodput {
            before: self.rate(Duration::ZERO, begin).filter(|&rate| rate > 0.0)?,
            during: self.rate(begin, well)?,
            after: self.rate(well, self.end()),
        })
    }

    /// Returns when the first problem begins, and when the last one ends, if all of them end.
    fn trouble(&self) -> Option<(Duration, Option<Duration>)> {
        let first = self.marks.iter().find(|mark| mark.begins)?.at;
        let mut open: Vec<Cause> = Vec::new();
        let mut well = None;
        for Mark { at, cause, begins, .. } in &self.marks {
            let was_well = open.is_empty();
            open.retain(|other| other != cause);
            if *begins {
                open.push(*cause);
            }
            if open.is_empty() && !was_well {
                well = Some(*at);
            }
        }
        Some((first, well.filter(|_| open.is_empty())))
    }

    /// Returns the goodput between two times, in GB/s; `None` if they are equal.
    fn rate(&self, from: Duration, to: Duration) -> Option<f64> {
        let time = to.min(self.end()).checked_sub(from).filter(|time| !time.is_zero())?;
        let bytes = self.completed_at(to) - self.completed_at(from);
        Some(bytes / time.as_secs_f64() / 1e9)
    }

    /// Returns the bytes complete at a time, interpolated between two samples.
    fn completed_at(&self, at: Duration) -> f64 {
        let next = self.samples.partition_point(|sample| sample.at < at);
        let known = |index: usize| self.samples.get(index).map(|s| (s.at, s.completed as f64));
        match (next.checked_sub(1).and_then(known), known(next)) {
            (Some((before, low)), Some((after, high))) => {
                let share = (at - before).div_duration_f64(after - before);
                low + share * (high - low)
            }
            (Some((_, bytes)), None) | (None, Some((_, bytes))) => bytes,
            (None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn mark(at: u64, cause: Cause, begins: bool) -> Mark {
        Mark { at: ms(at), cause, begins, text: String::new() }
    }

    /// A second with a sample each 10 ms: 4 GB/s, but 3 GB/s from 300 ms to 700 ms.
    fn timeline(marks: Vec<Mark>) -> Timeline {
        let completed = |at: u64| 4_000_000 * at - 1_000_000 * (at.clamp(300, 700) - 300);
        let sample = |at| Sample { at: ms(at), completed: completed(at), rails: vec![] };
        Timeline {
            samples: (0..=100).map(|i| sample(10 * i)).collect(),
            marks,
            ..Timeline::default()
        }
    }

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-6
    }

    #[test]
    fn goodput_is_told_before_during_and_after_the_trouble() {
        let rail = Cause::Rail(RailId::Data(2));
        for marks in [
            vec![mark(300, rail, true), mark(700, rail, false)],
            // The fault is over before its rail is back.
            vec![
                mark(300, Cause::Fault(0), true),
                mark(305, rail, true),
                mark(500, Cause::Fault(0), false),
                mark(700, rail, false),
            ],
            // No problem in between.
            vec![
                mark(300, Cause::Fault(0), true),
                mark(400, Cause::Fault(0), false),
                mark(500, Cause::Fault(1), true),
                mark(700, Cause::Fault(1), false),
            ],
            // A rail that fails again before it returns.
            vec![mark(300, rail, true), mark(400, rail, true), mark(700, rail, false)],
        ] {
            let goodput = timeline(marks).goodput_around_marks().unwrap();
            assert!(close(goodput.before, 4.0) && close(goodput.during, 3.0), "{goodput:?}");
            assert!(close(goodput.during_ratio(), 0.75), "{goodput:?}");
            assert!(close(goodput.after_ratio().unwrap(), 1.0), "{goodput:?}");
        }
    }

    #[test]
    fn rates_are_those_between_samples() {
        let rates: Vec<_> = timeline(vec![]).rates().collect();
        assert_eq!(rates.len(), 100);
        let is = |index: usize, at, rate| rates[index].0 == at && close(rates[index].1, rate);
        assert!(is(0, ms(10), 4.0) && is(50, ms(510), 3.0) && is(99, ms(1000), 4.0), "{rates:?}");
    }

    #[test]
    fn trouble_that_does_not_end_lasts_until_the_end() {
        let marks = vec![mark(300, Cause::Fault(0), true), mark(600, Cause::Fault(1), true)];
        let goodput = timeline(marks).goodput_around_marks().unwrap();
        assert!(close(goodput.during, (3.0 * 0.4 + 4.0 * 0.3) / 0.7), "{goodput:?}");
        assert_eq!((goodput.after, goodput.after_ratio()), (None, None));
        let marks = vec![mark(300, Cause::Fault(0), true), mark(1000, Cause::Fault(0), false)];
        assert_eq!(timeline(marks).goodput_around_marks().unwrap().after, None);
    }

    #[test]
    fn times_between_samples_count_in_part() {
        let marks = vec![mark(303, Cause::Fault(0), true), mark(697, Cause::Fault(0), false)];
        let goodput = timeline(marks).goodput_around_marks().unwrap();
        assert!(close(goodput.during, 3.0), "{goodput:?}");
        assert!(close(timeline(vec![]).goodput(), 3.6));
    }

    #[test]
    fn without_a_part_before_there_is_nothing_to_compare_with() {
        assert_eq!(timeline(vec![]).goodput_around_marks(), None);
        assert_eq!(Timeline::default().goodput_around_marks(), None);
        let marks = vec![mark(0, Cause::Fault(0), true)];
        assert_eq!(timeline(marks).goodput_around_marks(), None);
        let late = vec![mark(2000, Cause::Fault(0), true)];
        assert_eq!(timeline(late).goodput_around_marks(), None);
        assert_eq!(Timeline::default().goodput(), 0.0);
    }
}
