//! Time as an owner has seen it that calls its links now and then.

use std::time::{Duration, Instant};

/// Longest part of a gap between two calls that counts.
const COUNTED: Duration = Duration::from_millis(500);

/// A clock for limits of what only the owner's calls do. A gap between two calls counts as at most
/// [`COUNTED`], so that an owner that calls seldom, or was stopped, has as many calls as others
/// until a limit passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    last: Instant,
    /// Parts of gaps that do not count.
    skipped: Duration,
}

impl Pace {
    /// A clock that shows the time of this call.
    pub(super) const fn begin(now: Instant) -> Self {
        Self { last: now, skipped: Duration::ZERO }
    }

    /// Returns the time at this call.
    pub(super) fn at(&mut self, now: Instant) -> Instant {
        let gap = now.saturating_duration_since(self.last);
        self.skipped += gap.saturating_sub(COUNTED);
        self.last = self.last.max(now);
        now.checked_sub(self.skipped).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_gaps_count_in_part_and_short_ones_as_a_whole() {
        let begin = Instant::now();
        let after = |ms| begin + Duration::from_millis(ms);
        let mut pace = Pace::begin(begin);
        assert_eq!(pace.at(after(500)), after(500));
        assert_eq!(pace.at(after(10_500)), after(1000));
        assert_eq!(pace.at(after(10_600)), after(1100));
        // Another thread may have taken the time earlier.
        assert_eq!(pace.at(after(10_550)), after(1050));
        assert_eq!(pace.at(after(10_700)), after(1200));
    }
}
