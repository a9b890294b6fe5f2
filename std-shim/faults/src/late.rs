//! Completions that are held back.

use crate::roster::{Roster, Serial};
use polyrail_core::hardware::assume_init_slice;
use polyrail_core::verbs::Completion;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::time::Instant;

/// A completion, and when it becomes visible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) due: Instant,
    pub(crate) owner: Serial,
    pub(crate) completion: Completion,
}

/// Completions of one queue, oldest first, in memory of a fixed size.
#[derive(Debug, Default)]
pub(crate) struct Late {
    held: VecDeque<Held>,
    capacity: usize,
}

impl Late {
    pub(crate) fn new(capacity: u32) -> Self {
        let capacity = capacity as usize;
        Self { held: VecDeque::with_capacity(capacity), capacity }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(crate) fn room(&self) -> usize {
        self.capacity - self.held.len()
    }

    /// Adds a completion. There must be room.
    pub(crate) fn push(&mut self, held: Held) {
        self.held.push_back(held);
    }

    /// Makes all completions due.
    #[cfg(test)]
    pub(crate) fn make_due(&mut self) {
        let now = Instant::now();
        self.held.iter_mut().for_each(|held| held.due = now);
    }

    /// Returns due completions, as far as there is room for them.
    pub(crate) fn show_due(&mut self, now: Instant, roster: &mut Roster, shown: &mut Shown<'_>) {
        while self.held.front().is_some_and(|held| held.due <= now) && shown.room() > 0 {
            self.show_first(roster, shown);
        }
    }

    /// Returns the oldest completion, due or not. There must be room. Completions of a destroyed
    /// queue pair are dropped.
    pub(crate) fn show_first(&mut self, roster: &mut Roster, shown: &mut Shown<'_>) {
        if let Some(held) = self.held.pop_front()
            && roster.release(held.owner)
        {
            shown.push(held.completion);
        }
    }
}

/// The caller's memory, filled from the front.
#[derive(Debug)]
pub(crate) struct Shown<'o> {
    out: &'o mut [MaybeUninit<Completion>],
    count: usize,
}

impl<'o> Shown<'o> {
    pub(crate) fn new(out: &'o mut [MaybeUninit<Completion>]) -> Self {
        Self { out, count: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn room(&self) -> usize {
        self.out.len() - self.count
    }

    /// Appends a completion. There must be room.
    pub(crate) fn push(&mut self, completion: Completion) {
        self.out[self.count].write(completion);
        self.count += 1;
    }

    pub(crate) fn into_slice(self) -> &'o [Completion] {
        // SAFETY: `push`, which alone counts, has written each of the first `count`.
        unsafe { assume_init_slice(&self.out[..self.count]) }
    }
}
