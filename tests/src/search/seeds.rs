//! Many seeds, run by several threads.

use std::ops::AddAssign;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds to be run by several threads. A seed that keeps every promise has a summary `T`, another
/// one a failure `F`.
#[derive(Debug)]
pub struct Search<T, F> {
    /// Runs a seed for at most this many steps.
    attempt: fn(seed: u64, steps: u64) -> Result<T, F>,
    next: AtomicU64,
    end: u64,
    steps: u64,
    /// Whether it goes on after a failure.
    counts: bool,
    done: AtomicU64,
    results: Mutex<(T, Vec<(u64, F)>)>,
}

impl<T: AddAssign + Default, F> Search<T, F> {
    /// `count` seeds from `first` on, each for this many steps at most; up to the first that fails,
    /// unless all that fail are to be counted.
    pub fn new(
        attempt: fn(u64, u64) -> Result<T, F>,
        (first, count): (u64, u64),
        steps: u64,
        counts: bool,
    ) -> Self {
        let (next, end) = (first.into(), first.saturating_add(count));
        let (done, results) = (AtomicU64::new(0), Mutex::default());
        Self { attempt, next, end, steps, counts, done, results }
    }

    /// Takes seeds until there are none left.
    pub fn work(&self) {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                return;
            }
            let attempted = (self.attempt)(seed, self.steps);
            let mut results = self.results.lock().expect("no panic while it is locked");
            match attempted {
                Ok(summary) => {
                    results.0 += summary;
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                Err(failure) => {
                    results.1.push((seed, failure));
                    let next = if self.counts { 0 } else { self.end };
                    self.next.fetch_max(next, Ordering::Relaxed);
                }
            }
        }
    }

    /// Seeds that kept every promise so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// What happened in all worlds, and the seeds that failed, in order.
    pub fn into_results(self) -> (T, Vec<(u64, F)>) {
        let (total, mut failures) = self.results.into_inner().expect("no panic while it is locked");
        failures.sort_by_key(|(seed, _)| *seed);
        (total, failures)
    }
}
