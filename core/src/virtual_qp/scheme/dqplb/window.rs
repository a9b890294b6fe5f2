//! DQPLB's receive window: which sequence numbers have arrived ahead of their turn.
//!
//! Two bits for each of `8 * RAILS * DEPTH` numbers, "has arrived" and "is the last fragment of its
//! request", as a ring whose first place stands for the next number in turn. The window has
//! to hold what the sender may have in flight plus what the receiver's NIC has taken and its
//! software has not seen; both are at most `RAILS * DEPTH`, which leaves the sender six times that
//! to run ahead of a stalled rail.

use super::sequence::{MODULUS, SequenceImm, SequenceNumber};
use crate::verbs::Imm;

/// What became of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// New; noted.
    New,
    /// Arrived before; dropped.
    Duplicate,
}

/// A number that no well-behaved sender can have sent; the window did not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "sequence number {number} is outside the receive window of {window} numbers from {next} on"
)]
pub struct OutsideWindow {
    /// The number that arrived.
    pub number: u32,
    /// The number whose turn it is.
    pub next: u32,
    /// Numbers that the window holds.
    pub window: u32,
}

/// The numbers that have arrived out of turn, as fixed bitmaps.
#[derive(Clone, Debug)]
pub struct SequenceWindow<const RAILS: usize, const DEPTH: usize> {
    // Both bits of 64 numbers are side by side, so an arrival touches one cache line.
    words: Words<RAILS, DEPTH>,
    next: SequenceNumber,
    /// The bit that stands for `next`.
    base: u32,
    /// Numbers that were in turn so far.
    passed: u64,
}

impl<const RAILS: usize, const DEPTH: usize> Default for SequenceWindow<RAILS, DEPTH> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const RAILS: usize, const DEPTH: usize> SequenceWindow<RAILS, DEPTH> {
    /// Numbers that the window holds.
    pub const CAPACITY: u32 = {
        let bits = 8 * RAILS * DEPTH;
        assert!(DEPTH.is_multiple_of(8), "the bitmap is read in words of 64 bits");
        // Numbers behind the window must differ from numbers in it and from numbers beyond it.
        assert!(bits < MODULUS as usize / 4, "the window must be small beside the numbers' cycle");
        bits as u32
    };

    /// An empty window; number 0 is next.
    pub const fn new() -> Self {
        Self::starting_at(SequenceNumber::ZERO)
    }

    /// An empty window whose first number is `next`: none was in turn before it.
    pub const fn starting_at(next: SequenceNumber) -> Self {
        Self { words: Words::new(), next, base: 0, passed: 0 }
    }

    /// The number whose turn it is.
    #[cfg(any(test, feature = "internals"))]
    pub const fn next(&self) -> SequenceNumber {
        self.next
    }

    /// Notes that a fragment arrived. Counts nothing yet: see [`advance`](Self::advance).
    ///
    /// A duplicate is a number that has arrived and is in the window, or that was in turn and is at
    /// most one window's length behind.
    ///
    /// # Errors
    ///
    /// [`OutsideWindow`] if the number is neither in the window nor such a duplicate. So is what
    /// lies before the first number ever, even by a single step.
    #[inline]
    pub fn insert(&mut self, fragment: SequenceImm) -> Result<Arrival, OutsideWindow> {
        let ahead = fragment.number.distance_from(self.next);
        let new = self.insert_ahead(ahead, fragment.last);
        if new { Ok(Arrival::New) } else { self.why_not_new(ahead, fragment.number) }
    }

    /// [`insert`](Self::insert) if that is simple: returns whether the immediate is a number, new,
    /// and none of those that started from 0 again since the next in turn. Otherwise nothing has
    /// changed.
    #[inline]
    pub(crate) fn note_new(&mut self, imm: Imm) -> bool {
        let Some(fragment) = SequenceImm::decode(imm) else { return false };
        // Not modulo MODULUS: after the numbers started again this is too large, and `insert`
        // decides.
        let ahead = fragment.number.get().wrapping_sub(self.next.get());
        self.insert_ahead(ahead, fragment.last)
    }

