//! Samples of a sender's loop: what was complete when, and which rails failed and returned.

use super::timeline::{Cause, Mark, Sample};
use polyrail::endpoint::NamedRailEvent;
use polyrail::virtual_qp::RailEventKind;
use std::time::Duration;

/// Collects samples while requests are measured.
#[derive(Debug)]
pub(super) struct Sampler {
    every: Duration,
    /// When the next sample is due; it never is when the sampler is off.
    next: Duration,
    samples: Vec<Sample>,
    marks: Vec<Mark>,
}

impl Sampler {
    /// Makes one that takes no samples.
    pub(super) const fn off() -> Self {
        let never = Duration::MAX;
        Self { every: never, next: never, samples: Vec::new(), marks: Vec::new() }
    }

    /// Makes one that takes a sample this often.
    pub(super) const fn new(every: Duration) -> Self {
        Self { every, next: Duration::ZERO, samples: Vec::new(), marks: Vec::new() }
    }

    /// Returns whether it takes samples at all.
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

    /// Marks that a rail failed, or is back.
    pub(super) fn note_event(&mut self, at: Duration, event: &NamedRailEvent) {
        let begins = match event.event.kind {
            RailEventKind::Failed { .. } => true,
            RailEventKind::Returned => false,
            RailEventKind::Fenced { .. } => return,
        };
        let NamedRailEvent { event, device } = event;
        let rail = event.rail;
        let what = if begins { "failed" } else { "returned" };
        let text = format!("{rail} (device {device}) {what}");
        self.marks.push(Mark { at, cause: Cause::Rail(rail), begins, text });
    }

    /// Returns the samples with sums that count from the first one, and the marks.
    pub(super) fn finish(self) -> (Vec<Sample>, Vec<Mark>) {
        let Self { mut samples, marks, .. } = self;
        if let Some(first) = samples.first().cloned() {
            for sample in &mut samples {
                sample.completed = sample.completed.saturating_sub(first.completed);
                for (bytes, before) in sample.rails.iter_mut().zip(&first.rails) {
                    *bytes = bytes.saturating_sub(*before);
                }
            }
        }
        (samples, marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail::verbs::DeviceId;
    use polyrail::virtual_qp::{FailedBecause, RailEvent, RailId};

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
        let (samples, _) = sampler.finish();
        assert_eq!(samples, [0, 10, 20, 35].map(|at| sample(at, at)));
        assert!(!Sampler::off().is_due(Duration::from_secs(1 << 40)) && !Sampler::off().is_on());
    }

    #[test]
    fn rails_that_fail_and_return_are_marked() {
        let event = |kind| NamedRailEvent {
            event: RailEvent { rail: RailId::Data(2), device: DeviceId(0), generation: 1, kind },
            device: "tx2".to_owned(),
        };
        let mut sampler = Sampler::new(ms(10));
        let why = FailedBecause::Owner;
        sampler.note_event(ms(1), &event(RailEventKind::Failed { why, refused: None }));
        sampler.note_event(ms(2), &event(RailEventKind::Fenced { arrived: 1, again: 2 }));
        sampler.note_event(ms(3), &event(RailEventKind::Returned));
        let (_, marks) = sampler.finish();
        let told = marks.iter().map(|mark| (mark.at, mark.begins, mark.text.as_str()));
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                (ms(1), true, "rail 2 (device tx2) failed"),
                (ms(3), false, "rail 2 (device tx2) returned"),
            ]
        );
    }
}
