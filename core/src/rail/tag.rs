//! Tags: the 64-bit `wr_id` that the engine gives a physical request of a multi-rail queue pair.
//!
//! On a failed completion verbs defines `wr_id`, `status`, `qp_num` and `vendor_err`, nothing else.
//! So everything needed to route a completion is in its tag:
//!
//! ```text
//!  63   62           24 23         8   7   6    3   2   1    0
//! +----+---------------+------------+-----+------+------+------+
//! | 1  |   sequence    | generation |  0  | rail | last | kind |
//! +----+---------------+------------+-----+------+------+------+
//! ```
//!
//! *Sequence* counts the requests of one queue, *last* marks the one request of a batch that
//! retires it. *Generation* changes when another queue pair takes the rail's place, so that
//! stragglers of the old one are recognised. The sequence stands high so that it may overflow: the
//! next request's tag is one addition away, always.
//!
//! *Bit 63* is set in every tag and in no `wr_id` of a shared receive queue's receives
//! ([`QueuePair`](crate::hardware::QueuePair) asks that of implementations). A failed completion
//! does not say which queue it is of, so only this bit distinguishes them.

use crate::hardware::ENGINE_WR_ID;
use core::fmt;

/// What a physical request is for, direction included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TagKind {
    /// Fragments, pass-through requests and notifies: anything on a send queue.
    Send = 1,
    /// A zero-length receive: SPRAY's on the notify queue pair, DQPLB's on every rail.
    NotifyRecv = 2,
    /// A user's receive with a buffer, on rail 0.
    DataRecv = 3,
}

impl TagKind {
    const BY_NUMBER: [Option<Self>; 4] =
        [None, Some(Self::Send), Some(Self::NotifyRecv), Some(Self::DataRecv)];
}

/// A tag, field by field in one word.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(u64);

impl Tag {
    const KIND_MASK: u64 = 0b11;
    const LAST: u64 = 1 << 2;
    const RAIL_SHIFT: u32 = 3;
    const RAIL_BITS: u32 = 4;
    const GENERATION_SHIFT: u32 = 8;
    const SEQUENCE_SHIFT: u32 = 24;

    /// Set in every tag, and in no other `wr_id` that completes on a queue pair of several.
    pub const MARK: u64 = ENGINE_WR_ID;

    /// The rail number that stands for the notify queue pair.
    // All bits of the field, so that it is the mask of the field as well.
    pub const NOTIFY_RAIL: u8 = (1 << Self::RAIL_BITS) - 1;

    /// No tag at all: it has no mark, and is not the last of its batch, which alone retires one.
    pub const NONE: Self = Self(0);

    /// The tag of request 0, not the last of its batch, on `rail`.
    pub const fn new(kind: TagKind, rail: u8, generation: u16) -> Self {
        debug_assert!(rail <= Self::NOTIFY_RAIL);
        Self(
            Self::MARK
                | kind as u64
                | (rail as u64) << Self::RAIL_SHIFT
                | (generation as u64) << Self::GENERATION_SHIFT,
        )
    }

    /// The tag of request 0 of the same queue, for the queue pair of another generation.
    pub const fn of_generation(self, generation: u16) -> Self {
        // Kind, rail and `last` stand below the generation. The sequence starts at 0.
        let queue = self.0 & (Self::MARK | ((1 << Self::GENERATION_SHIFT) - 1));
        Self(queue | (generation as u64) << Self::GENERATION_SHIFT)
    }

    /// Reads a `wr_id`.
    #[inline]
    pub const fn from_wr_id(wr_id: u64) -> Self {
        Self(wr_id)
    }

    /// The number that goes into the physical request.
    #[inline]
    pub const fn wr_id(self) -> u64 {
        self.0
    }

    /// The tag of the request `count` requests after this one.
    #[inline]
    pub const fn plus(self, count: u64) -> Self {
        // An overflow of the sequence would clear the mark.
        Self(self.0.wrapping_add(count << Self::SEQUENCE_SHIFT) | Self::MARK)
    }

    /// How many requests after request `number` this one is, if it is of the queue of which `first`
    /// is request 0; of another queue `None`, or more than any queue holds. Only messages ask.
    #[cfg(target_has_atomic = "64")]
    #[inline]
    pub const fn requests_since(self, first: Self, number: u64) -> Option<u64> {
        let oldest = first.0.wrapping_add(number << Self::SEQUENCE_SHIFT);
        // Without the mark, which an overflow of the sequence clears. Any other difference then
        // stands above the number.
        let difference = self.0.wrapping_sub(oldest) << 1;
        let since = difference.rotate_right(Self::SEQUENCE_SHIFT + 1);
        if self.0 & Self::MARK == 0 { None } else { Some(since) }
    }

    /// The tag of request `number`, the first of a batch; this is that of request 0. The sequence
    /// is that number modulo 2^32, far from the highest that it could be: within a batch none
    /// overflows.
    #[inline]
    pub const fn first_of_batch(self, number: u64) -> Self {
        Self(self.0 + ((number as u32 as u64) << Self::SEQUENCE_SHIFT))
    }

    /// The tag of the next request of the batch.
    #[inline]
    pub const fn next_of_batch(self) -> Self {
        // `first_of_batch` leaves room below the overflow, so the mark need not be set again. Doing
        // so cost 27 of the 1445 instructions of a request of 16 fragments.
        Self(self.0 + (1 << Self::SEQUENCE_SHIFT))
    }

