//! What a poll may hand to its caller, and where the rest waits.

use crate::completion::{Event, POLL_BATCH};

/// As many events as one batch of completions can bring.
pub(super) type Backlog = heapless::Deque<Event, POLL_BATCH>;

/// A caller's sink and what it may still be given.
pub(super) struct Budget<F> {
    pub(super) left: usize,
    pub(super) sink: F,
}

impl<F: FnMut(Event)> Budget<F> {
    pub(super) const fn new(left: usize, sink: F) -> Self {
        Self { left, sink }
    }

    /// Hands an event over, which the budget allows.
    #[inline]
    pub(super) fn give(&mut self, event: Event) {
        self.left -= 1;
        (self.sink)(event);
    }

    /// Hands an event over, or keeps it in `backlog` if the budget is used up.
    #[cold]
    #[inline(never)]
    pub(super) fn give_or_keep(&mut self, event: Event, backlog: &mut Backlog) {
        if self.left > 0 {
            self.give(event);
        } else {
            keep(event, backlog);
        }
    }
}

/// Keeps an event for which there is room: no more completions are polled than the backlog takes.
#[cold]
pub(super) fn keep(event: Event, backlog: &mut Backlog) {
    let kept = backlog.push_back(event);
    debug_assert!(kept.is_ok(), "the backlog overflows");
}
