//! What completion queues, shared receive queues and queue pairs are known by when an event names them.

use std::ffi::c_void;
use std::sync::Arc;

/// The object's number or what events change, and what its user gave it. The library keeps a pointer to it, its "context".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<I> {
    pub(crate) id: I,
    pub(crate) user_context: usize,
}

impl<I> Named<I> {
    /// The pointer for the library. It leads to something as long as `this` or a clone is kept.
    pub(crate) fn as_ptr(this: &Arc<Self>) -> *mut c_void {
        Arc::as_ptr(this).cast_mut().cast()
    }

    /// What a pointer of the library leads to.
    ///
    /// # Safety
    ///
    /// [`as_ptr`](Self::as_ptr) gave it for an object of this kind, which is not destroyed before the
    /// reference is dropped.
    pub(crate) unsafe fn at<'n>(pointer: *mut c_void) -> &'n Self {
        // SAFETY: the caller's promise; who makes such an object keeps this until it is destroyed.
        unsafe { &*pointer.cast::<Self>() }
    }
}

impl<I: Copy> Named<I> {
    /// A copy of what a pointer of the library leads to.
    ///
    /// # Safety
    ///
    /// [`as_ptr`](Self::as_ptr) gave it for an object of this kind, which is not destroyed yet.
    pub(crate) unsafe fn read(pointer: *mut c_void) -> Self {
        // SAFETY: the caller's promise.
        *unsafe { Self::at(pointer) }
    }
}