    /// The tag of the last request of a batch of `count`, of which this is the first: one request
    /// back from the one behind the batch, and marked as the last, in one step.
    #[inline]
    pub const fn last_of(self, count: u32) -> Self {
        let behind = self.0 + ((count as u64) << Self::SEQUENCE_SHIFT);
        Self(behind - ((1 << Self::SEQUENCE_SHIFT) - Self::LAST))
    }

    /// This tag, marked as the one that retires its batch.
    #[inline]
    pub const fn last(self) -> Self {
        Self(self.0 | Self::LAST)
    }

    /// What the request is for; `None` if the number is not a tag.
    #[inline]
    pub const fn kind(self) -> Option<TagKind> {
        // Receives of a shared queue have any number without the mark. One that looks like a tag of
        // a send must not be routed as one.
        let kind = TagKind::BY_NUMBER[(self.0 & Self::KIND_MASK) as usize];
        if self.0 & Self::MARK == 0 { None } else { kind }
    }

    /// The rail, or [`NOTIFY_RAIL`](Self::NOTIFY_RAIL).
    #[inline]
    pub const fn rail(self) -> u8 {
        (self.0 >> Self::RAIL_SHIFT) as u8 & Self::NOTIFY_RAIL
    }

    /// Returns the rail if this is the tag of the last request of a batch of this kind; for any
    /// other tag, a number above all rails. Without a branch, because it is hot: the exclusive or
    /// with such a tag of rail 0 leaves the rail's bits, and moves every other bit that differs
    /// above them.
    #[inline]
    pub const fn rail_of_last(self, kind: TagKind) -> usize {
        let difference = (self.0 as u8 ^ (kind as u8 | Self::LAST as u8)) as u32;
        // Rotated in a register of full width: in 8 bits, a request of 16 fragments took 4
        // instructions more.
        difference.rotate_right(Self::RAIL_SHIFT) as usize
    }

    /// Which queue pair in the rail's place.
    pub const fn generation(self) -> u16 {
        (self.0 >> Self::GENERATION_SHIFT) as u16
    }

    /// Whether the request retires its batch.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.0 & Self::LAST != 0
    }

    /// The request's number on its queue, modulo 2^39.
    #[inline]
    pub const fn sequence(self) -> u64 {
        (self.0 & !Self::MARK) >> Self::SEQUENCE_SHIFT
    }

    /// Requests from `earlier` to this one, modulo 2^39.
    #[inline]
    pub const fn since(self, earlier: Self) -> u64 {
        // Lower fields may differ and borrow from the sequence, so a caller that does not know that
        // both tags are of one queue compares the whole tag as well.
        Self(self.0.wrapping_sub(earlier.0)).sequence()
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tag")
            .field("kind", &self.kind())
            .field("rail", &self.rail())
            .field("generation", &self.generation())
            .field("sequence", &self.sequence())
            .field("last", &self.is_last())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_survives_its_extremes() {
        for kind in [TagKind::Send, TagKind::NotifyRecv, TagKind::DataRecv] {
            for rail in [0, 7, Tag::NOTIFY_RAIL] {
                for generation in [0, u16::MAX] {
                    for sequence in [0, 1, (1 << 39) - 1] {
                        let tag = Tag::new(kind, rail, generation).plus(sequence);
                        assert!(!tag.is_last());
                        let tag = Tag::from_wr_id(tag.last().wr_id());
                        assert_eq!(tag.kind(), Some(kind));
                        assert_eq!(tag.rail(), rail);
                        assert_eq!(tag.generation(), generation);
                        assert_eq!(tag.sequence(), sequence);
                        assert!(tag.is_last());
                    }
                }
            }
        }
    }

    #[test]
    fn the_rail_of_a_last_request_is_no_rail_for_any_other_tag() {
        let kinds = [TagKind::Send, TagKind::NotifyRecv, TagKind::DataRecv];
        for low_byte in 0..=u8::MAX {
            let tag = Tag::from_wr_id(u64::from(low_byte)).plus(77);
            for kind in kinds {
                let fits = tag.kind() == Some(kind) && tag.is_last() && low_byte < 1 << 7;
                let rail = tag.rail_of_last(kind);
                assert_eq!(rail <= usize::from(Tag::NOTIFY_RAIL), fits, "{tag:?}");
                assert!(!fits || rail == usize::from(tag.rail()));
            }
        }
    }

    #[test]
    fn no_tag_is_of_no_rail() {
        assert_eq!(Tag::NONE.kind(), None);
        for kind in [TagKind::Send, TagKind::NotifyRecv, TagKind::DataRecv] {
            assert!(Tag::NONE.rail_of_last(kind) > usize::from(Tag::NOTIFY_RAIL));
        }
    }

    #[test]
    fn the_sequence_wraps_and_nothing_else_changes() {
        let first = Tag::new(TagKind::Send, 3, 5);
        let top = first.plus((1 << 39) - 1);
        assert_eq!(top.plus(1), first);
        assert_eq!(top.of_generation(7), Tag::new(TagKind::Send, 3, 7));
        assert_eq!(top.last().of_generation(5), first.last());
        assert_eq!(top.plus(3).since(top), 3);
    }

    #[test]
    fn numbers_that_are_no_tags_have_no_kind() {
        assert_eq!(Tag::from_wr_id(0).kind(), None);
        assert_eq!(Tag::from_wr_id(u64::MAX << 2).kind(), None);
        let tag = Tag::new(TagKind::Send, 0, 0).last();
        assert_eq!(tag.kind(), Some(TagKind::Send));
        assert_eq!(Tag::from_wr_id(tag.wr_id() & !Tag::MARK).kind(), None);
    }
}
