//! What completion queues and shared receive queues are known by when an event names them.

use std::ffi::c_void;
use std::sync::Arc;

/// The object's number, and what its user gave it. The library keeps a pointer to it, its "context".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<I> {
    pub(crate) id: I,
    pub(crate) user_context: usize,
}

impl<I: Copy> Named<I> {
    /// The pointer for the library. It leads to something as long as `this` or a clone is kept.
    pub(crate) fn as_ptr(this: &Arc<Self>) -> *mut c_void {
        Arc::as_ptr(this).cast_mut().cast()
    }

    /// What a pointer of the library leads to.
    ///
    /// # Safety
    ///
    /// [`as_ptr`](Self::as_ptr) gave it for an object of this kind, which is not destroyed yet.
    pub(crate) unsafe fn read(pointer: *mut c_void) -> Self {
        // SAFETY: the caller's promise; who makes such an object keeps this until it is destroyed.
        unsafe { *pointer.cast::<Self>() }
    }
}
