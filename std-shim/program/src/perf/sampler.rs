//! Samples of a sender's loop: how much was complete at which time.

use super::timeline::Sample;
use std::time::Duration;

/// Collects samples while requests are measured.
#[derive(Debug)]
pub(super) struct Sampler {
    every: Duration,
    /// When the next sample is due; never if the sampler is off.
    next: Duration,
    samples: Vec<Sample>,
}

impl Sampler {
    /// Makes a sampler that takes no samples.
    pub(super) const fn off() -> Self {
        let never = Duration::MAX;
        Self { every: never, next: never, samples: Vec::new() }
    }

    /// Makes a sampler that takes a sample at this interval.
    pub(super) const fn new(every: Duration) -> Self {
        Self { every, next: Duration::ZERO, samples: Vec::new() }
    }

    /// Returns whether it takes samples.
    pub(super) fn is_on(&self) -> bool {
        self.next < Duration::MAX
    }

    /// Returns whether a sample is due.
    pub(super) fn is_due(&self, at: Duration) -> bool {
        at >= self.next
    }

    /// Takes a sample.
    pub(super) fn note(&mut self, sample: Sample) {
        self.next = sample.at.saturating_add(self.every);
        self.samples.push(sample);
    }

    /// Returns the samples with sums that count from the first one.
    pub(super) fn finish(self) -> Vec<Sample> {
        let Self { mut samples, .. } = self;
        if let Some(first) = samples.first().cloned() {
            for sample in &mut samples {
                sample.completed = sample.completed.saturating_sub(first.completed);
                for (bytes, before) in sample.rails.iter_mut().zip(&first.rails) {
                    *bytes = bytes.saturating_sub(*before);
                }
            }
        }
        samples
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

    #[test]
    fn samples_are_due_at_their_intervals_and_count_from_the_first() {
        let mut sampler = Sampler::new(ms(10));
        for at in [0, 5, 10, 12, 20, 35] {
            if sampler.is_due(ms(at)) {
                sampler.note(sample(at, 100 + at));
            }
        }
        let samples = sampler.finish();
        assert_eq!(samples, [0, 10, 20, 35].map(|at| sample(at, at)));
        assert!(!Sampler::off().is_due(Duration::from_secs(1 << 40)) && !Sampler::off().is_on());
    }
}
