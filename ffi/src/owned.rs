//! Verbs objects that destroy themselves, and what happens when that fails.
//!
//! A destroy call that fails leaves the object in the kernel until its device is closed. `close`
//! returns the error; a drop cannot, so it tells the [hook](set_destroy_hook). What the object still
//! reaches then, such as memory that a device may write, is kept for good.

use crate::error::{Argument, VerbsError};
use std::any::Any;
use std::fmt;
use std::io::Write;
use std::ptr::NonNull;
use std::sync::{Arc, RwLock};

/// What is told of objects that could not be destroyed while they were dropped.
pub type DestroyHook = fn(&VerbsError);

static HOOK: RwLock<DestroyHook> = RwLock::new(print);

fn print(error: &VerbsError) {
    // A stderr that takes nothing, such as a file on a full disk, must not turn a drop into a panic.
    _ = writeln!(std::io::stderr(), "polyrail-ffi: an object is left to the kernel: {error}");
}

/// Sets what is told of failed destroy calls in drops, for the whole process. It is called on the
/// thread that dropped, once for each object. Until this is called they are printed to stderr.
pub fn set_destroy_hook(hook: DestroyHook) {
    *HOOK.write().unwrap_or_else(std::sync::PoisonError::into_inner) = hook;
}

fn report(error: &VerbsError) {
    let hook = *HOOK.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    hook(error);
}

/// A C object with a destroy call.
pub(crate) trait Destroy {
    /// The call's name.
    const CALL: &'static str;

    /// What people know the object by.
    ///
    /// # Safety
    ///
    /// `object` is alive.
    unsafe fn named(object: *const Self) -> Argument;

    /// Calls it.
    ///
    /// # Safety
    ///
    /// `object` is alive and nobody uses it during the call, or after it if it succeeds.
    unsafe fn destroy(object: *mut Self) -> libc::c_int;
}

macro_rules! destroy {
    ($($object:ident by $call:ident, $field:ident;)*) => {$(
        impl Destroy for rdma_sys::$object {
            const CALL: &'static str = stringify!($call);

            unsafe fn named(object: *const Self) -> Argument {
                // SAFETY: the object is alive by the caller's promise; a plain number of it is read.
                Argument::Number(stringify!($field), unsafe { (*object).$field } as u64)
            }

            unsafe fn destroy(object: *mut Self) -> libc::c_int {
                // SAFETY: the caller's promise is the one that the library asks for.
                unsafe { rdma_sys::$call(object) }
            }
        }
    )*};
}

destroy! {
    ibv_pd by ibv_dealloc_pd, handle;
    ibv_mr by ibv_dereg_mr, lkey;
    ibv_mw by ibv_dealloc_mw, rkey;
    ibv_comp_channel by ibv_destroy_comp_channel, fd;
    ibv_cq by ibv_destroy_cq, handle;
    ibv_srq by ibv_destroy_srq, handle;
    ibv_qp by ibv_destroy_qp, qp_num;
    ibv_ah by ibv_destroy_ah, handle;
}

impl Destroy for rdma_sys::ibv_context {
    const CALL: &'static str = "ibv_close_device";

    unsafe fn named(object: *const Self) -> Argument {
        // SAFETY: the context is alive, and keeps its device.
        Argument::Device(unsafe { crate::device::name((*object).device) })
    }

    unsafe fn destroy(object: *mut Self) -> libc::c_int {
        // SAFETY: the caller's promise is the one that the library asks for.
        unsafe { rdma_sys::ibv_close_device(object) }
    }
}

/// What an object reaches although the library does not know: it must be there as long as the object.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

/// The only owner of a C object. What the object was made from must be dropped later: structs name
/// it after this.
pub(crate) struct Owned<T: Destroy> {
    object: NonNull<T>,
    /// Dropped once the object is destroyed; never, if it cannot be.
    kept: Option<Kept>,
}

impl<T: Destroy> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.object, f)
    }
}

// SAFETY: libibverbs serialises creation, destruction and queries itself, and no object is tied to
// the thread that made it. What must not happen at once (two posts to one queue) is ruled out by
// `&mut` in the types that offer it.
unsafe impl<T: Destroy> Send for Owned<T> {}
// SAFETY: as above; a shared owner only lends the pointer.
unsafe impl<T: Destroy> Sync for Owned<T> {}

impl<T: Destroy> Owned<T> {
    /// Takes over what a create call returned; null is the call's failure.
    ///
    /// # Safety
    ///
    /// `object` is null or a fresh object that nobody else will destroy.
    pub(crate) unsafe fn new(
        object: *mut T,
        call: &'static str,
        argument: Argument,
    ) -> Result<Self, VerbsError> {
        let object = NonNull::new(object).ok_or_else(|| VerbsError::last(call, argument))?;
        Ok(Self { object, kept: None })
    }

    /// Makes the object keep this.
    pub(crate) fn keep(&mut self, kept: Kept) {
        self.kept = Some(kept);
    }

    pub(crate) const fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }

    /// Destroys the object. If that fails it is left to the kernel, and so are its parents.
    pub(crate) fn close(self) -> Result<(), VerbsError> {
        let mut owner = std::mem::ManuallyDrop::new(self);
        // SAFETY: `owner` is not used any more.
        unsafe { owner.destroy() }
    }

    /// # Safety
    ///
    /// Nobody uses the object any more, or destroys it again.
    unsafe fn destroy(&mut self) -> Result<(), VerbsError> {
        // SAFETY: the only owner, by the caller's promise.
        let destroyed = unsafe { destroy(self.object) };
        let kept = self.kept.take();
        if destroyed.is_err() {
            std::mem::forget(kept);
        }
        destroyed
    }
}

impl<T: Destroy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: this was the only owner.
        if let Err(error) = unsafe { self.destroy() } {
            report(&error);
        }
    }
}

/// # Safety
///
/// As [`Destroy::destroy`].
unsafe fn destroy<T: Destroy>(object: NonNull<T>) -> Result<(), VerbsError> {
    // SAFETY: the object is alive by the caller's promise.
    let argument = unsafe { T::named(object.as_ptr()) };
    // SAFETY: the caller's promise.
    let returned = unsafe { T::destroy(object.as_ptr()) };
    VerbsError::check(returned, T::CALL, argument)
}

/// Why an object was not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Handles or objects made from it still use it; the last of them destroys it.
    #[error("still in use")]
    InUse,
    /// The destroy call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}
