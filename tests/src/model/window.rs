//! The receive window beside the reference implementation's sequence tracker, which keeps early
//! numbers in a map.

use crate::choices::{Bytes, Choices};
use polyrail_core::internals::{Arrival, SequenceWindow};
use polyrail_core::internals::{MODULUS, SequenceImm, SequenceNumber};
use std::collections::{BTreeMap, VecDeque};

type Window = SequenceWindow<3, 8>;

/// The reference's tracker, on numbers that do not wrap.
#[derive(Debug)]
struct ReferenceWindow {
    /// The first number. Not near 0, so that there are numbers before it.
    first: u64,
    next: u64,
    /// Early numbers, and whether each ends a request.
    pending: BTreeMap<u64, bool>,
}

impl ReferenceWindow {
    fn starting_at(first: u64) -> Self {
        Self { first, next: first, pending: BTreeMap::new() }
    }

    fn insert(&mut self, number: u64, last: bool) -> bool {
        number >= self.next && self.pending.insert(number, last).is_none()
    }

    fn advance(&mut self) -> u32 {
        let mut ended = 0;
        while let Some(last) = self.pending.remove(&self.next) {
            ended += u32::from(last);
            self.next += 1;
        }
        ended
    }
}

/// Lets the numbers that `bytes` choose, in turn, early, late, twice or from before the beginning,
/// arrive at both windows.
///
/// # Panics
///
/// If they disagree.
pub fn window(bytes: &[u8]) {
    let mut bytes = Bytes::new(bytes);
    // Start around the end of the cycle, so that numbers wrap, even those before the first one.
    let start = (MODULUS - 400 + bytes.below(600)) % MODULUS;
    let mut window = Window::starting_at(SequenceNumber::new(start).expect("below the modulus"));
    let mut seed = ReferenceWindow::starting_at(u64::from(MODULUS) + u64::from(start));
    let mut sent = VecDeque::new();
    while !bytes.is_empty() {
        let capacity = u64::from(Window::CAPACITY);
        let number = match bytes.below(4) {
            0 => seed.next,
            1 => seed.next + u64::from(bytes.below(Window::CAPACITY + 40)),
            2 => seed.next - u64::from(bytes.below(Window::CAPACITY + 40)),
            _ => sent.pop_front().unwrap_or(seed.next),
        };
        // Whether a number ends its request is the number's own property.
        let last = number.is_multiple_of(3);
        arrive(&mut window, &mut seed, number, last);
        if number < seed.next + capacity {
            sent.push_back(number);
        }
        if bytes.one_in(3) {
            assert_eq!(window.advance(), seed.advance());
            window.invariants();
            assert_eq!(u64::from(window.next().get()), seed.next % u64::from(MODULUS));
        }
    }
}

fn arrive(window: &mut Window, seed: &mut ReferenceWindow, number: u64, last: bool) {
    let wire = (number % u64::from(MODULUS)) as u32;
    let fragment = SequenceImm { number: SequenceNumber::new(wire).expect("reduced"), last };
    let capacity = u64::from(Window::CAPACITY);
    let behind = seed.next.saturating_sub(number);
    if number >= seed.next + capacity || behind > capacity || number < seed.first {
        let error = window.insert(fragment).expect_err("outside the window");
        assert_eq!(error.number, wire);
        assert_eq!(u64::from(error.next), seed.next % u64::from(MODULUS));
        return;
    }
    let expected = if seed.insert(number, last) { Arrival::New } else { Arrival::Duplicate };
    assert_eq!(window.insert(fragment), Ok(expected), "number {number}, next {}", seed.next);
}
