//! What is in flight on the send queue of one rail: a queue of batches, oldest first.
//!
//! A reliable connection completes its requests in posting order, and only the last request of a
//! batch is signaled, so the front batch is the only one that the next completion may belong to.

mod batch;
mod losing;

pub(crate) use batch::{Batch, Content};

use super::tag::{Tag, TagKind};
use crate::debug::List;
use core::fmt;

/// Requests that a queue pair has in flight at most.
pub(crate) const MAX_DEPTH: usize = 1 << 15;

/// A batch in its place, with the tag that retires it, or [`Tag::NONE`] if it is not in flight.
#[derive(Clone, Copy, Debug)]
struct Entry {
    last_tag: Tag,
    batch: Batch,
}

// 128 batches on each of 4 rails and the notify queue pair: 20 KiB of the 66 KiB budget.
static_assertions::const_assert_eq!(size_of::<Entry>(), 32);

/// How a completion's tag relates to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TagMatch {
    /// The last request of the front batch.
    Last,
    /// An earlier request of the front batch, at this index.
    Inner(u32),
    /// None of the front batch's.
    Mismatch,
}

/// The places of lost batches, and what is known of them.
#[derive(Clone, Copy, Debug)]
struct Lost {
    /// The first lost batch.
    from: u64,
    /// The first lost batch of which it is unknown what arrived.
    unresolved: u64,
    /// Behind the last lost batch.
    to: u64,
    /// The queue pair failed: requests that fail from now on are lost.
    is_losing: bool,
    /// Receives of the peer that unresolved batches take.
    receives: u32,
    /// Requests of the newest batch that the driver did not take, and is not offered again.
    withheld: u32,
    /// The first request of the front batch that failed.
    failed: Option<u32>,
    /// Requests of the front batch that are acknowledged.
    acknowledged: u32,
    /// Requests that this queue pair lost.
    requests: u32,
}

impl Lost {
    const NONE: Self = Self {
        from: 0,
        unresolved: 0,
        to: 0,
        is_losing: false,
        receives: 0,
        withheld: 0,
        failed: None,
        acknowledged: 0,
        requests: 0,
    };
}

/// The batches in flight on one send queue, and its credits.
///
/// A *credit* is a free send slot. A batch takes one for each request, signaled or not, and gives
/// them all back when it retires.
///
/// Laid out as written: what one post or one completion updates does not stand side by side.
/// Neighbours get updated with one 16-byte access, whose result the next post has to wait for, and
/// wait long where it crosses a cache line.
#[derive(Clone)]
#[repr(C)]
pub(crate) struct InFlight<const DEPTH: usize> {
    /// Tag of request 0.
    tag: Tag,
    bytes_posted: u64,
    /// Requests retired: the number of the front batch's first request.
    head: u64,
    /// Requests posted, those missing included: the number of the next one.
    tail: u64,
    limit: u32,
    credits: u32,
    batches_posted: u64,
    /// Number of the newest batch's first request, while some are missing.
    partial: u64,
    /// Requests of the newest batch that the driver has not taken yet.
    missing: u32,
    /// Requests that have a number and never were posted.
    never_posted: u64,
    /// Requests that were lost, less those of them that arrived.
    not_arrived: u64,
    /// Receives of the peer's that what was posted to this queue pair takes, modulo 2^32.
    receives_due: u32,
    /// Batches were posted again, so sequence numbers are not in order.
    is_out_of_order: bool,
    lost: Lost,
    /// Each batch in the place of its first request.
    entries: [Entry; DEPTH],
}

impl<const DEPTH: usize> InFlight<DEPTH> {
    /// An empty queue of `limit` credits, at most `DEPTH`.
    pub(crate) const fn new(rail: u8, limit: u32) -> Self {
        const {
            assert!(DEPTH.is_power_of_two(), "a ring's size is a power of two");
            assert!(DEPTH <= MAX_DEPTH, "a batch counts its requests in 16 bits");
        }
        debug_assert!(limit as usize <= DEPTH);
        Self {
            tag: Tag::new(TagKind::Send, rail, 0),
            head: 0,
            tail: 0,
            credits: limit,
            limit,
            batches_posted: 0,
            bytes_posted: 0,
            missing: 0,
            never_posted: 0,
            not_arrived: 0,
            receives_due: 0,
            is_out_of_order: false,
            lost: Lost::NONE,
            partial: 0,
            entries: [Entry { last_tag: Tag::NONE, batch: Batch::BLANK }; DEPTH],
        }
    }

