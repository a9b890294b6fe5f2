//! Completion queues take turns: which one is polled next, and for how much.

use crate::completion::POLL_BATCH;

/// Which completion queue is polled next, and for how much.
pub(super) struct Turns {
    first: usize,
    next: usize,
    queues: usize,
    /// Completions that the poll may still take.
    allowance: usize,
    /// Queues asked so far, some perhaps twice.
    asked: usize,
    /// Queues in a row that gave less than they were asked for: they are empty.
    empty: usize,
}

impl Turns {
    /// The turns of a poll that begins with the queue at `first`.
    #[inline]
    pub(super) fn new(first: usize, queues: usize, budget: usize) -> Self {
        let allowance = if budget == 0 { 0 } else { budget.max(queues * POLL_BATCH) };
        Self { first, next: first, queues, allowance, asked: 0, empty: 0 }
    }

    /// The next queue and how many completions to ask it for, at most as many as there is `room` for.
    /// Without budget, each queue is asked once.
    #[inline]
    pub(super) fn next(&mut self, budget_left: usize, room: usize) -> Option<(usize, usize)> {
        let limit = self.allowance.min(room);
        let asked_all = budget_left == 0 && self.asked >= self.queues;
        if limit == 0 || asked_all || self.empty >= self.queues {
            return None;
        }
        let at = self.next;
        self.next = self.after(at);
        self.asked += 1;
        Some((at, limit))
    }

    /// The queue asked last gave `taken` of the `limit` completions that it was asked for.
    #[inline]
    pub(super) const fn took(&mut self, taken: usize, limit: usize) {
        self.allowance -= taken;
        self.empty = if taken == limit { 0 } else { self.empty + 1 };
    }

    #[inline]
    const fn after(&self, queue: usize) -> usize {
        if queue + 1 < self.queues { queue + 1 } else { 0 }
    }

    /// Another queue than this poll, also after full turns; the same one if there was no room to ask
    /// any, or two that take turns with something else would always be met at the same one's turn.
    #[inline]
    pub(super) const fn next_poll_begins_with(&self) -> usize {
        if self.next == self.first && self.asked > 0 { self.after(self.first) } else { self.next }
    }
}
