//! The requests that were lost with a queue pair that failed, in the order in which they were in
//! flight.
//!
//! Lost batches keep their places in the ring, behind the batches in flight, until they are done or
//! posted again:
//!
//! ```text
//!      from        unresolved         to    head           tail
//!  -----+--------------+---------------+------+--------------+---> numbers
//!       | may be       | what arrived  |      | in flight    |
//!       | posted again | is not known  |      |              |
//! ```
//!
//! So they need no further memory, provided that the ring never holds more than its limit. That is
//! why a rail with lost batches is given only those: each moves from the front to the back.

use super::{Batch, Content, Entry, InFlight, Lost};
use crate::rail::tag::Tag;

impl<const DEPTH: usize> InFlight<DEPTH> {
    /// The queue pair failed: what is in flight succeeds, or is lost.
    pub(crate) fn begin_loss(&mut self) {
        debug_assert!(!self.lost.is_losing);
        // What was lost before closes up, so that the places of all lost batches are in a row.
        let shift = self.head - self.lost.to;
        if shift > 0 && self.has_lost() {
            // From the newest on: the ranges may overlap, and a place must be read before it is
            // written.
            for number in (self.lost.from..self.lost.to).rev() {
                self.entries[Self::index(number + shift)] = self.entries[Self::index(number)];
            }
        }
        let from = self.head - (self.lost.to - self.lost.from);
        let withheld = self.missing;
        let newest = &self.entries[Self::index(self.partial)].batch;
        // Requests that the driver never took consume no receive of the peer. Counted as due, they
        // would allow the peer a count that nothing was posted for.
        if withheld > 0 && newest.receives() > 0 {
            self.receives_due = self.receives_due.wrapping_sub(withheld);
        }
        // What earlier queue pairs lost is resolved: only a rail that is Down is replaced, and it
        // is Down when the peer's count is known.
        let (unresolved, to) = (self.head, self.head);
        self.lost = Lost { from, unresolved, to, is_losing: true, withheld, ..Lost::NONE };
        // Lost numbers are older than those in flight, and do not stand at the front of the ring.
        self.is_out_of_order = true;
    }

    /// Whether what fails is lost.
    pub(crate) const fn is_losing(&self) -> bool {
        self.lost.is_losing
    }

    /// Whether the front batch can only be lost, since not all of it was posted.
    pub(crate) const fn front_is_withheld(&self) -> bool {
        self.lost.withheld > 0 && self.head == self.partial
    }

    /// Request `index` of the front batch failed, and if `proves` those before it are acknowledged.
    pub(crate) fn note_failed(&mut self, index: u32, proves: bool) {
        // Requests fail in posting order, so the first failure ends the acknowledged prefix. Those
        // behind it are flushes, and prove nothing about requests in front of them.
        let is_first = self.lost.failed.is_none();
        self.lost.failed = self.lost.failed.or(Some(index));
        if proves && is_first {
            self.lost.acknowledged = index;
        }
    }

    /// The first request of the front batch that failed, if the batch is not lost yet.
    pub(crate) const fn front_failed(&self) -> Option<u32> {
        self.lost.failed
    }

    /// The front batch, and how many of its requests are acknowledged though it is not complete.
    pub(crate) fn front_acknowledged(&self) -> Option<(Batch, u32)> {
        self.front().map(|batch| (*batch, self.lost.acknowledged))
    }

    /// The front batch is lost. Nothing of it is in flight any more. Of plain fragments those that
    /// are acknowledged, `acknowledged_bytes` in all, are done; the peer reports what it counts.
    pub(crate) fn lose_front(&mut self, acknowledged_bytes: u32) {
        debug_assert!(self.is_losing() && !self.is_empty());
        let withheld = if self.front_is_withheld() { self.lost.withheld } else { 0 };
        if withheld > 0 {
            // Nothing offers the rest to the driver again, and `invariants` allows only a batch in
            // flight to have requests missing.
            self.never_posted += u64::from(self.missing);
            self.missing = 0;
        }
        let number = self.head;
        let entry = &mut self.entries[Self::index(number)];
        // The batch is not in flight any more, so a late completion must not match its place.
        entry.last_tag = Tag::NONE;
        let batch = entry.batch;
        // Requests that were never posted cannot arrive, so they are not lost at the peer.
        self.lost.receives += batch.receives().saturating_sub(withheld);
        self.head += u64::from(batch.count);
        self.credits += u32::from(batch.count);
        self.lost.to = self.head;
        self.lost.failed = None;
        let acknowledged = core::mem::take(&mut self.lost.acknowledged);
        // Only plain fragments are cut here, since the peer does not count them. Of all others its
        // count decides what arrived.
        let mut lost = batch.count;
        if acknowledged > 0 && batch.content == Content::Fragments {
            let (_, rest) = batch.split(acknowledged, acknowledged_bytes, 0);
            self.take_lost(number, Some(rest));
            lost = rest.count;
        }
        self.lost.requests += u32::from(lost);
        self.not_arrived += u64::from(lost);
    }

    /// The number of requests that this queue pair lost, posted again or not.
    pub(crate) const fn requests_lost(&self) -> u32 {
        self.lost.requests
    }

    /// Whether there are batches that were lost, and are neither done nor posted again.
    #[inline]
    pub(crate) const fn has_lost(&self) -> bool {
        self.lost.from < self.lost.to
    }

