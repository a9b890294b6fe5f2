//! How requests are laid into registered memory: one ring of slots, the same at both ends.

/// Slots share no cache line, nor a pair of those that processors fetch together.
const SLOT_ALIGN: usize = 128;

/// A ring of slots. Requests take them in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    slots: usize,
    /// Distance between slots, in bytes.
    stride: usize,
}

impl Ring {
    /// A ring of slots that hold `longest` bytes each: as many as `slots`, or as fit into `max_bytes`, but
    /// at least one.
    pub(super) const fn new(longest: usize, slots: usize, max_bytes: usize) -> Self {
        let stride = longest.next_multiple_of(SLOT_ALIGN);
        let room = max_bytes / stride;
        let slots = if slots < room { slots } else { room };
        Self { slots: if slots == 0 { 1 } else { slots }, stride }
    }

    /// How many slots there are.
    pub(super) const fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of the whole ring.
    pub(super) const fn bytes(&self) -> usize {
        self.slots * self.stride
    }

    /// Place of a request's slot, in bytes.
    pub(super) const fn slot(&self, request: u64) -> usize {
        (request % self.slots as u64) as usize * self.stride
    }
}
