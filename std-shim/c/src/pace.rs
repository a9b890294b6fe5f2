//! Decides in which polls links and rails are checked, too.

use std::time::{Duration, Instant};

/// Polls between two looks at the clock.
const POLLS: u32 = 128;

/// Time between two checks of links and rails: each link costs a system call.
const INTERVAL: Duration = Duration::from_micros(500);

/// Counts polls and time.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    polls: u32,
    last: Option<Instant>,
}

impl Pace {
    /// Returns whether a check is due in this poll.
    #[inline]
    pub(crate) fn is_time(&mut self) -> bool {
        self.polls += 1;
        self.polls >= POLLS && self.is_late()
    }

    #[cold]
    fn is_late(&mut self) -> bool {
        self.polls = 0;
        let now = Instant::now();
        let is_late = self.last.is_none_or(|last| now.duration_since(last) >= INTERVAL);
        if is_late {
            self.last = Some(now);
        }
        is_late
    }
}
