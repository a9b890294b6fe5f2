//! The search for seeds that fail, and for the fewest steps to the failure.

use super::{Summary, run_seed};
use crate::search::message;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A seed whose world breaks a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Steps after which it was seen, or the fewest after a search for them.
    pub steps: u64,
    /// The broken promise, and where that was seen.
    pub message: String,
}

/// Runs a seed.
///
/// # Errors
///
/// A promise was broken.
pub fn attempt(seed: u64, steps: u64) -> Result<Summary, Failure> {
    catch_unwind(AssertUnwindSafe(|| run_seed(seed, steps))).map_err(|payload| {
        let message = message(&*payload);
        Failure { seed, steps, message }
    })
}

/// The fewest steps after which a seed fails, at most those of `failure`.
pub fn shortest(failure: Failure) -> Failure {
    let attempts = (0..failure.steps).map(|steps| attempt(failure.seed, steps));
    attempts.into_iter().find_map(Result::err).unwrap_or(failure)
}

/// Seeds to be run by several threads.
#[derive(Debug)]
pub struct Search {
    next: AtomicU64,
    end: u64,
    steps: u64,
    done: AtomicU64,
    stop: AtomicBool,
    total: Mutex<Summary>,
    failure: Mutex<Option<Failure>>,
}

impl Search {
    /// `count` seeds from `first` on, each for this many steps.
    pub fn new(first: u64, count: u64, steps: u64) -> Self {
        Self {
            next: AtomicU64::new(first),
            end: first.saturating_add(count),
            steps,
            done: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            total: Mutex::default(),
            failure: Mutex::new(None),
        }
    }

    /// Takes seeds until there are none left, or one fails.
    pub fn work(&self) {
        while !self.is_over() {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                return;
            }
            match attempt(seed, self.steps) {
                Ok(summary) => {
                    *self.total.lock().expect("no panic while it is locked") += summary;
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                Err(failure) => {
                    self.stop.store(true, Ordering::Relaxed);
                    let mut first = self.failure.lock().expect("no panic while it is locked");
                    first.get_or_insert(failure);
                }
            }
        }
    }

    /// Whether nothing more is begun.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.next.load(Ordering::Relaxed) >= self.end
    }

    /// Seeds that kept every promise so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// What happened in their worlds, taken together.
    pub fn total(&self) -> Summary {
        *self.total.lock().expect("no panic while it is locked")
    }

    /// The failure that was found first.
    pub fn into_failure(self) -> Option<Failure> {
        self.failure.into_inner().expect("no panic while it is locked")
    }
}
