//! Samples of a sender's loop: how much was complete at which time.

use super::config::Limit;
use super::progress::SampleLog;
use super::timeline::Sample;
use std::time::Duration;

/// Collects samples while requests are measured.
#[derive(Debug)]
pub(super) struct Sampler {
    every: Duration,
    /// When the measurement is to end. The sample of its end replaces those that are due just
    /// before and after, because rates over short intervals depend on single requests.
    end: Option<Duration>,
    /// When the next sample is due; never if the sampler is off.
    next: Duration,
    /// The first sample, from which the sums of the others count.
    first: Option<Sample>,
    samples: Vec<Sample>,
    log: SampleLog,
}

impl Sampler {
    /// Makes a sampler that takes no samples.
    pub(super) fn off() -> Self {
        let never = Duration::MAX;
        Self {
            every: never,
            end: None,
            next: never,
            first: None,
            samples: Vec::new(),
            log: SampleLog::default(),
        }
    }

    /// Makes a sampler that takes a sample at this interval, until a measurement with this limit
    /// ends, and adds the samples to `log`.
    pub(super) fn new(every: Duration, limit: Limit, log: &SampleLog) -> Self {
        let end = match limit {
            Limit::Time(time) => Some(time),
            Limit::Count(_) => None,
        };
        Self { every, end, next: Duration::ZERO, log: log.clone(), ..Self::off() }
    }

    /// Returns whether it takes samples.
    pub(super) fn is_on(&self) -> bool {
        self.next < Duration::MAX
    }

    /// Returns whether a sample is due.
    pub(super) fn is_due(&self, at: Duration) -> bool {
        let is_at_end = |end: Duration| at.abs_diff(end) < self.every / 2;
        at >= self.next && (at.is_zero() || !self.end.is_some_and(is_at_end))
    }

    /// Takes a sample. The next one is due at a multiple of the interval, at least half an interval
    /// later.
    pub(super) fn note(&mut self, sample: Sample) {
        let every = self.every.as_nanos().max(1);
        let next = (sample.at.as_nanos() + every / 2).div_ceil(every) * every;
        self.next = u64::try_from(next).map_or(Duration::MAX, Duration::from_nanos);
        let sample = self.since_first(sample);
        self.log.push(sample.clone());
        self.samples.push(sample);
    }

    /// Takes the last sample. If less than half an interval has passed since the one before, this
    /// sample replaces it.
    pub(super) fn note_end(&mut self, sample: Sample) {
        let sample = self.since_first(sample);
        self.log.push(sample.clone());
        let is_short = |last: &Sample| sample.at.saturating_sub(last.at) < self.every / 2;
        if self.samples.len() > 1 && self.samples.last().is_some_and(is_short) {
            self.samples.pop();
        }
        self.samples.push(sample);
    }

    /// Returns the sample with sums that count from the first one.
    fn since_first(&mut self, mut sample: Sample) -> Sample {
        let first = self.first.get_or_insert_with(|| sample.clone());
        sample.completed = sample.completed.saturating_sub(first.completed);
        for (bytes, before) in sample.rails.iter_mut().zip(&first.rails) {
            *bytes = bytes.saturating_sub(*before);
        }
        sample
    }

    /// Returns the samples.
    pub(super) fn finish(self) -> Vec<Sample> {
        self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn sample(at: u64, completed: u64) -> Sample {
        Sample { at: ms(at), completed, rails: vec![2 * completed, completed] }
    }

    /// Takes the samples that are due at these times, and one at the end, in milliseconds. Returns
    /// the times of all samples, and of those in the log.
    fn sampled(limit: Limit, times: &[u64], end: u64) -> [Vec<u64>; 2] {
        let log = SampleLog::default();
        let mut sampler = Sampler::new(ms(10), limit, &log);
        for &at in times {
            if sampler.is_due(ms(at)) {
                sampler.note(sample(at, 100 + at));
            }
        }
        sampler.note_end(sample(end, 100 + end));
        let samples = sampler.finish();
        [samples, log.take()].map(|samples| {
            let time = |one: Sample| {
                assert_eq!(one, sample(one.completed, one.completed));
                one.completed
            };
            samples.into_iter().map(time).collect()
        })
    }

    #[test]
    fn samples_are_due_at_their_intervals_and_count_from_the_first() {
        let times = [0, 5, 10, 12, 20, 35, 40, 46, 50];
        // The one at 35 was late, so the next one is due at 40.
        let all = vec![0, 10, 20, 35, 40, 50, 60];
        assert_eq!(sampled(Limit::Count(1), &times, 60), [all.clone(), all]);
        assert!(!Sampler::off().is_due(Duration::from_secs(1 << 40)) && !Sampler::off().is_on());
    }

    #[test]
    fn the_last_interval_is_not_short() {
        let times: Vec<u64> = (0..=41).collect();
        let [all, live] = sampled(Limit::Count(1), &times, 42);
        assert_eq!((all, live), (vec![0, 10, 20, 30, 42], vec![0, 10, 20, 30, 40, 42]));
        // With a time limit it is known before.
        let [all, live] = sampled(Limit::Time(ms(40)), &times, 42);
        assert_eq!((all, live), (vec![0, 10, 20, 30, 42], vec![0, 10, 20, 30, 42]));
        // Requests that are late do not stop the samples.
        let times: Vec<u64> = (0..=60).collect();
        let [all, _] = sampled(Limit::Time(ms(40)), &times, 61);
        assert_eq!(all, [0, 10, 20, 30, 45, 50, 61]);
        // A measurement that is shorter than an interval has a begin and an end.
        let [all, _] = sampled(Limit::Time(ms(3)), &[0, 1, 2, 3], 3);
        assert_eq!(all, [0, 3]);
    }
}
