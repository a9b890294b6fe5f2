//! Decides in which polls links and rails are checked, too.

use std::time::{Duration, Instant};

/// Polls of a fast loop between two looks at the clock.
const MOST_POLLS: u32 = 128;

/// Time between two checks of links and rails: each link costs a system call.
const INTERVAL: Duration = Duration::from_micros(500);

/// Counts polls and time. A fast loop looks at the clock in few polls, and a loop that sleeps
/// between its polls in each of them.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Polls since the last look at the clock.
    polls: u32,
    /// Polls between two looks.
    until: u32,
    looked: Option<Instant>,
    checked: Option<Instant>,
}

impl Pace {
    /// Returns whether a check is due in this poll.
    #[inline]
    pub(crate) fn is_time(&mut self) -> bool {
        self.polls += 1;
        self.polls >= self.until && self.look(Instant::now())
    }

    /// Makes the next poll a check: a link begins, and the speed of earlier polls is no measure of
    /// the next ones.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    #[cold]
    fn look(&mut self, now: Instant) -> bool {
        let slowly = INTERVAL * std::mem::take(&mut self.polls);
        let is_slow = |looked| now.saturating_duration_since(looked) >= slowly;
        self.until = match self.looked.replace(now).is_none_or(is_slow) {
            true => 1,
            // Not all at once: a loop may poll a few times between two sleeps.
            false => (2 * self.until).min(MOST_POLLS),
        };
        let is_due = |checked| now.saturating_duration_since(checked) >= INTERVAL;
        let is_time = self.checked.is_none_or(is_due);
        if is_time {
            self.checked = Some(now);
        }
        is_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls at this interval, and returns the numbers of polls in which a look and a check were
    /// made.
    fn run(pace: &mut Pace, now: &mut Instant, polls: u32, every: Duration) -> (u32, u32) {
        let (mut looks, mut checks) = (0, 0);
        for _ in 0..polls {
            *now += every;
            pace.polls += 1;
            if pace.polls >= pace.until {
                looks += 1;
                checks += u32::from(pace.look(*now));
            }
        }
        (looks, checks)
    }

    #[test]
    fn a_slow_loop_checks_in_each_poll_and_a_fast_one_in_few() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let slow = Duration::from_millis(200);
        assert_eq!(run(&mut pace, &mut now, 10, slow), (10, 10));
        let (looks, checks) = run(&mut pace, &mut now, 100_000, Duration::from_nanos(100));
        assert!(looks <= 10 + 100_000 / MOST_POLLS, "{looks} looks");
        // In 10 ms.
        assert!((18..=20).contains(&checks), "{checks} checks");
        pace.restart();
        assert_eq!(run(&mut pace, &mut now, 10, slow), (10, 10));
        // A loop that polls twice, then sleeps.
        let checks = (0..100).map(|_| {
            let fast = run(&mut pace, &mut now, 1, Duration::from_nanos(100));
            fast.1 + run(&mut pace, &mut now, 1, slow).1
        });
        let checks: u32 = checks.sum();
        assert!(checks >= 50, "{checks} checks");
        // A loop that becomes slow is noticed by the next look.
        run(&mut pace, &mut now, 1000, Duration::from_nanos(100));
        let (_, checks) = run(&mut pace, &mut now, 10 + MOST_POLLS, slow);
        assert!(checks >= 10, "{checks} checks");
    }
}
