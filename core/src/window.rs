//! DQPLB's receive window: which sequence numbers have arrived ahead of their turn.
//!
//! Two bitmaps of `8 * RAILS * DEPTH` bits, one for "has arrived" and one for "is the last fragment
//! of its request", as a ring whose first bit stands for the next number in turn. The window has
//! to hold what the sender may have in flight plus what the receiver's NIC has taken and its
//! software has not seen; both are at most `RAILS * DEPTH`, which leaves the sender six times that
//! to run ahead of a stalled rail.

use crate::sequence::{MODULUS, SequenceImm, SequenceNumber};

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
#[error("sequence number {number} lies outside the window of {window} from {next} on")]
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
    arrived: Bits<RAILS, DEPTH>,
    last: Bits<RAILS, DEPTH>,
    next: SequenceNumber,
    /// The bit that stands for `next`.
    base: u32,
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
        // Numbers behind the window must be told from numbers in it and numbers beyond it.
        assert!(bits < MODULUS as usize / 4, "the window must be small beside the numbers' cycle");
        bits as u32
    };

    /// An empty window; number 0 is next.
    pub const fn new() -> Self {
        Self::starting_at(SequenceNumber::ZERO)
    }

    /// An empty window in the middle of a stream: `next` is next.
    pub const fn starting_at(next: SequenceNumber) -> Self {
        Self { arrived: Bits::new(), last: Bits::new(), next, base: 0 }
    }

    /// The number whose turn it is.
    pub const fn next(&self) -> SequenceNumber {
        self.next
    }

    /// Notes that a fragment arrived. Counts nothing yet: see [`advance`](Self::advance).
    ///
    /// # Errors
    ///
    /// [`OutsideWindow`] if the number is neither in the window nor in one window's length behind.
    #[inline]
    pub fn insert(&mut self, fragment: SequenceImm) -> Result<Arrival, OutsideWindow> {
        if self.insert_new(fragment) { Ok(Arrival::New) } else { self.why_not_new(fragment.number) }
    }

    /// [`insert`](Self::insert) that says only whether the number is new.
    #[inline]
    pub(crate) fn insert_new(&mut self, fragment: SequenceImm) -> bool {
        let ahead = fragment.number.distance_from(self.next);
        if ahead >= Self::CAPACITY {
            return false;
        }
        let bit = Self::wrap(self.base + ahead);
        let new = !self.arrived.set(bit);
        if fragment.last && new {
            self.last.set(bit);
        }
        new
    }

    #[cold]
    fn why_not_new(&self, number: SequenceNumber) -> Result<Arrival, OutsideWindow> {
        let ahead = number.distance_from(self.next);
        if ahead < Self::CAPACITY || MODULUS - ahead <= Self::CAPACITY {
            return Ok(Arrival::Duplicate);
        }
        let (number, next) = (number.get(), self.next.get());
        Err(OutsideWindow { number, next, window: Self::CAPACITY })
    }

    /// Moves past every number that has arrived in turn, and says how many requests that ends.
    #[inline]
    pub fn advance(&mut self) -> u32 {
        let mut ended = 0;
        loop {
            let (word, shift) = (self.base / 64, self.base % 64);
            let run = (self.arrived.word(word) >> shift).trailing_ones();
            if run == 0 {
                return ended;
            }
            let mask = (u64::MAX >> (64 - run)) << shift;
            ended += (self.last.word(word) & mask).count_ones();
            self.arrived.clear(word, mask);
            self.last.clear(word, mask);
            self.base = Self::wrap(self.base + run);
            self.next = self.next.advance(run);
        }
    }

    #[inline]
    const fn wrap(bit: u32) -> u32 {
        if bit >= Self::CAPACITY { bit - Self::CAPACITY } else { bit }
    }

    /// Checks what must hold between any two calls.
    ///
    /// # Panics
    ///
    /// If it does not: a bug of this crate.
    pub fn invariants(&self) {
        assert!(self.base < Self::CAPACITY);
        for word in 0..Self::CAPACITY / 64 {
            assert!(self.last.word(word) & !self.arrived.word(word) == 0);
        }
    }
}

/// A bitmap of `8 * RAILS * DEPTH` bits. Stable Rust cannot write that product as an array length,
/// so the bytes are an array of arrays, read eight at a time.
#[derive(Clone, Debug)]
struct Bits<const RAILS: usize, const DEPTH: usize>([[u8; DEPTH]; RAILS]);

impl<const RAILS: usize, const DEPTH: usize> Bits<RAILS, DEPTH> {
    const fn new() -> Self {
        Self([[0; DEPTH]; RAILS])
    }

    #[inline]
    fn bytes(&self, word: u32) -> &[u8; 8] {
        &self.0.as_flattened().as_chunks::<8>().0[word as usize]
    }

    #[inline]
    fn bytes_mut(&mut self, word: u32) -> &mut [u8; 8] {
        &mut self.0.as_flattened_mut().as_chunks_mut::<8>().0[word as usize]
    }

    #[inline]
    fn word(&self, word: u32) -> u64 {
        u64::from_le_bytes(*self.bytes(word))
    }

    #[inline]
    fn clear(&mut self, word: u32, mask: u64) {
        let kept = self.word(word) & !mask;
        *self.bytes_mut(word) = kept.to_le_bytes();
    }

    /// Sets a bit and says whether it was set before.
    #[inline]
    fn set(&mut self, bit: u32) -> bool {
        let mask = 1 << (bit % 64);
        let old = self.word(bit / 64);
        *self.bytes_mut(bit / 64) = (old | mask).to_le_bytes();
        old & mask != 0
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
