//! The identity of completion queues, shared receive queues and queue pairs in events.

use std::ffi::c_void;
use std::sync::Arc;

/// The object's number or event record, and the value that its user supplied. The library holds a
/// pointer to it, the object's "context".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<I> {
    pub(crate) id: I,
    pub(crate) user_context: usize,
}

impl<I> Named<I> {
    /// Returns the pointer for the library. It is valid while `this` or a clone of it exists.
    pub(crate) fn as_ptr(this: &Arc<Self>) -> *mut c_void {
        Arc::as_ptr(this).cast_mut().cast()
    }

    /// Returns the identity that a pointer of the library points to.
    ///
    /// # Safety
    ///
    /// [`as_ptr`](Self::as_ptr) returned the pointer for an object of this kind, which is destroyed
    /// only after the reference is dropped.
    pub(crate) unsafe fn at<'n>(pointer: *mut c_void) -> &'n Self {
        // SAFETY: guaranteed by the caller; the object's owner keeps the identity until it is
        // destroyed.
        unsafe { &*pointer.cast::<Self>() }
    }
}

impl<I: Copy> Named<I> {
    /// Copies the identity that a pointer of the library points to.
    ///
    /// # Safety
    ///
    /// [`as_ptr`](Self::as_ptr) returned the pointer for an object of this kind, which is not
    /// destroyed yet.
    pub(crate) unsafe fn read(pointer: *mut c_void) -> Self {
        // SAFETY: guaranteed by the caller.
        *unsafe { Self::at(pointer) }
    }
}
