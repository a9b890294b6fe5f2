//! Splits a ring into its two ends.

use super::consumer::Consumer;
use super::producer::Producer;
use super::ring::{CLOSED, Ring};
use crate::sync::Ordering;
use stable_deref_trait::CloneStableDeref;

/// The ring was split already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring is already split: it has one producer and one consumer")]
pub struct AlreadySplit;

impl<T, const N: usize> Ring<T, N> {
    /// Returns the two ends, which borrow the ring. Values that an earlier pair left are popped
    /// first.
    ///
    /// ```
    /// use polyrail_core::spsc::{PopError, Ring};
    ///
    /// let mut ring = Ring::<&str, 2>::new();
    /// ring.split().0.push("left behind").unwrap();
    /// let (_producer, mut consumer) = ring.split();
    /// assert_eq!(consumer.pop(), Ok("left behind"));
    /// assert_eq!(consumer.pop(), Err(PopError::Empty));
    /// ```
    pub fn split(&mut self) -> (Producer<T, N, &Self>, Consumer<T, N, &Self>) {
        let [tail, head] = [&self.tail, &self.head].map(|word| {
            let open = word.load(Ordering::Relaxed) & !CLOSED;
            word.store(open, Ordering::Relaxed);
            open
        });
        self.split.store(true, Ordering::Relaxed);
        let ring = &*self;
        (Producer::new(ring, tail, head), Consumer::new(ring, head, tail))
    }

    /// Returns two ends that share ownership of the ring, for instance in an `Arc` (which needs
    /// feature `alloc` or `std` of the crate `stable_deref_trait`).
    ///
    /// ```
    /// use polyrail_core::spsc::{AlreadySplit, Ring};
    /// use std::sync::Arc;
    ///
    /// let ring = Arc::new(Ring::<u64, 64>::new());
    /// let (mut producer, mut consumer) = Ring::split_shared(Arc::clone(&ring))?;
    /// let consumer = std::thread::spawn(move || loop {
    ///     if let Ok(value) = consumer.pop() {
    ///         break value;
    ///     }
    /// });
    /// producer.push(7).unwrap();
    /// assert_eq!(consumer.join().unwrap(), 7);
    /// assert!(Ring::split_shared(ring).is_err());
    /// # Ok::<(), AlreadySplit>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The ring was split already: there is one end of each kind.
    #[allow(clippy::type_complexity, reason = "two ends")]
    pub fn split_shared<S>(ring: S) -> Result<(Producer<T, N, S>, Consumer<T, N, S>), AlreadySplit>
    where
        S: CloneStableDeref<Target = Self>,
    {
        // Relaxed: sharing the ring with another thread already orders the accesses, and a ring
        // that was never split is empty.
        if ring.split.swap(true, Ordering::Relaxed) {
            return Err(AlreadySplit);
        }
        Ok((Producer::new(ring.clone(), 0, 0), Consumer::new(ring, 0, 0)))
    }
}
