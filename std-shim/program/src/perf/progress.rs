//! What a measurement shows while it runs, and how it is ended early.

use super::timeline::{Mark, Sample};
use crate::fault_schedule::FaultLog;
use crate::session::RailNews;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The progress of a measurement, shared with threads that watch or end it. A cheap handle: clones
/// share everything. Each measurement needs its own logs.
#[derive(Clone, Debug, Default)]
pub struct PerfProgress {
    /// Set to end the measurement early: it posts nothing more, waits up to 2 seconds for what is
    /// in flight, and returns what was measured until then: samples, round trips, the rounds that
    /// are complete, or the first one, if its requests complete. If nothing was measured, it fails
    /// with [`SessionError::Interrupted`](crate::session::SessionError::Interrupted).
    pub interrupted: Arc<AtomicBool>,
    /// Events of rails.
    pub rails: RailNews,
    /// Events of injected faults.
    pub faults: FaultLog,
    /// Samples of a measurement over time.
    pub samples: SampleLog,
}

impl PerfProgress {
    /// Returns a progress that `interrupted` ends.
    pub fn ended_by(interrupted: &Arc<AtomicBool>) -> Self {
        Self { interrupted: Arc::clone(interrupted), ..Self::default() }
    }

    /// Returns the marks of a measurement over time so far, in the order of time.
    pub fn marks(&self) -> Vec<Mark> {
        let Some(began) = self.samples.lock().began else { return Vec::new() };
        let rails = self.rails.all();
        let mut marks: Vec<Mark> =
            rails.iter().filter_map(|item| Mark::of_rail(item, began)).collect();
        marks.extend(self.faults.all().into_iter().map(Mark::from));
        marks.sort_by_key(|mark| mark.at);
        marks
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// Samples of a measurement over time that have not been taken yet. A cheap handle: clones share
/// the log.
#[derive(Clone, Debug, Default)]
pub struct SampleLog(Arc<Mutex<Samples>>);

#[derive(Debug, Default)]
struct Samples {
    /// When the measurement began.
    began: Option<Instant>,
    items: Vec<Sample>,
}

impl SampleLog {
    /// Takes the samples since the last call, oldest first. The first one of all is at the begin of
    /// the measurement. The last interval may be short, and the [`Timeline`](super::Timeline) then
    /// has it as part of the one before.
    pub fn take(&self) -> Vec<Sample> {
        std::mem::take(&mut self.lock().items)
    }

    pub(super) fn begin(&self, now: Instant) {
        *self.lock() = Samples { began: Some(now), items: Vec::new() };
    }

    pub(super) fn push(&self, sample: Sample) {
        self.lock().items.push(sample);
    }

    fn lock(&self) -> MutexGuard<'_, Samples> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
