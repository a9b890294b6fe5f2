//! Many seeds, run by several threads.

use super::{Failure, Shape, attempt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What happened in all worlds, and the seeds that failed.
type Results<S> = (<S as Shape>::Summary, Vec<(u64, Failure<S>)>);

/// Seeds to be run by several threads.
#[derive(Debug)]
pub struct Search<S: Shape> {
    next: AtomicU64,
    end: u64,
    steps: u64,
    /// Whether it goes on after a failure.
    counts: bool,
    results: Mutex<Results<S>>,
}

impl<S: Shape> Search<S> {
    /// `count` seeds from `first` on, each for this many steps at most; up to the first that fails,
    /// unless all that fail are to be counted.
    pub fn new(first: u64, count: u64, steps: u64, counts: bool) -> Self {
        let results = Mutex::default();
        Self { next: first.into(), end: first.saturating_add(count), steps, counts, results }
    }

    /// Takes seeds until there are none left.
    pub fn work(&self) {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                return;
            }
            let attempted = attempt(seed, self.steps);
            let mut results = self.results.lock().expect("no panic while it is locked");
            match attempted {
                Ok(summary) => results.0 += summary,
                Err(failure) => {
                    results.1.push((seed, *failure));
                    let next = if self.counts { 0 } else { self.end };
                    self.next.fetch_max(next, Ordering::Relaxed);
                }
            }
        }
    }

    /// What happened in all worlds, and the seeds that failed, in order.
    pub fn into_results(self) -> (S::Summary, Vec<(u64, Failure<S>)>) {
        let (total, mut failures) = self.results.into_inner().expect("no panic while it is locked");
        failures.sort_by_key(|(seed, _)| *seed);
        (total, failures)
    }
}
