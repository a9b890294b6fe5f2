//! The receives that are posted on one physical receive queue.

use super::tag::{Tag, TagKind};

/// Receives posted on one physical receive queue, oldest first. They are all alike, so a cursor
/// and a count are enough.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receives {
    /// Tag of the receive that completes next.
    front: Tag,
    /// Tag of the receive that is posted next.
    next: Tag,
    /// The low-water mark: with at most this many posted, a quarter is missing.
    low: u32,
    /// Receives that may be posted at once.
    limit: u32,
    /// Tag of the first receive that was posted to this queue pair.
    first: Tag,
    /// Receives that completed without having taken anything.
    flushed: u32,
}

impl Receives {
    pub(super) const fn new(kind: TagKind, rail: u8, limit: u32) -> Self {
        // Marked as last, since each receive retires itself: one test finds the rail of a send's
        // and of a receive's completion (`Tag::rail_of_last`).
        Self::starting_at(Tag::new(kind, rail, 0).last(), limit)
    }

    const fn starting_at(first: Tag, limit: u32) -> Self {
        // Posting a quarter at a time rings one doorbell for many receives. Rounded up, because at
        // a mark of `limit` a full queue would count as low.
        let low = limit - limit.div_ceil(4);
        Self { front: first, next: first, low, limit, first, flushed: 0 }
    }

    /// Data receives and notification receives carry different tags.
    pub(crate) fn set_kind(&mut self, kind: TagKind) {
        debug_assert!(self.is_empty(), "the kind is chosen before the first receive");
        let first = Tag::new(kind, self.front.rail(), self.front.generation()).last();
        *self = Self::starting_at(first, self.limit);
    }

    /// Another queue pair takes the place of this one. The first receive that took nothing is its
    /// first.
    pub(super) fn start_over(&mut self, generation: u16) {
        debug_assert!(self.is_empty());
        let first = self.first.of_generation(generation);
        // Numbers go on where the last receive took something, because those that took nothing are
        // posted again in their order. The peer's count starts at 0: `first` moves along.
        let number = self.first.sequence() + u64::from(self.arrived());
        *self = Self::starting_at(first.plus(number), self.limit);
    }

    /// What the receives are for.
    pub(crate) const fn kind(&self) -> Option<TagKind> {
        self.next.kind()
    }

    /// The receive that completed last took nothing.
    pub(crate) fn note_flushed(&mut self) {
        self.flushed += 1;
    }

    /// No receive that is posted will complete.
    pub(crate) fn flush_all(&mut self) {
        // The completions of a queue pair that is destroyed never come, so nothing may be awaited.
        self.flushed += self.posted();
        self.front = self.next;
    }

    /// Receives of this queue pair that took something, modulo 2^32.
    pub(crate) const fn arrived(&self) -> u32 {
        // A flushed receive took nothing. Counted, the peer would take the request for arrived and
        // never post it again.
        (self.front.since(self.first) as u32).wrapping_sub(self.flushed)
    }

    /// Receives that may be posted at once.
    #[inline]
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    #[inline]
    pub(crate) const fn posted(&self) -> u32 {
        self.next.since(self.front) as u32
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.front == self.next
    }

    #[inline]
    pub(crate) const fn room(&self) -> u32 {
        self.limit - self.posted()
    }

    /// Whether it is time to post receives again.
    #[inline]
    pub(crate) const fn is_low(&self) -> bool {
        self.posted() <= self.low
    }

    /// The tag of the receive that completes next.
    #[inline]
    pub(crate) fn expected(&self) -> Option<Tag> {
        (!self.is_empty()).then_some(self.front)
    }

    /// The tag of the receive that is posted next.
    #[inline]
    pub(super) const fn next(&self) -> Tag {
        self.next
    }

    /// `count` more are posted.
    #[inline]
    pub(super) fn push(&mut self, count: u32) {
        self.next = self.next.plus(u64::from(count));
    }

    /// Takes the front receive off if it is the one with this `wr_id`, and `accept` agrees. Returns
    /// its number.
    #[inline]
    pub(crate) fn complete_if(&mut self, wr_id: u64, accept: impl FnOnce() -> bool) -> Option<u64> {
        let front = self.front;
        // If nothing is posted, the front has the tag of the next receive, which a wrong device
        // might complete.
        if wr_id != front.wr_id() || self.is_empty() || !accept() {
            return None;
        }
        self.front = front.plus(1);
        Some(front.sequence())
    }

    /// Takes the front receive off if it is the one that completed, and returns its number.
    #[inline]
    pub(crate) fn complete(&mut self, wr_id: u64) -> Option<u64> {
        self.complete_if(wr_id, || true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_receive_is_expected_and_none_completes_twice() {
        let mut receives = Receives::new(TagKind::DataRecv, 1, 4);
        assert_eq!(receives.expected(), None);
        let first = receives.next();
        receives.push(2);
        assert_eq!(receives.expected(), Some(first));
        assert_eq!(receives.complete(first.plus(1).wr_id()), None);
        assert_eq!(receives.complete(first.wr_id()), Some(0));
        assert_eq!(receives.expected(), Some(first.plus(1)));
        assert_eq!(receives.complete(first.wr_id()), None);
        assert_eq!(receives.complete(first.plus(1).wr_id()), Some(1));
        assert_eq!(receives.expected(), None);
        assert_eq!(receives.complete(first.plus(2).wr_id()), None);
    }
}
