//! Seeds that fail, and the fewest steps to the failure.

use super::{Summary, run_seed};
use crate::search::message;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
