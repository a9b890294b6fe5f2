//! Completions that a caller polls itself before it hands them on.

use crate::workload::POLL;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::verbs::Completion;
use std::mem::MaybeUninit;

/// The completions of one poll, in the memory of whoever polled.
#[derive(Debug)]
pub struct Polled {
    records: Vec<Completion>,
    /// How many of them have not been given out.
    fresh: usize,
}

impl Polled {
    /// None yet, with room for those of a poll.
    pub fn new() -> Self {
        Self { records: Vec::with_capacity(POLL), fresh: 0 }
    }

    /// Polls, in place of what there was.
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

    /// Those that were polled; none if they have been taken before.
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