    #[inline]
    const fn index(number: u64) -> usize {
        // `DEPTH` is a power of two, so the modulo of a number is a mask.
        number as usize & (DEPTH - 1)
    }

    /// Free send slots.
    #[inline]
    pub(crate) const fn credits(&self) -> u32 {
        self.credits
    }

    /// Send slots in all.
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Requests that the driver has taken so far.
    pub(crate) const fn requests_posted(&self) -> u64 {
        // Derived from the cursors, so that a post has no counter to update for it.
        self.tail - self.missing as u64 - self.never_posted
    }

    /// Requests that ended so far without being lost, and lost ones that had arrived.
    pub(crate) const fn requests_acknowledged(&self) -> u64 {
        // Derived from the cursor, so that a completion has no counter to update for it.
        self.head - self.not_arrived
    }

    /// Batches posted so far.
    pub(crate) const fn batches_posted(&self) -> u64 {
        self.batches_posted
    }

    /// Payload bytes posted so far.
    pub(crate) const fn bytes_posted(&self) -> u64 {
        self.bytes_posted
    }

    /// Payload bytes in flight. Adds them up when asked, so that not every batch pays for it.
    pub(crate) fn bytes(&self) -> u64 {
        self.iter().map(|batch| u64::from(batch.length)).sum()
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        // The first check of `invariants`: this holds exactly if `head` is `tail`.
        self.credits == self.limit
    }

    /// The tag of the next batch's first request.
    #[inline]
    pub(crate) const fn next_tag(&self) -> Tag {
        self.tag.first_of_batch(self.tail)
    }

    /// Takes note of a batch that is about to be posted, and returns the tag of its first request.
    /// What the driver does not take of it is [taken off](Self::truncate) again.
    // Where it is called, a batch need not be put together in memory first.
    #[inline(always)]
    pub(crate) fn push(&mut self, batch: Batch) -> Tag {
        // The queue pair executes requests in posting order. Behind a partial batch, this one would
        // stand in front of the requests that the driver has still to take.
        debug_assert!(batch.count as u32 <= self.credits && self.missing == 0);
        let first = self.next_tag();
        let last_tag = first.last_of(u32::from(batch.count));
        // The batch has a place for each request, and uses the first. If it is lost and cut,
        // `take_lost` puts the rest into one of the others.
        self.entries[Self::index(self.tail)] = Entry { last_tag, batch };
        self.tail += batch.count as u64;
        self.credits -= batch.count as u32;
        self.batches_posted += 1;
        self.bytes_posted += batch.length as u64;
        self.receives_due = self.receives_due.wrapping_add(batch.receives());
        first
    }

    /// The driver took only the first `accepted` of the newest batch's `count` requests. With none
    /// taken, it is as if the batch had never been. Returns the batch.
    #[cold]
    pub(crate) fn truncate(&mut self, count: u32, accepted: u32) -> Batch {
        debug_assert!(accepted <= count && self.missing == 0);
        let first = self.tail - u64::from(count);
        let entry = &mut self.entries[Self::index(first)];
        debug_assert!(u32::from(entry.batch.count) == count);
        let batch = entry.batch;
        // ibv_post_send(3): the requests before `bad_wr` are posted. Those behind it keep their
        // numbers and credits, because the driver is offered them again under the same tags.
        if accepted > 0 {
            self.partial = first;
            self.missing = count - accepted;
        } else {
            // The next batch gets the same tags, which the device has never seen.
            // `retire_fragments` relies on a place that is not in flight to match none.
            entry.last_tag = Tag::NONE;
            self.tail = first;
            self.credits += count;
            self.batches_posted -= 1;
            self.bytes_posted -= u64::from(batch.length);
            self.receives_due = self.receives_due.wrapping_sub(batch.receives());
        }
        batch
    }

    /// Whether the driver has not taken all of the newest batch yet.
    #[inline]
    pub(crate) const fn is_partial(&self) -> bool {
        self.missing > 0
    }

    /// The newest batch, if the driver took only its front, with the index and the tag of the
    /// first request that it has not taken.
    pub(crate) fn partial(&self) -> Option<(Batch, u32, Tag)> {
        let batch = self.entries[Self::index(self.partial)].batch;
        self.is_partial().then(|| {
            // The rest is posted under the tags that `push` set aside, so its last request, the
            // only signaled one, still retires the whole batch.
            let index = u32::from(batch.count) - self.missing;
            (batch, index, self.tag.first_of_batch(self.partial).plus(u64::from(index)))
        })
    }

