//! The receive window beside the seeds' sequence tracker, which keeps early numbers in a map.

use crate::choices::{Bytes, Choices};
use polyrail_core::sequence::{MODULUS, SequenceImm, SequenceNumber};
use polyrail_core::window::{Arrival, SequenceWindow};
use std::collections::{BTreeMap, VecDeque};

type Window = SequenceWindow<3, 8>;

/// The seeds' tracker, on numbers that do not wrap.
#[derive(Debug, Default)]
struct SeedWindow {
    next: u64,
    /// Early numbers, and whether each ends a request.
    pending: BTreeMap<u64, bool>,
}

impl SeedWindow {
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

/// Lets the numbers that `bytes` choose, in turn, early, late or twice, arrive at both windows.
///
/// # Panics
///
/// If they disagree.
pub fn window(bytes: &[u8]) {
    let mut bytes = Bytes::new(bytes);
    // Start just before the end of the cycle, so that numbers wrap.
    let start = MODULUS - 1 - bytes.below(400);
    let mut window = Window::starting_at(SequenceNumber::new(start).expect("below the modulus"));
    let mut seed = SeedWindow { next: u64::from(start), ..SeedWindow::default() };
    let mut sent = VecDeque::new();
    while !bytes.is_empty() {
        let capacity = u64::from(Window::CAPACITY);
        let number = match bytes.below(4) {
            0 => seed.next,
            1 => seed.next + u64::from(bytes.below(Window::CAPACITY + 40)),
            2 => seed.next.saturating_sub(u64::from(bytes.below(Window::CAPACITY + 40))),
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

fn arrive(window: &mut Window, seed: &mut SeedWindow, number: u64, last: bool) {
    let wire = (number % u64::from(MODULUS)) as u32;
    let fragment = SequenceImm { number: SequenceNumber::new(wire).expect("reduced"), last };
    let capacity = u64::from(Window::CAPACITY);
    let behind = seed.next.saturating_sub(number);
    if number >= seed.next + capacity || behind > capacity {
        let error = window.insert(fragment).expect_err("outside the window");
        assert_eq!(error.number, wire);
        assert_eq!(u64::from(error.next), seed.next % u64::from(MODULUS));
        return;
    }
    let expected = if seed.insert(number, last) { Arrival::New } else { Arrival::Duplicate };
    assert_eq!(window.insert(fragment), Ok(expected), "number {number}, next {}", seed.next);
}
