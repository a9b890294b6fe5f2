//! Rails that fall silent: some drivers never end a request whose peer is gone, so only a clock can tell.

use super::sizes::QUEUE_PAIRS;
use std::time::{Duration, Instant};

/// Looks within one timeout: a queue pair is found after it, and one part of it more at most.
const LOOKS: u32 = 8;

/// When the queue pairs that send were looked at, and for how many looks in a row the oldest request of each place has
/// been the same.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    next: Option<Instant>,
    unmoved: [u32; QUEUE_PAIRS],
}

impl Stalls {
    /// Whether it is time to look.
    pub(super) fn is_due(&mut self, now: Instant, timeout: Duration) -> bool {
        let is_due = self.next.is_none_or(|next| now >= next);
        if is_due {
            // Overflow: not again, as far as anyone lives.
            self.next = now.checked_add(timeout / LOOKS).or(self.next);
        }
        is_due
    }

    /// Takes note of the places that `check` names, and returns those that are silent.
    pub(super) fn note(&mut self, check: impl FnOnce(&mut dyn FnMut(usize))) -> Vec<usize> {
        let mut stalled = [false; QUEUE_PAIRS];
        check(&mut |place| stalled[place] = true);
        for (count, stalled) in self.unmoved.iter_mut().zip(stalled) {
            *count = if stalled { *count + 1 } else { 0 };
        }
        (0..QUEUE_PAIRS).filter(|&place| self.unmoved[place] >= LOOKS).collect()
    }
}