    /// What the driver has not taken of the partial batch, all but `bytes_taken` of it, will never
    /// be posted. The batch stays, until [a marker](Self::mark_end) or what was taken retires it.
    pub(crate) fn withhold(&mut self, bytes_taken: u32) {
        debug_assert!(self.is_partial());
        let batch = &self.entries[Self::index(self.partial)].batch;
        self.bytes_posted -= u64::from(batch.length.saturating_sub(bytes_taken));
    }

    /// A request that moves nothing was posted under the partial batch's last tag, in place of all
    /// that the driver has not taken.
    pub(crate) fn mark_end(&mut self) {
        debug_assert!(self.is_partial());
        // The marker has the last missing number. No request will ever have the numbers before it.
        self.never_posted += u64::from(self.missing - 1);
        self.missing = 0;
    }

    /// The driver took `count` more requests of the partial batch.
    pub(crate) fn accepted(&mut self, count: u32) {
        debug_assert!(count <= self.missing);
        self.missing -= count;
    }

    #[inline]
    fn front_entry(&mut self) -> &mut Entry {
        &mut self.entries[Self::index(self.head)]
    }

    /// The batch that the next completion belongs to.
    #[inline]
    pub(crate) fn front(&self) -> Option<&Batch> {
        if self.is_empty() { None } else { Some(&self.entries[Self::index(self.head)].batch) }
    }

    /// Compares a completion's `wr_id` with the front batch.
    pub(crate) fn compare(&self, wr_id: u64) -> TagMatch {
        let Some(front) = self.front() else { return TagMatch::Mismatch };
        let count = u32::from(front.count);
        let taken = self.front_taken();
        let tag = Tag::from_wr_id(wr_id);
        // If the driver has not taken the last request, no correct device completes it.
        if Some(tag) == self.expected() && taken == count {
            return TagMatch::Last;
        }
        // The last request carries the mark, so an inner one lies before it.
        let first = self.tag.first_of_batch(self.head);
        // Inner requests are unsignaled, so they complete only with an error (ibv_post_send(3)).
        let index = tag.since(first);
        // `since` looks at the sequence only. The whole tag must agree: a straggler of the queue
        // pair before has another generation.
        if index < u64::from(taken.min(count - 1)) && tag == first.plus(index) {
            return TagMatch::Inner(index as u32);
        }
        TagMatch::Mismatch
    }

    /// Requests of the front batch that the driver has taken.
    fn front_taken(&self) -> u32 {
        let Some(front) = self.front() else { return 0 };
        // `partial` is stale while nothing is missing, so its number alone proves nothing.
        let partial = self.is_partial() && self.head == self.partial;
        u32::from(front.count) - if partial { self.missing } else { 0 }
    }

    /// The tag that would retire the front batch.
    pub(crate) fn expected(&self) -> Option<Tag> {
        (!self.is_empty()).then(|| self.entries[Self::index(self.head)].last_tag)
    }

    /// Retires the front batch: its credits are free again.
    pub(crate) fn retire(&mut self) -> Batch {
        debug_assert!(!self.is_empty());
        let entry = self.front_entry();
        // The place keeps its batch, so a second completion with this tag must match nothing.
        entry.last_tag = Tag::NONE;
        let batch = entry.batch;
        if self.lost.is_losing {
            // Behind it there may be what was lost.
            self.entries[Self::index(self.head)].batch.content = Content::Gone;
            // `lost_invariants` requires that lost places follow each other without a gap, so this
            // one joins them, with nothing in it.
            self.lost.to = self.head + u64::from(batch.count);
        }
        self.head += u64::from(batch.count);
        self.credits += u32::from(batch.count);
        batch
    }

    /// Whether the batch in the front's place is made of fragments; if nothing is in flight, the
    /// last one there was.
    #[inline]
    pub(crate) const fn front_is_fragments(&self) -> bool {
        self.entries[Self::index(self.head)].batch.content.is_fragments()
    }

    /// Retires the front batch if `tag` is its last request's and it is made of fragments, and
    /// returns the request's id in the ring. Not for a queue with a partial batch.
    #[inline]
    pub(crate) fn retire_fragments(&mut self, tag: Tag) -> Option<u64> {
        debug_assert!(!self.is_partial());
        let entry = self.front_entry();
        // An empty queue needs no check: every place that is not in flight has `Tag::NONE`, and no
        // completion of a fragment has that.
        if entry.last_tag != tag || !entry.batch.content.is_fragments() {
            return None;
        }
        entry.last_tag = Tag::NONE;
        let Batch { wr, count, .. } = entry.batch;
        self.head += u64::from(count);
        self.credits += u32::from(count);
        Some(wr)
    }

