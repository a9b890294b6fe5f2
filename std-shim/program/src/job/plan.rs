//! How a file is split into chunks, and where chunks are in the ring.

use super::ring::Ring;
use serde::Serialize;

/// Largest window of a copy: a queue pair holds 128 requests. Each chunk also needs a receive, of
/// which the engine tracks 256.
pub const MAX_WINDOW: u32 = 128;

/// Size of the longest chunk in bytes, well below the longest message of a device, 2^31 bytes.
pub const MAX_CHUNK: u32 = 1 << 30;

/// Size of the shortest chunk for directories, in bytes: the longest path has to fit.
pub const MIN_TREE_CHUNK: u32 = 16 << 10;

/// What to copy, and in which chunks. Both sides compute offsets and lengths from these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CopyPlan {
    /// Size of the file in bytes.
    pub total: u64,
    /// Size of a chunk in bytes; the last one may be shorter.
    pub chunk: u32,
    /// Chunks in flight at a time: slots of the ring of each side.
    pub window: u32,
}

/// A number that is out of range for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyPlanError {
    /// A chunk size out of range.
    #[error("the message size is {0} bytes, but must be from 1 to {MAX_CHUNK}")]
    Chunk(u64),
    /// A chunk too short for directories.
    #[error(
        "the message size is {0} bytes, but must be from {MIN_TREE_CHUNK} to {MAX_CHUNK} for directories and \
         several sources"
    )]
    TreeChunk(u64),
    /// A window out of range.
    #[error("the window is {0} requests, but must be from 1 to {MAX_WINDOW}")]
    Window(u64),
}

impl CopyPlan {
    /// Makes a plan, if the numbers are valid.
    ///
    /// # Errors
    ///
    /// A chunk or window is 0 or too large.
    pub fn new(total: u64, chunk: u64, window: u64) -> Result<Self, CopyPlanError> {
        let valid = |number: u64, max: u32| number >= 1 && number <= max.into();
        if !valid(chunk, MAX_CHUNK) {
            return Err(CopyPlanError::Chunk(chunk));
        }
        if !valid(window, MAX_WINDOW) {
            return Err(CopyPlanError::Window(window));
        }
        Ok(Self { total, chunk: chunk as u32, window: window as u32 })
    }

    /// Returns the number of chunks.
    pub const fn chunks(&self) -> u64 {
        self.total.div_ceil(self.chunk as u64)
    }

    /// Returns the offset of a chunk in the file, in bytes.
    pub const fn position(&self, chunk: u64) -> u64 {
        chunk * self.chunk as u64
    }

    /// Returns the length of a chunk in bytes.
    pub fn length(&self, chunk: u64) -> u32 {
        let rest = self.total - self.position(chunk);
        rest.min(self.chunk.into()) as u32
    }

    /// Returns the ring of each side. It is no larger than the file: a file shorter than a chunk
    /// has one slot of its length.
    const fn ring(&self) -> Ring {
        let longest = if self.total < self.chunk as u64 { self.total } else { self.chunk as u64 };
        let slots =
            if self.chunks() < self.window as u64 { self.chunks() } else { self.window as u64 };
        Ring::new(if longest == 0 { 1 } else { longest as usize }, slots as usize, usize::MAX)
    }

    /// Returns the offset of a chunk in the ring, in bytes.
    pub const fn slot(&self, chunk: u64) -> usize {
        self.ring().slot(chunk)
    }

    /// Returns the size of the ring in bytes.
    pub const fn ring_bytes(&self) -> usize {
        self.ring().bytes()
    }
}

/// The chunks in which directories and several files are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TreePlan {
    /// Size of the longest chunk in bytes.
    pub chunk: u32,
    /// Chunks in flight at a time: slots of the ring of each side.
    pub window: u32,
}

impl TreePlan {
    /// Makes a plan, if the numbers are valid.
    ///
    /// # Errors
    ///
    /// A chunk or window is too small or too large.
    pub fn new(chunk: u64, window: u64) -> Result<Self, CopyPlanError> {
        if chunk < MIN_TREE_CHUNK.into() || chunk > MAX_CHUNK.into() {
            return Err(CopyPlanError::TreeChunk(chunk));
        }
        let CopyPlan { chunk, window, .. } = CopyPlan::new(0, chunk, window)?;
        Ok(Self { chunk, window })
    }

    /// Returns the ring of each side.
    const fn ring(&self) -> Ring {
        Ring::new(self.chunk as usize, self.window as usize, usize::MAX)
    }

    /// Returns the offset of a chunk in the ring, in bytes.
    pub const fn slot(&self, chunk: u64) -> usize {
        self.ring().slot(chunk)
    }

    /// Returns the size of the ring in bytes.
    pub const fn ring_bytes(&self) -> usize {
        self.ring().bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::{Gen, QuickCheck};

    #[test]
    fn chunks_cover_the_file_without_gap_or_overlap() {
        fn covered(total: u32, chunk: u16, window: u8) -> bool {
            let Ok(plan) = CopyPlan::new(total.into(), chunk.into(), window.into()) else {
                return chunk == 0 || window == 0 || u32::from(window) > MAX_WINDOW;
            };
            let last = plan.chunks().saturating_sub(1);
            let whole = (0..last.min(100)).all(|i| plan.length(i) == u32::from(chunk));
            let end =
                if total == 0 { 0 } else { plan.position(last) + u64::from(plan.length(last)) };
            whole && end == u64::from(total)
        }
        QuickCheck::new()
            .rng(Gen::from_size_and_seed(100, 1))
            .quickcheck(covered as fn(u32, u16, u8) -> bool);
    }

    #[test]
    fn slots_lie_within_the_ring_and_repeat_after_a_window() {
        let plan = CopyPlan::new(1000, 100, 3).unwrap();
        let slots: Vec<usize> = (0..plan.chunks()).map(|chunk| plan.slot(chunk)).collect();
        assert_eq!(slots[..4], [0, 128, 256, 0]);
        assert!(slots.iter().all(|slot| slot + 100 <= plan.ring_bytes()));
        assert_eq!(CopyPlan::new(150, 100, 64).unwrap().ring_bytes(), 256);
        assert_eq!(CopyPlan::new(0, 1000, 64).unwrap().ring_bytes(), 128);
        assert_eq!(CopyPlan::new(6 << 20, 1 << 30, 8).unwrap().ring_bytes(), 6 << 20);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert_eq!(CopyPlan::new(1, 0, 1), Err(CopyPlanError::Chunk(0)));
        assert_eq!(CopyPlan::new(1, 1 << 31, 1), Err(CopyPlanError::Chunk(1 << 31)));
        assert_eq!(CopyPlan::new(1, 1, 0), Err(CopyPlanError::Window(0)));
        assert_eq!(CopyPlan::new(1, 1, 129), Err(CopyPlanError::Window(129)));
    }
}
