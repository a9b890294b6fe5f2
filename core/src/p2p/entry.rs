//! Entries: the buffers that a receiver offers, in the form in which it writes them into the
//! sender's memory.
//!
//! ```text
//!  word  0 | address of the first byte
//!        1 | length in bytes (low half) | tag (high half)
//!     2..5 | keys of the buffer, for each of the receiver's devices, two in a word, the first one low
//!        6 | bits 0..=7: entries of this receive; bits 8..=15: which of them this is; else 0
//!        7 | number of the receive, from 1 on
//! ```
//!
//! 64 bytes, aligned to 64; words in little endian.
//!
//! # Reading what a NIC writes
//!
//! The sender reads entries while the receiver's NIC may be writing them. In Rust's memory model, a
//! write of a NIC is a store to shared memory from outside the process. The ring is therefore a
//! slice of [`AtomicU64`], and all accesses to it are atomic. A NIC stores each word whole: no bus
//! that RDMA runs on tears 8 aligned bytes.
//!
//! The reader loads word 7 with Acquire, then words 0 to 6, each once, into a copy. The copy is
//! valid if word 7 was the expected number. Nothing is read from the ring again for that receive,
//! so a peer that writes later cannot change what was checked.
//!
//! Acquire orders the reader. Whether the words of the *writer* become visible in order depends on
//! the NIC:
//!
//! - [`EntryForm::Plain`] is for devices that guarantee it within 128 bytes
//!   (`ibv_query_qp_data_in_order`), in memory that was registered without relaxed ordering. If
//!   word 7 has arrived, words 0 to 6 have arrived too.
//! - [`EntryForm::Hashed`] needs no order: word 7 is the number plus a hash of the seven other
//!   words. A mixture of old and new words has the expected sum in one of 2^64 cases. The reader
//!   chooses the form, since it owns the memory, and its card states the choice.

use core::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of buffers of one receive.
pub const MAX_BUFFERS: usize = 8;

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 64;

/// Words of an entry.
pub(crate) const ENTRY_WORDS: usize = ENTRY_BYTES / size_of::<u64>();

/// Words of a ring of entries for this many slots.
pub const fn ring_words(slots: usize) -> usize {
    slots * (1 + MAX_BUFFERS) * ENTRY_WORDS
}

/// Returns the place of the first entry in a ring of entries for this many `slots`, in words: of
/// the receive in `slot` with `count` buffers.
// Receives of one buffer have a part of the ring for themselves, in which neighbouring slots are
// neighbours in memory, so one WRITE can offer several of them.
#[inline]
pub const fn entry_word(slots: usize, slot: usize, count: usize) -> usize {
    let place = if count == 1 { slot } else { slots + slot * MAX_BUFFERS };
    place * ENTRY_WORDS
}

/// Keys in an entry: one for each device of the receiver.
pub(crate) const ENTRY_KEYS: usize = 8;

const NUMBER: usize = ENTRY_WORDS - 1;

/// How the last word of an entry shows that the others have arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EntryForm {
    /// The last word is the number, for devices whose writes become visible in order.
    Plain,
    /// The last word is the number plus a hash of the others, for all devices.
    #[default]
    Hashed,
}

/// One buffer of one receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Number of the receive: 1 for the first receive of a connection, then counting up.
    pub number: u64,
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Tag by which the sender finds the buffer within the receive.
    pub tag: u32,
    /// The rkeys of the buffer for the devices of the receiver, in the order of its card.
    pub rkeys: [u32; ENTRY_KEYS],
    /// Buffers of the receive, 1 to 8.
    pub count: u8,
    /// Index of this buffer in the receive, from 0.
    pub index: u8,
}

