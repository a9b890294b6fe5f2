//! The line of a device with a limited rate: sending takes time.

use polyrail_nic_parts::sync::nanos;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How much idle time the line may make up for. Requests are only sent during polls, so a short
/// idle time between polls must not lower the rate.
const SLACK: Duration = Duration::from_millis(1);

/// A line that sends one message after the other.
#[derive(Debug)]
pub(crate) struct Line {
    bytes_per_second: AtomicU64,
    /// When everything is sent, in nanoseconds of the fabric's clock.
    free_at: AtomicU64,
}

impl Line {
    pub(crate) const fn new(bytes_per_second: NonZeroU64) -> Self {
        let bytes_per_second = AtomicU64::new(bytes_per_second.get());
        Self { bytes_per_second, free_at: AtomicU64::new(0) }
    }

    pub(crate) fn bytes_per_second(&self) -> NonZeroU64 {
        NonZeroU64::new(self.bytes_per_second.load(Relaxed)).unwrap_or(NonZeroU64::MIN)
    }

    pub(crate) fn set_bytes_per_second(&self, rate: NonZeroU64) {
        self.bytes_per_second.store(rate.get(), Relaxed);
    }

    /// Appends a message. Returns when it will have been sent.
    pub(crate) fn send(&self, now: u64, length: u32) -> u64 {
        let time = u64::from(length).saturating_mul(1_000_000_000) / self.bytes_per_second();
        let earliest = now.saturating_sub(nanos(SLACK));
        let sent = |free_at: u64| free_at.max(earliest).saturating_add(time);
        // It always updates. `AtomicU64::update` says so, but needs Rust 1.95.
        let before = self.free_at.fetch_update(Relaxed, Relaxed, |free_at| Some(sent(free_at)));
        let (Ok(before) | Err(before)) = before;
        sent(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_sent_one_after_the_other() {
        let line = Line::new(NonZeroU64::new(1_000_000).unwrap());
        assert_eq!(line.send(0, 1000), 1_000_000);
        assert_eq!(line.send(0, 500), 1_500_000);
        assert_eq!(line.send(1_400_000, 0), 1_500_000);
        // Late by less than the slack, and by more.
        assert_eq!(line.send(2_000_000, 1000), 2_500_000);
        assert_eq!(line.send(9_000_000, 1000), 9_000_000);
    }

    #[test]
    fn no_rate_overflows() {
        let line = |rate| Line::new(NonZeroU64::new(rate).unwrap());
        assert_eq!(line(1).send(0, u32::MAX), u64::from(u32::MAX) * 1_000_000_000);
        assert_eq!(line(u64::MAX).send(0, u32::MAX), 0);
        let slow = line(1);
        (0..10).for_each(|_| _ = slow.send(0, u32::MAX));
        assert_eq!(slow.send(0, u32::MAX), u64::MAX);
    }
}
