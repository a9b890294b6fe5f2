//! The slots of requests in registered memory: a ring, the same on both sides.

/// Alignment of slots in bytes, so that they share neither a cache line nor a pair of adjacent
/// lines that processors fetch together.
const SLOT_ALIGN: usize = 128;

/// A ring of slots, which requests use in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    slots: usize,
    /// Distance between slots, in bytes.
    stride: usize,
}

impl Ring {
    /// Makes a ring of `slots` slots of `longest` bytes each, or of as many as fit into
    /// `max_bytes`, but at least one.
    pub(super) const fn new(longest: usize, slots: usize, max_bytes: usize) -> Self {
        let stride = longest.next_multiple_of(SLOT_ALIGN);
        let room = max_bytes / stride;
        let slots = if slots < room { slots } else { room };
        Self { slots: if slots == 0 { 1 } else { slots }, stride }
    }

    /// Returns the number of slots.
    pub(super) const fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the size of the whole ring in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.slots * self.stride
    }

    /// Returns the offset of a request's slot, in bytes.
    pub(super) const fn slot(&self, request: u64) -> usize {
        (request % self.slots as u64) as usize * self.stride
    }
}
