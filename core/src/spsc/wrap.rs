//! Two threads while both words of a ring wrap around the end of `usize`: in the interleavings that
//! the machine happens to take, or in all of them under loom.

extern crate std;

use super::ring::STEP;
use super::{Consumer, PopError, Producer, PushError, Ring};
use crate::sync::Ordering;
use std::sync::Arc;
use std::vec::Vec;

#[cfg(polyrail_loom)]
use loom::{model as explore, thread::spawn};
#[cfg(not(polyrail_loom))]
use std::thread::spawn;

#[cfg(not(polyrail_loom))]
fn explore(scenario: impl Fn()) {
    (0..500).for_each(|_| scenario());
}

/// The last position before they wrap around.
const LAST: usize = 0_usize.wrapping_sub(STEP);

/// Creates a ring whose words are about to wrap around.
pub(super) fn about_to_wrap<T, const N: usize>() -> Ring<T, N> {
    let ring = Ring::new();
    for word in [&ring.tail, &ring.head] {
        word.store(LAST, Ordering::Relaxed);
    }
    ring
}

type Shared = Arc<Ring<usize, 2>>;

/// Returns the ends of such a ring. (`split_shared` would assume that the ring begins at 0.)
fn ends() -> (Producer<usize, 2, Shared>, Consumer<usize, 2, Shared>) {
    let ring = Arc::new(about_to_wrap());
    (Producer::new(Arc::clone(&ring), LAST, LAST), Consumer::new(ring, LAST, LAST))
}

#[test]
fn what_was_taken_comes_out_in_order_and_a_full_ring_refuses() {
    explore(|| {
        let (mut producer, mut consumer) = ends();
        let pushing = spawn(move || {
            let mut next = 0;
            for _ in 0..3 {
                match producer.push(next) {
                    Ok(()) => next += 1,
                    Err(refused) => assert_eq!(refused, PushError::Full(next)),
                }
            }
            next
        });
        let mut popped = Vec::new();
        for _ in 0..3 {
            match consumer.pop() {
                Ok(value) => popped.push(value),
                Err(PopError::Empty) => {}
                Err(PopError::Closed) => assert!(popped.len() >= 2, "all was taken out"),
            }
        }
        let pushed = pushing.join().unwrap();
        assert!((2..=3).contains(&pushed), "there was room for two");
        while let Ok(value) = consumer.pop() {
            popped.push(value);
        }
        assert!(popped.into_iter().eq(0..pushed));
        assert_eq!(consumer.pop(), Err(PopError::Closed));
    });
}

#[test]
fn a_batch_goes_over_the_end_at_once() {
    explore(|| {
        let (mut producer, mut consumer) = ends();
        let pushing = spawn(move || producer.push_batch(&mut (0..3)));
        let mut popped = Vec::new();
        let taken = consumer.pop_batch(3, |value| popped.push(value));
        assert_eq!(taken, popped.len());
        let pushed = pushing.join().unwrap();
        consumer.pop_batch(3, |value| popped.push(value));
        assert!(popped.into_iter().eq(0..pushed));
        assert_eq!(consumer.pop(), Err(PopError::Closed));
    });
}