/// An entry that no correct receiver writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The number of the entry is ahead of the next receive.
    #[error("the entry is for receive {found}, but receive {expected} is next")]
    Number {
        /// Number of the next receive.
        expected: u64,
        /// Number in the entry.
        found: u64,
    },
    /// The number of buffers is not 1 to 8, or the entries of one receive have different numbers.
    #[error("entry {index} has an invalid number of buffers, {count}")]
    Count {
        /// The place of the entry.
        index: u8,
        /// The value in the entry.
        count: u8,
    },
    /// The index in the entry is not its place.
    #[error("the entry at place {index} has index {found}")]
    Index {
        /// The place of the entry.
        index: u8,
        /// The value in the entry.
        found: u8,
    },
    /// Bits that must be 0 are not.
    #[error("entry {index} has reserved bits set")]
    Reserved {
        /// The place of the entry.
        index: u8,
    },
    /// The buffer exceeds the address space.
    #[error("entry {index} offers {length} bytes at {addr:#x}, which exceed the address space")]
    Range {
        /// The place of the entry.
        index: u8,
        /// First byte.
        addr: u64,
        /// Bytes.
        length: u32,
    },
}

impl Entry {
    /// Returns the entry as words in memory order and host byte order.
    pub fn encode(&self, form: EntryForm) -> [u64; ENTRY_WORDS] {
        let mut words = [0; ENTRY_WORDS];
        words[0] = self.addr;
        words[1] = u64::from(self.length) | u64::from(self.tag) << 32;
        for (word, keys) in words[2..6].iter_mut().zip(self.rkeys.chunks_exact(2)) {
            *word = u64::from(keys[0]) | u64::from(keys[1]) << 32;
        }
        words[6] = u64::from(self.count) | u64::from(self.index) << 8;
        // A sum and not a second word: the entry stays 64 bytes, one cache line.
        words[NUMBER] = match form {
            EntryForm::Plain => self.number,
            EntryForm::Hashed => self.number.wrapping_add(hash(&words)),
        };
        words
    }

    /// Checks an entry at place `index` of a receive; `place` is the word with its count and index.
    #[inline]
    fn check(&self, index: u8, place: u64) -> Result<(), EntryError> {
        let Self { addr, length, .. } = *self;
        // With another index, or with reserved bits set, the result is not a valid count, so one
        // comparison checks three fields.
        let count = place.wrapping_sub(u64::from(index) << 8);
        let is_sound = count > u64::from(index)
            && count <= MAX_BUFFERS as u64
            // The sender adds offsets to the address without a check.
            && addr.checked_add(u64::from(length)).is_some();
        if is_sound { Ok(()) } else { Err(self.error(index, place >> 16)) }
    }

    #[cold]
    fn error(&self, index: u8, reserved: u64) -> EntryError {
        let Self { addr, length, count, .. } = *self;
        if reserved != 0 {
            EntryError::Reserved { index }
        } else if count == 0 || usize::from(count) > MAX_BUFFERS || count <= index {
            EntryError::Count { index, count }
        } else if self.index != index {
            EntryError::Index { index, found: self.index }
        } else {
            EntryError::Range { index, addr, length }
        }
    }

    /// Becomes the entry that these words are; the last word has been checked.
    #[inline]
    fn decode(&mut self, number: u64, words: &[u64; ENTRY_WORDS]) {
        self.number = number;
        self.addr = words[0];
        (self.length, self.tag) = (words[1] as u32, (words[1] >> 32) as u32);
        for (keys, word) in self.rkeys.chunks_exact_mut(2).zip(&words[2..6]) {
            (keys[0], keys[1]) = (*word as u32, (*word >> 32) as u32);
        }
        (self.count, self.index) = (words[6] as u8, (words[6] >> 8) as u8);
    }

    /// Writes the entry to memory that a NIC reads. Relaxed stores suffice, because the NIC reads
    /// it only after a request is posted, and posting orders memory.
    pub fn store(&self, form: EntryForm, words: &[AtomicU64]) {
        for (place, word) in words.iter().zip(self.encode(form)) {
            place.store(word.to_le(), Ordering::Relaxed);
        }
    }

    /// Copies entry `index` of receive number `expected` out of memory that a NIC writes. Returns
    /// `None` if the entry has not arrived completely.
    ///
    /// # Errors
    ///
    /// See [`EntryError`]: the entry has arrived, and is invalid.
    pub fn load(
        words: &[AtomicU64],
        form: EntryForm,
        expected: u64,
        index: u8,
    ) -> Option<Result<Self, EntryError>> {
        let mut entry = Self::default();
        Some(entry.read(words, form, expected, index)?.map(|()| entry))
    }

