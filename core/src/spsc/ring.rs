//! The memory of the ring.
#![allow(unsafe_code, reason = "slots are shared between two threads")]

use crate::sync::{AtomicBool, AtomicUsize, Ordering, UnsafeCell};
use core::fmt;
use core::mem::{MaybeUninit, needs_drop};
use crossbeam_utils::CachePadded;

/// The lowest bit of a word: its end was dropped.
pub(super) const CLOSED: usize = 1;

/// The increment of a word per value: the bits above [`CLOSED`] count, and wrap around.
pub(super) const STEP: usize = 2;

/// A ring of `N` slots, a power of two, which carries values from one thread to another.
///
/// [`split`](Self::split) returns two ends that borrow the ring,
/// [`split_shared`](Self::split_shared) two that share its ownership. Dropping the ring drops the
/// values in it.
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
/// The capacity is checked at compile time:
///
/// ```compile_fail
/// let ring = polyrail_core::spsc::Ring::<u64, 3>::new();
/// ```
pub struct Ring<T, const N: usize> {
    /// The producer's word: the position to fill next.
    pub(super) tail: CachePadded<AtomicUsize>,
    /// The consumer's word: the position to take next.
    pub(super) head: CachePadded<AtomicUsize>,
    /// Whether the ring was split.
    pub(super) split: AtomicBool,
    /// Positions `head..tail`, modulo `N`, are initialised.
    slots: [UnsafeCell<MaybeUninit<T>>; N],
}

// SAFETY: the two words give each slot to one end at a time, and there is one end of each kind.
// Sharing a ring only moves values between threads, for which `T: Send` is enough.
unsafe impl<T: Send, const N: usize> Sync for Ring<T, N> {}

impl<T, const N: usize> Ring<T, N> {
    const CHECK: () = assert!(
        N.is_power_of_two() && N <= usize::MAX / 4,
        "a ring's capacity is a power of two, and positions have two bits more"
    );

    /// Creates an empty ring.
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

    /// Creates an empty ring; loom's types have no constant constructors.
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

    /// Returns the number of values that fit.
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
    /// The caller is the producer, `position` is its tail, and the consumer has released the slot:
    /// `tail < head + N`, for a head that was loaded with acquire.
    #[inline(always)]
    pub(super) unsafe fn write(&self, position: usize, value: T) {
        // SAFETY: the slot is the producer's, so no other thread accesses it.
        self.slot(position).with_mut(|slot| unsafe { (*slot).write(value) });
    }

    /// Moves the value out of a slot.
    ///
    /// # Safety
    ///
    /// The caller is the consumer, or has exclusive access to the ring; `position` is the head, and
    /// below a tail that was loaded with acquire; the head advances before the slot is read again.
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
        // Relaxed: both ends were dropped, and `&mut self` orders their last stores before this.
        let tail = self.tail.load(Ordering::Relaxed) & !CLOSED;
        let mut head = self.head.load(Ordering::Relaxed) & !CLOSED;
        while head != tail {
            // SAFETY: access is exclusive, and every position from head to tail holds a value.
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