    #[inline]
    fn insert_ahead(&mut self, ahead: u32, is_last: bool) -> bool {
        // Before any bit is touched: the peer chose the number.
        if ahead >= Self::CAPACITY {
            return false;
        }
        let bit = Self::wrap(self.base + ahead);
        let at = bit / 64;
        let shift = bit % 64;
        let Word { arrived, last } = self.words.get(at);
        if arrived & 1 << shift != 0 {
            return false;
        }
        // No branch: the processor cannot predict which fragment is the last one of its request.
        let last = last | u64::from(is_last) << shift;
        self.words.set(at, Word { arrived: arrived | 1 << shift, last });
        true
    }

    #[cold]
    fn why_not_new(&self, ahead: u32, number: SequenceNumber) -> Result<Arrival, OutsideWindow> {
        // What was never in turn, as before the first number ever, cannot have arrived before.
        let behind = MODULUS - ahead;
        let seen = self.passed.min(Self::CAPACITY.into());
        if ahead < Self::CAPACITY || u64::from(behind) <= seen {
            return Ok(Arrival::Duplicate);
        }
        let number = number.get();
        let next = self.next.get();
        Err(OutsideWindow { number, next, window: Self::CAPACITY })
    }

    /// Moves past every number that has arrived in turn, and returns how many requests that ends.
    #[inline]
    pub fn advance(&mut self) -> u32 {
        let mut ended = 0;
        loop {
            let at = self.base / 64;
            let shift = self.base % 64;
            let Word { arrived, last } = self.words.get(at);
            let run = (arrived >> shift).trailing_ones();
            if run == 0 {
                return ended;
            }
            // A run is at least 1 here, so the shift is at most 63.
            let mask = (u64::MAX >> (64 - run)) << shift;
            ended += (last & mask).count_ones();
            // Cleared, because the same bits stand for later numbers from now on.
            self.words.set(at, Word { arrived: arrived & !mask, last: last & !mask });
            self.base = Self::wrap(self.base + run);
            self.next = self.next.advance(run);
            // In 64 bits, because it decides which old numbers are duplicates for the whole life of
            // the connection.
            self.passed += u64::from(run);
        }
    }

    #[inline]
    const fn wrap(bit: u32) -> u32 {
        // A constant condition. Otherwise `bit` is below twice the capacity, so a subtraction is
        // enough.
        if Self::CAPACITY.is_power_of_two() {
            bit % Self::CAPACITY
        } else if bit >= Self::CAPACITY {
            bit - Self::CAPACITY
        } else {
            bit
        }
    }

    /// Checks what must hold between any two calls.
    ///
    /// # Panics
    ///
    /// If it does not: a bug of this crate.
    pub fn invariants(&self) {
        assert!(self.base < Self::CAPACITY);
        for at in 0..Self::CAPACITY / 64 {
            let Word { arrived, last } = self.words.get(at);
            assert!(last & !arrived == 0, "a number that ends a request has arrived");
        }
    }
}

/// What is known of 64 numbers in a row, one bit each.
#[derive(Clone, Copy)]
struct Word {
    arrived: u64,
    /// Those that end a request; all of them have arrived.
    last: u64,
}

/// `8 * RAILS * DEPTH` numbers. Stable Rust cannot write an array of that many [`Word`]s, so the
/// bytes are an array of arrays, read sixteen at a time.
#[derive(Clone, Debug)]
#[repr(align(16))]
struct Words<const RAILS: usize, const DEPTH: usize>([[[u8; 2]; DEPTH]; RAILS]);

impl<const RAILS: usize, const DEPTH: usize> Words<RAILS, DEPTH> {
    const fn new() -> Self {
        Self([[[0; 2]; DEPTH]; RAILS])
    }

    #[inline]
    fn get(&self, at: u32) -> Word {
        let bytes = &self.0.as_flattened().as_flattened().as_chunks::<16>().0[at as usize];
        let word = u128::from_le_bytes(*bytes);
        Word { arrived: word as u64, last: (word >> 64) as u64 }
    }

