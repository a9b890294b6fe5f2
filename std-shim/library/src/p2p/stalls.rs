//! Rails that fall silent: some drivers never end a request whose peer is gone, so only a clock can tell.

use super::message::End;
use super::sizes::QUEUE_PAIRS;
use std::time::{Duration, Instant};

/// Looks within one timeout: a queue pair is found after it, and one part of it more at most.
const LOOKS: u32 = 8;

/// When queue pairs were looked at, and for how many looks in a row the oldest request of each place has been the same,
/// at the end that sends and at the one that receives.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    next: Option<Instant>,
    unmoved: [[u32; QUEUE_PAIRS]; 2],
}

impl Stalls {
    /// How long there may be between two looks, or it takes longer to find a queue pair.
    pub(super) fn interval(timeout: Duration) -> Duration {
        timeout / LOOKS
    }

    /// Whether it is time to look.
    pub(super) fn is_due(&mut self, now: Instant, timeout: Duration) -> bool {
        let is_due = self.next.is_none_or(|next| now >= next);
        if is_due {
            // Overflow: not again, as far as anyone lives.
            self.next = now.checked_add(Self::interval(timeout)).or(self.next);
        }
        is_due
    }

    /// Takes note of the places of this end that `check` names, and returns those that are silent.
    pub(super) fn note(
        &mut self,
        end: End,
        check: impl FnOnce(&mut dyn FnMut(usize)),
    ) -> Vec<usize> {
        let mut stalled = [false; QUEUE_PAIRS];
        check(&mut |place| stalled[place] = true);
        let unmoved = &mut self.unmoved[usize::from(end == End::Receiver)];
        for (count, stalled) in unmoved.iter_mut().zip(stalled) {
            *count = if stalled { *count + 1 } else { 0 };
        }
        (0..QUEUE_PAIRS).filter(|&place| unmoved[place] >= LOOKS).collect()
    }
}
