//! The end that pushes.
#![allow(unsafe_code, reason = "fills slots that are shared with the consumer")]

use super::ring::{CLOSED, Ring, STEP};
use crate::sync::Ordering;
use core::fmt;
use core::ops::Deref;

/// The value that `push` did not take, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError<T> {
    /// Every slot holds a value: backpressure.
    #[error("the ring is full")]
    Full(T),
    /// The consumer was dropped, so the ring stays full.
    #[error("the ring's consumer was dropped")]
    Closed(T),
}

impl<T> PushError<T> {
    /// Returns the value.
    pub fn into_value(self) -> T {
        match self {
            Self::Full(value) | Self::Closed(value) => value,
        }
    }
}

/// The producing end of a [`Ring`]. The consumer can detect that it was dropped, and can still pop
/// the pushed values.
///
/// # When the consumer is dropped
///
/// A push loads the consumer's word only if the cached one leaves no room. A dropped consumer is
/// therefore detected after at most `N` further pushes, whose values are dropped with the ring, as
/// are all values in the ring at that time. [`is_closed`](Self::is_closed) detects it immediately.
pub struct Producer<T, const N: usize, S: Deref<Target = Ring<T, N>>> {
    ring: S,
    /// The position to fill next. Positions below it are published, except during a batch.
    tail: usize,
    /// The last loaded position of the consumer.
    head: usize,
}

impl<T, const N: usize, S: Deref<Target = Ring<T, N>>> Producer<T, N, S> {
    pub(super) const fn new(ring: S, tail: usize, head: usize) -> Self {
        Self { ring, tail, head }
    }

    /// Pushes a value. Wait-free: a fixed number of steps, whatever the consumer does.
    ///
    /// ```
    /// use polyrail_core::spsc::{PushError, Ring};
    ///
    /// let mut ring = Ring::<u8, 2>::new();
    /// let (mut producer, mut consumer) = ring.split();
    /// producer.push(1)?;
    /// producer.push(2)?;
    /// assert_eq!(producer.push(3), Err(PushError::Full(3)));
    /// assert_eq!(consumer.pop(), Ok(1));
    /// producer.push(3)?;
    /// # Ok::<(), PushError<u8>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the value.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), PushError<T>> {
        if self.is_out_of_room() {
            match self.reload() {
                Reload::Room => {}
                Reload::Full => return Err(PushError::Full(value)),
                Reload::Closed => return Err(PushError::Closed(value)),
            }
        }
        // SAFETY: this is the producer, and there is room below `head + N`.
        unsafe { self.ring.write(self.tail, value) };
        self.tail = self.tail.wrapping_add(STEP);
        self.publish();
        Ok(())
    }

    /// Pushes values while there is room and returns their number. They are published together, so
    /// the consumer's copy of the cache line is invalidated once for all of them. A value is taken
    /// from `values` only if there is room for it.
    ///
    /// ```
    /// use polyrail_core::spsc::Ring;
    ///
    /// let mut ring = Ring::<u8, 4>::new();
    /// let (mut producer, mut consumer) = ring.split();
    /// let mut values = 1..=6;
    /// assert_eq!(producer.push_batch(&mut values), 4);
    /// assert_eq!(consumer.pop(), Ok(1));
    /// assert_eq!(producer.push_batch(&mut values), 1);
    /// assert_eq!(values.next(), Some(6));
    /// ```
    pub fn push_batch(&mut self, values: &mut impl Iterator<Item = T>) -> usize {
        let batch = Batch { first: self.tail, producer: self };
        let producer = &mut *batch.producer;
        while !producer.is_out_of_room() || producer.reload() == Reload::Room {
            let Some(value) = values.next() else { break };
            // SAFETY: as in `push`.
            unsafe { producer.ring.write(producer.tail, value) };
            producer.tail = producer.tail.wrapping_add(STEP);
        }
        producer.tail.wrapping_sub(batch.first) / STEP
    }

    /// Whether the consumer was dropped.
    ///
    /// ```
    /// let mut ring = polyrail_core::spsc::Ring::<u8, 2>::new();
    /// let (producer, consumer) = ring.split();
    /// assert!(!producer.is_closed());
    /// drop(consumer);
    /// assert!(producer.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.ring.head.load(Ordering::Acquire) & CLOSED != 0
    }

    #[inline]
    const fn is_out_of_room(&self) -> bool {
        self.tail.wrapping_sub(self.head) == N * STEP
    }

    /// Loads the consumer's word.
    #[inline]
    fn reload(&mut self) -> Reload {
        let word = self.ring.head.load(Ordering::Acquire);
        if word & CLOSED != 0 {
            return Reload::Closed;
        }
        self.head = word;
        if self.is_out_of_room() { Reload::Full } else { Reload::Room }
    }

    /// Publishes the filled slots to the consumer.
    #[inline]
    fn publish(&self) {
        self.ring.tail.store(self.tail, Ordering::Release);
    }
}

/// The consumer's word, as a reload found it.
#[derive(PartialEq, Eq)]
enum Reload {
    Room,
    Full,
    Closed,
}

/// A batch of pushes. Published when it is dropped, also if the caller's iterator panics.
struct Batch<'p, T, const N: usize, S: Deref<Target = Ring<T, N>>> {
    producer: &'p mut Producer<T, N, S>,
    first: usize,
}

impl<T, const N: usize, S: Deref<Target = Ring<T, N>>> Drop for Batch<'_, T, N, S> {
    fn drop(&mut self) {
        if self.producer.tail != self.first {
            self.producer.publish();
        }
    }
}

impl<T, const N: usize, S: Deref<Target = Ring<T, N>>> Drop for Producer<T, N, S> {
    fn drop(&mut self) {
        self.ring.tail.store(self.tail | CLOSED, Ordering::Release);
    }
}

impl<T, const N: usize, S: Deref<Target = Ring<T, N>>> fmt::Debug for Producer<T, N, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("pushed", &(self.tail / STEP)).finish_non_exhaustive()
    }
}
