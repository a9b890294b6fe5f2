//! A batch: requests that were handed to a queue pair together, and what they are.

use crate::verbs::Opcode;

/// What a batch is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Content {
    /// Consecutive fragments of one WRITE or READ; `wr` is its id in the ring.
    Fragments,
    /// The same, with DQPLB's sequence numbers.
    Numbered,
    /// One pass-through request that had to wait; `wr` is its id in the ring.
    Deferred,
    /// One pass-through request that went straight to the rail; `wr` is the caller's `wr_id`.
    PassThrough,
    /// The same, unsignaled: its success is not reported.
    Unsignaled,
    /// Notifies of those of the requests `wr .. wr + number` that need one.
    Notifies,
    /// One request whose data is in its notify; `wr` is its id in the ring.
    WithNotify,
    /// The numbers of fragments of a request that was taken back, without their data; `wr` is its
    /// id in the ring.
    Gap,
    /// Nothing any more: it was lost, and then done or posted elsewhere.
    Gone,
}

impl Content {
    /// Whether it is fragments of one request.
    #[inline]
    pub(crate) const fn is_fragments(self) -> bool {
        // Both kinds stand first in the enum, so that one comparison answers: `retire_fragments`
        // asks at the completion of every batch.
        self as u8 <= Self::Numbered as u8
    }

    /// Whether each of its requests takes one receive of the peer's, opcode permitting.
    #[inline]
    const fn takes_receives(self, opcode: Opcode) -> bool {
        match self {
            Self::Numbered | Self::Notifies | Self::WithNotify | Self::Gap => true,
            Self::Deferred | Self::PassThrough | Self::Unsignaled => {
                matches!(opcode, Opcode::Send | Opcode::SendWithImm)
            }
            // A plain WRITE or READ consumes no receive, so the peer's count says nothing about it.
            // It may be executed twice: `rails-that-fail.md`, "The idea: one number for each queue
            // pair".
            Self::Fragments | Self::Gone => false,
        }
    }

    /// Whether it is a pass-through request that took no place in the ring.
    #[inline]
    pub(crate) const fn bypasses_ring(self) -> bool {
        matches!(self, Self::PassThrough | Self::Unsignaled)
    }
}

/// One batch: enough to find its request and to post it again elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// A ring id or the caller's `wr_id`: see [`Content`].
    pub(crate) wr: u64,
    /// First byte within the request.
    pub(crate) offset: u32,
    /// Payload bytes.
    pub(crate) length: u32,
    /// Sequence number of the first fragment, if they are numbered; of notifies, ring ids.
    pub(crate) number: u32,
    /// Physical requests.
    pub(crate) count: u16,
    /// What they are.
    pub(crate) content: Content,
    /// What a pass-through request asks for; the others do not need it.
    pub(crate) opcode: Opcode,
}

impl Batch {
    pub(super) const BLANK: Self = Self {
        wr: 0,
        offset: 0,
        length: 0,
        number: 0,
        count: 0,
        content: Content::Fragments,
        opcode: Opcode::RdmaWrite,
    };

    /// One request that is not split.
    pub(crate) const fn one(wr: u64, length: u32, content: Content, opcode: Opcode) -> Self {
        Self { wr, length, count: 1, content, opcode, ..Self::BLANK }
    }

    /// `count` fragments of the request with ring id `wr`: `length` bytes from `offset` on.
    #[inline(always)]
    pub(crate) const fn fragments(
        wr: u64,
        content: Content,
        offset: u32,
        length: u32,
        number: u32,
        count: u32,
    ) -> Self {
        Self { wr, offset, length, number, count: count as u16, content, ..Self::BLANK }
    }

    /// `count` notifies of the `requests` requests from `first` on.
    pub(crate) const fn notifies(first: u64, requests: u32, count: u32) -> Self {
        Self {
            wr: first,
            number: requests,
            count: count as u16,
            content: Content::Notifies,
            ..Self::BLANK
        }
    }

    /// Receives of the peer's that it takes.
    #[inline]
    pub(crate) const fn receives(&self) -> u32 {
        if self.content.takes_receives(self.opcode) { self.count as u32 } else { 0 }
    }

    /// The numbers of numbered fragments, without their data.
    pub(crate) const fn gap(self) -> Self {
        Self { length: 0, content: Content::Gap, ..self }
    }

    /// Splits fragments into the first `count` of them, `bytes` long, and the rest, whose first
    /// number is `next_number`.
    pub(crate) fn split(self, count: u32, bytes: u32, next_number: u32) -> (Self, Self) {
        debug_assert!(self.content.is_fragments() || matches!(self.content, Content::Gap));
        debug_assert!(count < self.count as u32);
        let front = Self { length: bytes, count: count as u16, ..self };
        let rest = Self {
            offset: self.offset + bytes,
            length: self.length - bytes,
            number: next_number,
            count: self.count - count as u16,
            ..self
        };
        (front, rest)
    }

    /// Bytes of the first `count` fragments of a request without a list: only the last one of a
    /// batch may be short.
    pub(crate) fn bytes_of(&self, count: u32, fragment_bytes: u32) -> u32 {
        // The product can exceed 32 bits where the last fragment is short. The length then limits
        // it.
        count.saturating_mul(fragment_bytes).min(self.length)
    }
}