    /// The first lost batch at or behind this number, with its own number. At the number a place
    /// begins, or it is before all that is lost.
    pub(crate) fn next_lost(&self, number: u64) -> Option<(u64, Batch)> {
        let mut at = self.lost.from.max(number);
        while at < self.lost.to {
            let batch = self.entries[Self::index(at)].batch;
            if batch.content != Content::Gone {
                return Some((at, batch));
            }
            at += u64::from(batch.count);
        }
        None
    }

    /// Whether it is known what arrived of the lost batch at this number.
    pub(crate) const fn is_resolved(&self, number: u64) -> bool {
        number < self.lost.unresolved
    }

    /// The first number of which it is not known what arrived.
    pub(crate) const fn first_unresolved(&self) -> u64 {
        self.lost.unresolved
    }

    /// It is known what arrived of everything: `arrived` of the requests that this queue pair
    /// lost.
    pub(crate) fn resolve(&mut self, arrived: u32) {
        self.not_arrived -= u64::from(arrived);
        self.lost.unresolved = self.lost.to;
        self.lost.receives = 0;
    }

    /// The lost batch at this number is done, or posted elsewhere, but for `rest`.
    pub(crate) fn take_lost(&mut self, number: u64, rest: Option<Batch>) {
        let last_tag = Tag::NONE;
        let mut batch = self.entries[Self::index(number)].batch;
        if let Some(rest) = rest {
            batch.count -= rest.count;
            let entry = Entry { last_tag, batch: rest };
            // The place of the rest's own first request. No other batch can have it before this one
            // has left the ring.
            self.entries[Self::index(number + u64::from(batch.count))] = entry;
        }
        // The count stays: it leads to the place of the next lost batch ("one behind the other" in
        // `lost_invariants`).
        let gone = Batch { count: batch.count, content: Content::Gone, ..Batch::BLANK };
        self.entries[Self::index(number)] = Entry { last_tag, batch: gone };
        self.skip_gone();
    }

    /// What was taken from this number on was not posted: it is lost still.
    pub(crate) fn put_back_lost(&mut self, number: u64, batch: Batch) {
        self.entries[Self::index(number)] = Entry { last_tag: Tag::NONE, batch };
        // `take_lost` may have moved the start past it.
        self.lost.from = self.lost.from.min(number);
    }

    fn skip_gone(&mut self) {
        while self.has_lost() {
            let Batch { content, count, .. } = self.entries[Self::index(self.lost.from)].batch;
            if content != Content::Gone {
                return;
            }
            self.lost.from += u64::from(count);
        }
    }

    /// [`push`](Self::push) of what was lost elsewhere, or here before.
    pub(crate) fn push_again(&mut self, batch: Batch) -> Tag {
        self.is_out_of_order = true;
        self.push(batch)
    }

    /// Everything that failed is known. Forgets the places of what succeeded.
    pub(crate) fn end_loss(&mut self) {
        debug_assert!(self.is_empty());
        self.skip_gone();
    }

    /// Nothing that was lost is posted again.
    pub(crate) fn forget_lost(&mut self) {
        self.lost = Lost { from: self.lost.to, to: self.lost.to, ..Lost::NONE };
        self.resolve(0);
    }

    /// Receives of the peer's that everything posted to this queue pair takes, modulo 2^32.
    pub(crate) const fn receives_due(&self) -> u32 {
        self.receives_due
    }

    /// Those of them that the peer's acknowledgements prove to be taken. For a queue that is
    /// drained.
    pub(crate) const fn receives_acknowledged(&self) -> u32 {
        self.receives_due.wrapping_sub(self.lost.receives)
    }

    /// Another queue pair takes the place of this one.
    pub(crate) fn start_over(&mut self, generation: u16) {
        debug_assert!(self.is_empty());
        self.tag = self.tag.of_generation(generation);
        // The peer counts each generation from 0 as well.
        self.receives_due = 0;
        // Lost batches outlive the queue pair: they wait for credits of this one or of others.
        let Lost { from, unresolved, to, .. } = self.lost;
        self.lost = Lost { from, unresolved, to, ..Lost::NONE };
    }

    /// Numbers of which none unacknowledged is older: the oldest one, or all of them when they are
    /// not in order.
    pub(crate) fn oldest_numbers(&self) -> impl Iterator<Item = u32> {
        let numbered = |batch: &&Batch| matches!(batch.content, Content::Numbered | Content::Gap);
        // Numbers are given in posting order, so as long as nothing was posted again the front has
        // the oldest. From then on it stands anywhere: `rails-that-fail.md`, "What happens to
        // requests".
        let most = if self.is_out_of_order { usize::MAX } else { 1 };
        let all = self.iter().chain(self.lost_batches());
        all.filter(numbered).map(|batch| batch.number).take(most)
    }

    /// All lost batches, oldest first.
    pub(crate) fn lost_batches(&self) -> impl Iterator<Item = &Batch> {
        let places = self.places(self.lost.from, self.lost.to);
        places.filter(|batch| batch.content != Content::Gone)
    }

    /// What must hold between any two calls.
    pub(super) fn lost_invariants(&self) {
        let Lost { from, unresolved, to, .. } = self.lost;
        assert!(from <= to && to <= self.head, "what is lost is not in flight");
        if from < to {
            assert!(unresolved <= to, "what is resolved is lost");
            // Otherwise a new batch would be written over a lost one.
            assert!(self.tail - from <= DEPTH as u64, "lost batches keep their places");
            let places: u64 = self.places(from, to).map(|batch| u64::from(batch.count)).sum();
            assert_eq!(places, to - from, "one behind the other");
        }
    }
}
