//! How the thread sleeps.

use crate::sync::{park, park_timeout};
use std::time::Duration;

/// How long the thread of an idle set that heals by itself sleeps at a time: its peers may tell it that rails failed,
/// and nobody wakes it for that.
pub(super) const HEALING_NAP: Duration = Duration::from_millis(10);

/// Sleeps until woken; for a nap at most, if devices or peers may have something for us.
pub(super) fn sleep(nap: Option<Duration>) {
    match nap {
        Some(nap) => park_timeout(nap),
        None => park(),
    }
}
