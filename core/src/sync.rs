//! Atomics and cells, or loom's models of them under `--cfg polyrail_loom`.

#[cfg(not(polyrail_loom))]
pub(crate) use cell::UnsafeCell;
#[cfg(not(polyrail_loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(polyrail_loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};

#[cfg(not(polyrail_loom))]
mod cell {
    /// `core`'s cell with the methods of loom's, which watches each access while it lasts.
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        /// A pointer to read through.
        #[inline(always)]
        pub(crate) fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
            access(self.0.get())
        }

        /// A pointer to write through.
        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
            access(self.0.get())
        }
    }
}
