//! Time, real or virtual.

use polyrail_nic_parts::sync::nanos;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The clock of a fabric, in nanoseconds since its creation.
#[derive(Debug)]
pub(crate) enum Clock {
    /// Real time, for the threaded mode.
    Wall(Instant),
    /// Virtual time, for the deterministic mode.
    Virtual(AtomicU64),
}

impl Clock {
    /// Returns the nanoseconds since its creation.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Wall(start) => nanos(start.elapsed()),
            Self::Virtual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Advances virtual time to `to`. Does nothing in real time.
    pub(crate) fn advance_to(&self, to: u64) {
        if let Self::Virtual(now) = self {
            now.fetch_max(to, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_never_runs_backwards() {
        let clock = Clock::Virtual(AtomicU64::new(5));
        clock.advance_to(3);
        assert_eq!(clock.now(), 5);
        clock.advance_to(9);
        assert_eq!(clock.now(), 9);
    }
}
