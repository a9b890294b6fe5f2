//! Completions that a caller polls itself before it hands them on.

use crate::workload::POLL;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::verbs::Completion;
use std::mem::MaybeUninit;

/// The completions of one poll, in the caller's memory.
#[derive(Debug)]
pub struct Polled {
    records: Vec<Completion>,
    /// How many of them have not been given out.
    fresh: usize,
}

impl Polled {
    /// Empty, with room for the completions of a poll.
    pub fn new() -> Self {
        Self { records: Vec::with_capacity(POLL), fresh: 0 }
    }

    /// Polls; the new completions replace the old ones.
    ///
    /// # Panics
    ///
    /// If the device fails.
    pub fn refill(&mut self, cq: &mut impl CompletionQueue) {
        let mut records = [const { MaybeUninit::uninit() }; POLL];
        let polled = cq.poll(&mut records).expect("the null device does not fail");
        self.records.clear();
        self.records.extend_from_slice(polled);
        self.fresh = self.records.len();
    }

    /// The completions that were polled; empty if they have been taken before.
    #[inline]
    pub fn take(&mut self) -> &[Completion] {
        let fresh = std::mem::take(&mut self.fresh);
        &self.records[..fresh]
    }
}

impl Default for Polled {
    fn default() -> Self {
        Self::new()
    }
}