    #[inline]
    fn set(&mut self, at: u32, word: Word) {
        let bytes = self.0.as_flattened_mut().as_flattened_mut();
        let both = u128::from(word.arrived) | u128::from(word.last) << 64;
        bytes.as_chunks_mut::<16>().0[at as usize] = both.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(number: u32, last: bool) -> SequenceImm {
        SequenceImm { number: SequenceNumber::new(number).unwrap(), last }
    }

    type Window = SequenceWindow<2, 8>;

    #[test]
    fn in_turn_ends_requests_one_by_one() {
        let mut window = Window::new();
        for number in 0..1000 {
            assert_eq!(window.insert(fragment(number, number % 4 == 3)), Ok(Arrival::New));
            assert_eq!(window.advance(), u32::from(number % 4 == 3));
            window.invariants();
        }
    }

    #[test]
    fn a_gap_holds_back_what_came_after_it() {
        let mut window = Window::new();
        window.insert(fragment(0, true)).unwrap();
        assert_eq!(window.advance(), 1);
        window.insert(fragment(2, true)).unwrap();
        assert_eq!(window.advance(), 0);
        window.insert(fragment(1, true)).unwrap();
        assert_eq!(window.advance(), 2);
    }

    #[test]
    fn duplicates_are_told_from_strangers() {
        let mut window = Window::new();
        assert_eq!(Window::CAPACITY, 128);
        window.insert(fragment(5, false)).unwrap();
        assert_eq!(window.insert(fragment(5, false)), Ok(Arrival::Duplicate));
        window.insert(fragment(0, true)).unwrap();
        assert_eq!(window.advance(), 1);
        assert_eq!(window.insert(fragment(0, true)), Ok(Arrival::Duplicate));
        assert_eq!(window.insert(fragment(128, true)), Ok(Arrival::New));
        let stranger = OutsideWindow { number: 129, next: 1, window: 128 };
        assert_eq!(window.insert(fragment(129, true)), Err(stranger));
    }

    #[test]
    fn what_was_before_the_first_number_is_no_duplicate() {
        let stranger = |number, next| Err(OutsideWindow { number, next, window: 128 });
        let mut window = Window::new();
        assert_eq!(window.insert(fragment(MODULUS - 1, true)), stranger(MODULUS - 1, 0));
        assert_eq!(window.insert(fragment(MODULUS - 128, true)), stranger(MODULUS - 128, 0));
        window.insert(fragment(0, true)).unwrap();
        assert_eq!(window.advance(), 1);
        assert_eq!(window.insert(fragment(0, true)), Ok(Arrival::Duplicate));
        assert_eq!(window.insert(fragment(MODULUS - 1, true)), stranger(MODULUS - 1, 1));
        let mut window = Window::starting_at(SequenceNumber::new(1000).unwrap());
        assert_eq!(window.insert(fragment(999, true)), stranger(999, 1000));
    }

    /// The first number comes again after a whole cycle: by then what is behind it was in turn.
    #[test]
    fn the_numbers_in_turn_are_counted_for_ever() {
        let mut window = Window { passed: u32::MAX.into(), ..Window::new() };
        for number in 0..200 {
            window.insert(fragment(number, true)).unwrap();
            assert_eq!(window.advance(), 1);
        }
        assert_eq!(window.insert(fragment(72, true)), Ok(Arrival::Duplicate));
        let stranger = OutsideWindow { number: 71, next: 200, window: 128 };
        assert_eq!(window.insert(fragment(71, true)), Err(stranger));
    }

    #[test]
    fn numbers_wrap_at_the_modulus() {
        let mut window = Window::starting_at(SequenceNumber::new(MODULUS - 2).unwrap());
        for number in [0, MODULUS - 1, 1] {
            window.insert(fragment(number, true)).unwrap();
            assert_eq!(window.advance(), 0);
        }
        window.insert(fragment(MODULUS - 2, true)).unwrap();
        assert_eq!(window.advance(), 4);
        assert_eq!(window.next(), SequenceNumber::new(2).unwrap());
    }
}