    /// The same, into this one, which is worth nothing unless that succeeds.
    #[inline]
    pub(super) fn read(
        &mut self,
        words: &[AtomicU64],
        form: EntryForm,
        expected: u64,
        index: u8,
    ) -> Option<Result<(), EntryError>> {
        let words: &[AtomicU64; ENTRY_WORDS] = words.first_chunk()?;
        // The number first: if it is there, a device that writes in order has written the other
        // words. Acquire keeps the loads below behind this one.
        let last = u64::from_le(words[NUMBER].load(Ordering::Acquire));
        let mut copy = [0; ENTRY_WORDS];
        for (copy, word) in copy.iter_mut().zip(&words[..NUMBER]) {
            // Each word once: a peer that writes again cannot change what was checked.
            *copy = u64::from_le(word.load(Ordering::Relaxed));
        }
        let number = match form {
            EntryForm::Plain => last,
            EntryForm::Hashed => last.wrapping_sub(hash(&copy)),
        };
        // Every entry of a receive carries the number, because entries may become visible in any
        // order.
        if number != expected {
            return Self::not_there(form, expected, number);
        }
        self.decode(expected, &copy);
        Some(self.check(index, copy[6]))
    }

    /// Handles a number other than the expected one. Without a hash, a number ahead of it is an
    /// error.
    #[cold]
    fn not_there(form: EntryForm, expected: u64, found: u64) -> Option<Result<(), EntryError>> {
        // Numbers only rise, so a smaller one is of the slot's last receive. With a hash, a mixture
        // of old and new words can give any number.
        let is_lie = form == EntryForm::Plain && found > expected;
        is_lie.then_some(Err(EntryError::Number { expected, found }))
    }
}

/// Odd constants with half of their bits set: the fractional digits of pi (Blowfish's P-array).
const SALT: [u64; ENTRY_WORDS] = [
    0x243F_6A88_85A3_08D3,
    0x1319_8A2E_0370_7345,
    0xA409_3822_299F_31D1,
    0x082E_FA98_EC4E_6C89,
    0x4528_21E6_38D0_1377,
    0xBE54_66CF_34E9_0C6D,
    0xC0AC_29B7_C97C_50DD,
    0x3F84_D5B5_B547_0917,
];

