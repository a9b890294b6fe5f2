//! The encoding of a handle.

/// Bits of a slot's number.
pub(super) const INDEX_BITS: u32 = 20;

/// Bits of a generation. A slot that is reused every microsecond repeats its generations after
/// twelve days. Only then can a handle that was kept all that time be mistaken for another one.
pub(super) const GENERATION_BITS: u32 = 40;

const MARK_BITS: u32 = 1;

/// Set, so that no handle is NULL, nor a pointer to anything that is aligned.
const MARK: usize = 1;

// Handles travel as pointers.
const _: () = assert!(usize::BITS >= MARK_BITS + INDEX_BITS + GENERATION_BITS);

/// A slot, and which object in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) index: u32,
    pub(super) generation: u64,
}

impl Handle {
    #[inline]
    pub(super) const fn encode(self) -> usize {
        let Self { index, generation } = self;
        (generation as usize) << (MARK_BITS + INDEX_BITS) | (index as usize) << MARK_BITS | MARK
    }

    /// Decodes an address, if it can be a handle.
    #[inline]
    pub(super) const fn of(address: usize) -> Option<Self> {
        let index = (address >> MARK_BITS) as u32 & ((1 << INDEX_BITS) - 1);
        let generation = (address >> (MARK_BITS + INDEX_BITS)) as u64;
        if address & MARK == 0 || generation >= 1 << GENERATION_BITS {
            return None;
        }
        Some(Self { index, generation })
    }
}
