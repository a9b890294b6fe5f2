//! The end that pops.
#![allow(unsafe_code, reason = "empties slots that are shared with the producer")]

use super::ring::{CLOSED, Ring, STEP};
use crate::sync::Ordering;
use core::fmt;
use core::ops::Deref;

/// Why `pop` returned no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PopError {
    /// The ring is empty now.
    #[error("the ring is empty")]
    Empty,
    /// The ring will stay empty: the producer was dropped, and all its values were popped.
    #[error("the ring is empty, and its producer was dropped")]
    Closed,
}

/// The consuming end of a [`Ring`]. The producer can detect that it was dropped; values that were
/// not popped are dropped with the ring.
pub struct Consumer<T, const N: usize, S: Deref<Target = Ring<T, N>>> {
    ring: S,
    /// The position to take next. Positions below it are published, except during a batch.
    head: usize,
    /// The last loaded position of the producer.
    tail: usize,
}

impl<T, const N: usize, S: Deref<Target = Ring<T, N>>> Consumer<T, N, S> {
    pub(super) const fn new(ring: S, head: usize, tail: usize) -> Self {
        Self { ring, head, tail }
    }

    /// Takes the oldest value. Wait-free: a fixed number of steps, whatever the producer does.
    ///
    /// ```
    /// use polyrail_core::spsc::{PopError, Ring};
    ///
    /// let mut ring = Ring::<u8, 2>::new();
    /// let (mut producer, mut consumer) = ring.split();
    /// assert_eq!(consumer.pop(), Err(PopError::Empty));
    /// producer.push(1).unwrap();
    /// drop(producer);
    /// assert_eq!(consumer.pop(), Ok(1));
    /// assert_eq!(consumer.pop(), Err(PopError::Closed));
    /// ```
    ///
    /// # Errors
    ///
    /// There is no value.
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError> {
        if self.head == self.tail {
            self.reload()?;
        }
        // SAFETY: this is the consumer, `head` is below `tail`, and moves on here.
        let value = unsafe { self.ring.read(self.head) };
        self.head = self.head.wrapping_add(STEP);
        self.publish();
        Ok(value)
    }

    /// Passes at most `limit` values, oldest first, to `sink`, and returns their number. Their
    /// slots are freed together, so the producer's copy of the cache line is invalidated once for
    /// all of them.
    ///
    /// ```
    /// use polyrail_core::spsc::Ring;
    ///
    /// let mut ring = Ring::<u8, 4>::new();
    /// let (mut producer, mut consumer) = ring.split();
    /// producer.push_batch(&mut (1..=3));
    /// let mut values = Vec::new();
    /// assert_eq!(consumer.pop_batch(2, |value| values.push(value)), 2);
    /// assert_eq!(values, [1, 2]);
    /// ```
    pub fn pop_batch(&mut self, limit: usize, mut sink: impl FnMut(T)) -> usize {
        let batch = Batch { first: self.head, consumer: self };
        let consumer = &mut *batch.consumer;
        for taken in 0..limit {
            if consumer.head == consumer.tail && consumer.reload().is_err() {
                return taken;
            }
            // SAFETY: as in `pop`. The head moves on before `sink` can panic.
            let value = unsafe { consumer.ring.read(consumer.head) };
            consumer.head = consumer.head.wrapping_add(STEP);
            sink(value);
        }
        limit
    }

    /// Whether the ring is empty now.
    ///
    /// ```
    /// let mut ring = polyrail_core::spsc::Ring::<u8, 2>::new();
    /// let (mut producer, consumer) = ring.split();
    /// assert!(consumer.is_empty());
    /// producer.push(1).unwrap();
    /// assert!(!consumer.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.head == self.ring.tail.load(Ordering::Acquire) & !CLOSED
    }

    /// Whether the producer was dropped. Its values may still be in the ring.
    ///
    /// ```
    /// let mut ring = polyrail_core::spsc::Ring::<u8, 2>::new();
    /// let (mut producer, mut consumer) = ring.split();
    /// producer.push(1).unwrap();
    /// drop(producer);
    /// assert!(consumer.is_closed() && !consumer.is_empty());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.ring.tail.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Loads the producer's word.
    #[inline]
    fn reload(&mut self) -> Result<(), PopError> {
        let word = self.ring.tail.load(Ordering::Acquire);
        self.tail = word & !CLOSED;
        if self.head != self.tail {
            Ok(())
        } else if word & CLOSED != 0 {
            Err(PopError::Closed)
        } else {
            Err(PopError::Empty)
        }
    }

    /// Publishes the freed slots to the producer.
    #[inline]
    fn publish(&self) {
        self.ring.head.store(self.head, Ordering::Release);
    }
}

/// A batch of pops. Published when it is dropped, also if the caller's sink panics.
struct Batch<'c, T, const N: usize, S: Deref<Target = Ring<T, N>>> {
    consumer: &'c mut Consumer<T, N, S>,
    first: usize,
}

impl<T, const N: usize, S: Deref<Target = Ring<T, N>>> Drop for Batch<'_, T, N, S> {
    fn drop(&mut self) {
        if self.consumer.head != self.first {
            self.consumer.publish();
        }
    }
}

impl<T, const N: usize, S: Deref<Target = Ring<T, N>>> Drop for Consumer<T, N, S> {
    fn drop(&mut self) {
        self.ring.head.store(self.head | CLOSED, Ordering::Release);
    }
}

impl<T, const N: usize, S: Deref<Target = Ring<T, N>>> fmt::Debug for Consumer<T, N, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("popped", &(self.head / STEP)).finish_non_exhaustive()
    }
}
