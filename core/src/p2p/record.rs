//! Completion records: the exact sizes of a message, where the immediate has no room for them.
//!
//! A record is 64 bytes for each slot, in the receiver's memory: word i is the size of buffer i in
//! bytes, little endian. The sender writes as many words as there are buffers, with the signal of
//! the leader rail and with every moved share. In the record of a message that was taken back, the
//! words have a value that is no size. The receiver poisons the words before the sender may
//! write them, so that a record that was not written is detected.
//!
//! The record is read after the completion of the immediate that carried it, and no correct peer
//! writes it after that. Relaxed loads behind an Acquire fence therefore see it. Incorrect peers
//! may write at any time, so the words are atomics, each is loaded once, and the copy is checked.

use super::entry::MAX_BUFFERS;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of the record of one slot.
pub const RECORD_BYTES: usize = MAX_BUFFERS * size_of::<u64>();

/// Words of the record of one slot.
pub(crate) const RECORD_WORDS: usize = MAX_BUFFERS;

/// A value that is not a size, since lengths have 32 bits.
const POISON: u64 = u64::MAX;

/// The first word of the record of a message that was taken back. It is not a size either.
const VOID: u64 = u64::MAX - 1;

/// A record that no correct sender writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record was not written.
    #[error("the record has no size for buffer {buffer}: it was not written")]
    NotWritten {
        /// The first buffer without a size.
        buffer: u8,
    },
    /// A size exceeds the buffer.
    #[error("the record has {size} bytes for buffer {buffer}, which holds {capacity}")]
    TooLong {
        /// The buffer.
        buffer: u8,
        /// Size in the record, in bytes.
        size: u64,
        /// Capacity of the buffer, in bytes.
        capacity: u32,
    },
}

/// Poisons the record of a slot before it is offered.
pub(crate) fn poison(words: &[AtomicU64]) {
    for word in words {
        // Relaxed: the entries that let the sender write here are posted later, and posting orders
        // memory.
        word.store(POISON, Ordering::Relaxed);
    }
}

/// Writes sizes to memory that a NIC reads.
pub(crate) fn store(words: &[AtomicU64], sizes: impl Iterator<Item = u32>) {
    for (word, size) in words.iter().zip(sizes) {
        word.store(u64::from(size).to_le(), Ordering::Relaxed);
    }
}

/// Writes to memory that a NIC reads that the message was taken back.
pub(crate) fn store_void(words: &[AtomicU64]) {
    for word in words {
        word.store(VOID.to_le(), Ordering::Relaxed);
    }
}

/// Whether a NIC wrote that the message was taken back.
pub(crate) fn is_void(words: &[AtomicU64]) -> bool {
    // As in `load`.
    fence(Ordering::Acquire);
    words.first().is_some_and(|word| u64::from_le(word.load(Ordering::Relaxed)) == VOID)
}

/// Copies the sizes of a message out of memory that a NIC wrote, and checks them against the
/// `capacities` of its buffers.
pub(crate) fn load(
    words: &[AtomicU64],
    capacities: &[u32],
) -> Result<[u32; MAX_BUFFERS], RecordError> {
    let mut sizes = [0; MAX_BUFFERS];
    // The completion of the last immediate was polled before; the fence keeps these loads behind
    // it.
    fence(Ordering::Acquire);
    for (buffer, (word, capacity)) in (0..).zip(words.iter().zip(capacities)) {
        // Loaded once: a peer that writes again cannot change a size that was checked.
        let size = u64::from_le(word.load(Ordering::Relaxed));
        if size == POISON {
            return Err(RecordError::NotWritten { buffer });
        }
        // The caller would read beyond its buffer.
        if size > u64::from(*capacity) {
            return Err(RecordError::TooLong { buffer, size, capacity: *capacity });
        }
        sizes[usize::from(buffer)] = size as u32;
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> [AtomicU64; RECORD_WORDS] {
        let words = [const { AtomicU64::new(7) }; RECORD_WORDS];
        poison(&words);
        words
    }

    #[test]
    fn sizes_that_were_stored_are_loaded() {
        let words = memory();
        store(&words, [0, 100, u32::MAX].into_iter());
        let sizes = load(&words, &[0, 128, u32::MAX]);
        assert_eq!(sizes, Ok([0, 100, u32::MAX, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn a_record_that_was_not_written_is_recognised() {
        let words = memory();
        assert_eq!(load(&words, &[8]), Err(RecordError::NotWritten { buffer: 0 }));
        store(&words, [1, 2].into_iter());
        assert_eq!(load(&words, &[8; 3]), Err(RecordError::NotWritten { buffer: 2 }));
        assert!(load(&words, &[8; 2]).is_ok());
    }

    #[test]
    fn a_message_that_was_taken_back_is_recognised() {
        let words = memory();
        assert!(!is_void(&words), "nothing was written");
        store(&words, [u32::MAX].into_iter());
        assert!(!is_void(&words), "no size is taken for it");
        store_void(&words);
        assert!(is_void(&words));
        assert!(load(&words, &[u32::MAX]).is_err(), "nor is it taken for a size");
    }

    #[test]
    fn more_than_a_buffer_holds_is_a_lie() {
        let words = memory();
        store(&words, [9, 9].into_iter());
        let lie = RecordError::TooLong { buffer: 1, size: 9, capacity: 8 };
        assert_eq!(load(&words, &[9, 8]), Err(lie));
        words[0].store((1u64 << 32).to_le(), Ordering::Relaxed);
        let lie = RecordError::TooLong { buffer: 0, size: 1 << 32, capacity: u32::MAX };
        assert_eq!(load(&words, &[u32::MAX]), Err(lie));
    }
}