/// Hashes all words but the last: the 128-bit product of each two neighbours, folded (as in
/// wyhash). The products are independent of each other, so the processor computes them in parallel.
/// Each word has another constant, so the same words in other places give another value.
#[inline]
pub fn hash(words: &[u64; ENTRY_WORDS]) -> u64 {
    // Four independent products: a chain of multiplications would make each message wait for all.
    let fold = |at: usize, word: u64, next: u64| {
        let product = u128::from(word ^ SALT[at]) * u128::from(next ^ SALT[at + 1]);
        product as u64 ^ (product >> 64) as u64
    };
    let pairs = fold(0, words[0], words[1]) ^ fold(2, words[2], words[3]);
    pairs ^ fold(4, words[4], words[5]) ^ fold(6, words[6], 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: [EntryForm; 2] = [EntryForm::Plain, EntryForm::Hashed];

    fn entry(number: u64) -> Entry {
        Entry {
            number,
            addr: 0x7f00_1234_5678_0000 + number,
            length: 4096,
            tag: 0xdead_beef,
            rkeys: [1, 2, 3, 4, 5, 6, 7, u32::MAX],
            count: 3,
            index: 1,
        }
    }

    fn memory() -> [AtomicU64; ENTRY_WORDS] {
        [const { AtomicU64::new(0) }; ENTRY_WORDS]
    }

    #[test]
    fn an_entry_that_was_stored_is_loaded() {
        for form in FORMS {
            let words = memory();
            assert_eq!(Entry::load(&words, form, 1, 1), None, "nothing was written");
            entry(1).store(form, &words);
            assert_eq!(Entry::load(&words, form, 1, 1), Some(Ok(entry(1))));
            assert_eq!(Entry::load(&words, form, 2, 1), None, "the next one is not there");
        }
    }

    #[test]
    fn words_are_little_endian_and_the_number_is_the_highest() {
        let words = entry(9).encode(EntryForm::Plain);
        assert_eq!(words[7], 9);
        assert_eq!(words[1], 0xdead_beef_0000_1000);
        assert_eq!(words[5], 0xffff_ffff_0000_0007);
        assert_eq!(words[6], 0x0103);
    }

    /// The number is the last word to be seen; nothing is believed before.
    #[test]
    fn in_order_an_entry_is_there_with_its_number() {
        let words = memory();
        let (old, new) = (entry(1), entry(2).encode(EntryForm::Plain));
        old.store(EntryForm::Plain, &words);
        for (place, word) in words.iter().zip(new).take(NUMBER) {
            place.store(word.to_le(), Ordering::Relaxed);
            assert_eq!(Entry::load(&words, EntryForm::Plain, 2, 1), None);
        }
        words[NUMBER].store(new[NUMBER].to_le(), Ordering::Relaxed);
        assert_eq!(Entry::load(&words, EntryForm::Plain, 2, 1), Some(Ok(entry(2))));
    }

    /// A device that shows words in any order never makes the reader see a mixture.
    #[test]
    fn hashed_no_mixture_of_an_old_and_a_new_entry_is_taken_for_either() {
        let (old, new) = (entry(1).encode(EntryForm::Hashed), entry(257).encode(EntryForm::Hashed));
        for shown in 1..u8::MAX {
            let words = memory();
            for (at, place) in words.iter().enumerate() {
                let word = if shown >> at & 1 == 1 { new[at] } else { old[at] };
                place.store(word.to_le(), Ordering::Relaxed);
            }
            // Words that are equal in both are not told apart, nor need they be.
            let differing = (0..ENTRY_WORDS).filter(|at| old[*at] != new[*at]);
            let (mut all, mut none) = (true, true);
            for at in differing {
                all &= shown >> at & 1 == 1;
                none &= shown >> at & 1 == 0;
            }
            assert_eq!(Entry::load(&words, EntryForm::Hashed, 257, 1).is_some(), all, "{shown:#b}");
            assert_eq!(Entry::load(&words, EntryForm::Hashed, 1, 1).is_some(), none, "{shown:#b}");
        }
    }

    #[test]
    fn numbers_are_compared_whole() {
        for form in FORMS {
            let words = memory();
            entry(1 << 32 | 5).store(form, &words);
            assert_eq!(Entry::load(&words, form, 1 << 33 | 5, 1), None);
            assert!(Entry::load(&words, form, 1 << 32 | 5, 1).is_some());
        }
    }

    #[test]
    fn a_number_ahead_of_its_turn_is_a_lie() {
        let words = memory();
        entry(9).store(EntryForm::Plain, &words);
        let ahead = EntryError::Number { expected: 8, found: 9 };
        assert_eq!(Entry::load(&words, EntryForm::Plain, 8, 1), Some(Err(ahead)));
        assert_eq!(Entry::load(&words, EntryForm::Plain, 10, 1), None, "an old one is not");
    }

    #[test]
    fn entries_that_lie_are_refused() {
        let lies = [
            (Entry { count: 0, ..entry(1) }, EntryError::Count { index: 1, count: 0 }),
            (Entry { count: 9, ..entry(1) }, EntryError::Count { index: 1, count: 9 }),
            (Entry { count: 1, ..entry(1) }, EntryError::Count { index: 1, count: 1 }),
            (Entry { index: 2, ..entry(1) }, EntryError::Index { index: 1, found: 2 }),
            (
                Entry { addr: u64::MAX - 4095, ..entry(1) },
                EntryError::Range { index: 1, addr: u64::MAX - 4095, length: 4096 },
            ),
        ];
        for form in FORMS {
            for (lie, error) in lies {
                let words = memory();
                lie.store(form, &words);
                assert_eq!(Entry::load(&words, form, 1, 1), Some(Err(error)));
            }
        }
        let words = memory();
        entry(1).store(EntryForm::Plain, &words);
        words[6].fetch_or(1 << 16, Ordering::Relaxed);
        let reserved = Some(Err(EntryError::Reserved { index: 1 }));
        assert_eq!(Entry::load(&words, EntryForm::Plain, 1, 1), reserved);
    }

    #[test]
    fn too_few_words_are_no_entry() {
        assert_eq!(Entry::load(&memory()[1..], EntryForm::Plain, 0, 0), None);
    }
}
