//! When a new queue pair is tried for: at once, then at growing intervals.

use super::options::Healing;
use std::time::{Duration, Instant};

/// A hundred years: not again, as far as anyone lives. A longer interval would overflow the clock.
const AGE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The attempts for one rail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempts {
    /// The last interval; zero: none failed since the rail was in service.
    interval: Duration,
    /// Not before.
    next: Option<Instant>,
}

impl Attempts {
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Notes that an attempt failed.
    pub(crate) fn failed(&mut self, now: Instant, healing: &Healing) {
        let doubled = self.interval.saturating_mul(2).max(healing.first_interval);
        self.interval = doubled.min(healing.longest_interval).min(AGE);
        self.next = now.checked_add(self.interval);
    }

    /// Makes the next attempt due now, and if it fails, others soon. A port that is up may not
    /// have its address or its routes yet.
    pub(crate) fn retry_now(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_double_up_to_the_longest_and_hope_ends_a_wait() {
        let healing = Healing::default();
        let mut now = Instant::now();
        let mut attempts = Attempts::default();
        assert!(attempts.is_due(now));
        let mut waited = Vec::new();
        for _ in 0..12 {
            attempts.failed(now, &healing);
            let next = attempts.next.unwrap();
            assert!(!attempts.is_due(next - Duration::from_nanos(1)) && attempts.is_due(next));
            waited.push(next.duration_since(now).as_millis());
            now = next;
        }
        assert_eq!(waited, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000, 5000]);
        attempts.failed(now, &healing);
        attempts.retry_now();
        assert!(attempts.is_due(now));
        attempts.failed(now, &healing);
        assert!(
            attempts.is_due(now + healing.first_interval),
            "the port may not have an address yet"
        );
    }
}
