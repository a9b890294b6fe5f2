//! The memory of the ring.
#![allow(unsafe_code, reason = "slots are shared between two threads")]

use super::{Consumer, Producer};
use crate::sync::{AtomicBool, AtomicUsize, Ordering, UnsafeCell};
use core::fmt;
use core::mem::{MaybeUninit, needs_drop};
use crossbeam_utils::CachePadded;
use stable_deref_trait::CloneStableDeref;

/// The lowest bit of a word: its end is gone.
pub(super) const CLOSED: usize = 1;

/// What a word grows by with each value: the bits above [`CLOSED`] count, and wrap around.
pub(super) const STEP: usize = 2;

/// Room for `N` values, a power of two, on their way from one thread to another.
///
/// [`split`](Self::split) gives two ends that borrow the ring, [`split_shared`](Self::split_shared)
/// two that share its ownership. Values that are left when the ring is dropped are dropped with it.
///
/// ```
/// use polyrail_core::spsc::Ring;
///
/// let mut ring = Ring::<u64, 4>::new();
/// let (mut requests, mut queue) = ring.split();
/// std::thread::scope(|scope| {
///     scope.spawn(move || (1..=3).for_each(|request| requests.push(request).unwrap()));
///     scope.spawn(move || {
///         let mut sum = 0;
///         while sum < 6 {
///             sum += queue.pop().unwrap_or(0);
///         }
///     });
/// });
/// ```
///
/// The capacity is checked when the program is compiled:
///
/// ```compile_fail
/// let ring = polyrail_core::spsc::Ring::<u64, 3>::new();
/// ```
pub struct Ring<T, const N: usize> {
    /// The producer's word: the position that is filled next.
    pub(super) tail: CachePadded<AtomicUsize>,
    /// The consumer's word: the position that is taken next.
    pub(super) head: CachePadded<AtomicUsize>,
    /// The two ends were given out.
    split: AtomicBool,
    /// Positions `head..tail`, modulo `N`, are initialised.
    slots: [UnsafeCell<MaybeUninit<T>>; N],
}

// SAFETY: a slot is accessed by one end at a time, as the two words say, and there is one end of
// each kind: so sharing a ring hands values from thread to thread, for which `T: Send` is enough.
unsafe impl<T: Send, const N: usize> Sync for Ring<T, N> {}

/// The ring was split before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring has its two ends already")]
pub struct AlreadySplit;

impl<T, const N: usize> Ring<T, N> {
    const CHECK: () = assert!(
        N.is_power_of_two() && N <= usize::MAX / 4,
        "a ring's capacity is a power of two, and positions have two bits more"
    );

    /// An empty ring.
    #[cfg(not(polyrail_loom))]
    pub const fn new() -> Self {
        const { Self::CHECK }
        Self {
            tail: CachePadded::new(AtomicUsize::new(0)),
            head: CachePadded::new(AtomicUsize::new(0)),
            split: AtomicBool::new(false),
            slots: [const { UnsafeCell::new(MaybeUninit::uninit()) }; N],
        }
    }

    /// An empty ring; loom's types cannot be made in constants.
    #[cfg(polyrail_loom)]
    pub fn new() -> Self {
        const { Self::CHECK }
        Self {
            tail: CachePadded::new(AtomicUsize::new(0)),
            head: CachePadded::new(AtomicUsize::new(0)),
            split: AtomicBool::new(false),
            slots: core::array::from_fn(|_| UnsafeCell::new(MaybeUninit::uninit())),
        }
    }

    /// The two ends, which borrow the ring. Values that an earlier pair left come out first.
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

    /// The two ends of a ring that they own together, for instance in an `Arc` (for which the crate
    /// `stable_deref_trait` needs its feature `alloc` or `std`).
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
    /// The ring was split before: there is one end of each kind.
    #[allow(clippy::type_complexity, reason = "two ends")]
    pub fn split_shared<S>(ring: S) -> Result<(Producer<T, N, S>, Consumer<T, N, S>), AlreadySplit>
    where
        S: CloneStableDeref<Target = Self>,
    {
        // Relaxed: whoever shares the ring came by it in an orderly way, and a ring that was never
        // split is empty.
        if ring.split.swap(true, Ordering::Relaxed) {
            return Err(AlreadySplit);
        }
        Ok((Producer::new(ring.clone(), 0, 0), Consumer::new(ring, 0, 0)))
    }

    /// Values that fit.
    pub const fn capacity(&self) -> usize {
        N
    }

    #[inline(always)]
    fn slot(&self, position: usize) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[(position / STEP) & (N - 1)]
    }

    /// Fills a slot.
    ///
    /// # Safety
    ///
    /// The caller is the producer, `position` is its tail, and the consumer has said that it is
    /// done with the slot: `tail < head + N`, for a head that was loaded with acquire.
    #[inline(always)]
    pub(super) unsafe fn write(&self, position: usize, value: T) {
        // SAFETY: the slot is the producer's, so nobody else accesses it.
        self.slot(position).with_mut(|slot| unsafe { (*slot).write(value) });
    }

    /// Moves the value out of a slot.
    ///
    /// # Safety
    ///
    /// The caller is the consumer, or has the ring for itself; `position` is the head, and it is
    /// below a tail that was loaded with acquire; the head moves on before anybody reads the slot
    /// again.
    #[inline(always)]
    pub(super) unsafe fn read(&self, position: usize) -> T {
        // SAFETY: the slot is the consumer's, the producer has filled it, and it is read once.
        self.slot(position).with(|slot| unsafe { (*slot).assume_init_read() })
    }
}

impl<T, const N: usize> Default for Ring<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> Drop for Ring<T, N> {
    fn drop(&mut self) {
        if !needs_drop::<T>() {
            return;
        }
        // Relaxed: both ends are gone, and whoever drops the ring knows it from its owner.
        let tail = self.tail.load(Ordering::Relaxed) & !CLOSED;
        let mut head = self.head.load(Ordering::Relaxed) & !CLOSED;
        while head != tail {
            // SAFETY: the ring is ours alone, and every position from head to tail holds a value.
            drop(unsafe { self.read(head) });
            head = head.wrapping_add(STEP);
        }
    }
}

impl<T, const N: usize> fmt::Debug for Ring<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("capacity", &N).finish_non_exhaustive()
    }
}