    /// Retires the front batch if `tag` is its last request's and it is a pass-through request that
    /// took no place in the ring, and returns it. Not for a queue with a partial or a lost batch.
    #[inline]
    pub(crate) fn retire_bypassing(&mut self, tag: Tag) -> Option<&Batch> {
        debug_assert!(!self.is_partial() && !self.is_losing());
        let entry = &mut self.entries[Self::index(self.head)];
        // An empty queue needs no check: every place that is not in flight has `Tag::NONE`. But a
        // caller's own request on the queue pair may have this `wr_id`.
        let is_front = tag != Tag::NONE && entry.last_tag == tag;
        if !is_front || !entry.batch.content.bypasses_ring() {
            return None;
        }
        entry.last_tag = Tag::NONE;
        // Such a batch is one request.
        self.head += 1;
        self.credits += 1;
        Some(&entry.batch)
    }

    /// Request `index` of the front batch failed. If it is the last that the driver has taken, no
    /// completion can retire the batch any more: then retires it, the requests never taken
    /// included.
    pub(crate) fn retire_truncated(&mut self, index: u32) -> Option<Batch> {
        if !self.ends_at(index) {
            return None;
        }
        // Before `retire`: `invariants` allows only a batch in flight to be partial, and this one
        // ends here.
        self.never_posted += u64::from(self.missing);
        self.missing = 0;
        Some(self.retire())
    }

    /// Whether request `index` of the front batch is the last that the driver has taken, and not
    /// the last there is.
    pub(crate) fn ends_at(&self, index: u32) -> bool {
        let taken = self.front_taken();
        index + 1 == taken && self.front().is_some_and(|front| taken < u32::from(front.count))
    }

    /// Number of the oldest request that is not retired, or of the next one: what a stall check
    /// and a fence compare.
    pub(crate) const fn oldest_request(&self) -> u64 {
        self.head
    }

    /// Whether no completion can be expected before the driver takes more: nothing is in flight, or
    /// only the unsignaled front of a batch.
    pub(crate) const fn waits_for_driver(&self) -> bool {
        self.is_empty() || (self.is_partial() && self.head == self.partial)
    }

    /// The number that the next request gets.
    pub(crate) const fn next_number(&self) -> u64 {
        self.tail
    }

    /// All batches in flight, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Batch> {
        self.places(self.head, self.tail)
    }

    /// The batches that have the places from `number` to `end`.
    fn places(&self, mut number: u64, end: u64) -> impl Iterator<Item = &Batch> {
        core::iter::from_fn(move || {
            let batch = (number < end).then(|| &self.entries[Self::index(number)].batch)?;
            // Ends, because `invariants` allows no batch of 0 requests.
            number += u64::from(batch.count);
            Some(batch)
        })
    }

    /// Checks what must hold between any two calls.
    ///
    /// # Panics
    ///
    /// If it does not: a bug of this crate.
    pub(crate) fn invariants(&self) {
        assert_eq!(self.tail - self.head, u64::from(self.limit - self.credits), "credits agree");
        assert!(self.iter().all(|batch| batch.count > 0), "no batch is empty");
        let in_flight: u32 = self.iter().map(|batch| u32::from(batch.count)).sum();
        assert_eq!(in_flight + self.credits, self.limit, "credits are conserved");
        assert!(self.missing == 0 || !self.is_empty(), "only a batch in flight can be partial");
        self.lost_invariants();
    }
}

/// What places hold that are of no batch in flight or lost means nothing.
impl<const DEPTH: usize> fmt::Debug for InFlight<DEPTH> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tests compare this text before and after a refused call, so what stale places hold must
        // not show.
        let lost = List(|| self.lost_batches());
        let in_flight = List(|| self.iter());
        let mut all = f.debug_struct("InFlight");
        all.field("next_tag", &self.next_tag()).field("expected", &self.expected());
        all.field("head", &self.head).field("tail", &self.tail);
        all.field("limit", &self.limit).field("credits", &self.credits);
        all.field("bytes_posted", &self.bytes_posted).field("batches_posted", &self.batches_posted);
        all.field("missing", &self.missing).field("never_posted", &self.never_posted);
        all.field("not_arrived", &self.not_arrived);
        all.field("receives_due", &self.receives_due).field("places_of_lost", &self.lost);
        all.field("is_out_of_order", &self.is_out_of_order);
        all.field("lost", &lost).field("in_flight", &in_flight).finish()
    }
}

#[cfg(test)]
mod tests;
