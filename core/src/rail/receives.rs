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
}

impl Receives {
    pub(super) const fn new(kind: TagKind, rail: u8, limit: u32) -> Self {
        let front = Tag::new(kind, rail, 0).last();
        Self { front, next: front, low: limit - limit.div_ceil(4), limit }
    }

    /// Data receives and notification receives carry different tags.
    pub(crate) fn set_kind(&mut self, kind: TagKind) {
        debug_assert!(self.is_empty(), "the kind is chosen before the first receive");
        *self = Self::new(kind, self.front.rail(), self.limit);
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
