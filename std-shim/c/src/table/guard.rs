//! An object in use by a call.

use super::slot::Slot;
use std::ops::{Deref, DerefMut};
use std::thread;

/// An object that is this call's. It is given back at the end, and poisoned if the call panics.
///
/// As with the mutexes of the standard library, a call in a destructor that runs because its thread
/// panics does not count as panicking itself.
pub(crate) struct Exclusive<T> {
    slot: &'static Slot,
    held: u64,
    value: *mut T,
    /// The thread was panicking before the call.
    was_panicking: bool,
}

impl<T> Exclusive<T> {
    /// # Safety
    ///
    /// `held` is what entering the slot returned, once; `value` is the object there.
    #[inline]
    pub(super) unsafe fn new(slot: &'static Slot, held: u64, value: *mut T) -> Self {
        Self { slot, held, value, was_panicking: thread::panicking() }
    }
}

impl<T> Deref for Exclusive<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: it is this call's.
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for Exclusive<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: it is this call's.
        unsafe { &mut *self.value }
    }
}

impl<T> Drop for Exclusive<T> {
    #[inline]
    fn drop(&mut self) {
        self.slot.leave(self.held, self.was_panicking || !thread::panicking());
    }
}
