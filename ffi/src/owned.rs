//! Verbs objects that are destroyed when they are dropped, and failures to destroy them.
//!
//! An object that cannot be destroyed stays in the kernel until its device is closed. `close`
//! returns the error; a drop cannot, so it calls the [hook](set_destroy_hook). Memory that the
//! object can still reach, such as memory that a device may write, is then never freed.
//!
//! A fork of the process does not own the object: destroying it would destroy the parent's. There,
//! a drop destroys nothing and frees nothing, and `close` returns an error.

use crate::error::{Argument, VerbsError};
use polyrail_process::Process;
use std::any::Any;
use std::fmt;
use std::io::Write;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The function that receives the errors of objects that could not be destroyed when they were
/// dropped.
pub type DestroyHook = fn(&VerbsError);

/// A [`DestroyHook`]. Null, the initial value, is [`print`]. Not a lock, which a fork in
/// [`set_destroy_hook`] would leave locked.
static HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

fn print(error: &VerbsError) {
    // A failing stderr, such as a file on a full disk, must not turn a drop into a panic.
    _ = writeln!(
        std::io::stderr(),
        "polyrail-ffi: cannot destroy a verbs object; it stays until its device is closed: {error}"
    );
}

/// Sets the hook for failed destroy calls in drops, for the whole process. It is called once per
/// object, on the thread that dropped the object. The default hook prints to stderr.
pub fn set_destroy_hook(hook: DestroyHook) {
    HOOK.store(hook as *mut (), Ordering::Release);
}

fn report(error: &VerbsError) {
    let hook = HOOK.load(Ordering::Acquire);
    if hook.is_null() {
        return print(error);
    }
    // SAFETY: stored by `set_destroy_hook`.
    let hook = unsafe { std::mem::transmute::<*mut (), DestroyHook>(hook) };
    hook(error);
}

/// A C object with a destroy call.
pub(crate) trait Destroy {
    /// Name of the destroy call.
    const CALL: &'static str;

    /// Returns the argument that identifies the object in errors.
    ///
    /// # Safety
    ///
    /// `object` is alive.
    unsafe fn named(object: *const Self) -> Argument;

    /// Calls the destroy function.
    ///
    /// # Safety
    ///
    /// `object` is alive. It is not used during the call, nor afterwards if the call succeeds.
    unsafe fn destroy(object: *mut Self) -> libc::c_int;
}

macro_rules! destroy {
    ($($object:ident by $call:ident, $field:ident;)*) => {$(
        impl Destroy for rdma_sys::$object {
            const CALL: &'static str = stringify!($call);

            unsafe fn named(object: *const Self) -> Argument {
                // SAFETY: the object is alive, as the caller guarantees; the field is a plain
                // number.
                Argument::Number(stringify!($field), unsafe { (*object).$field } as u64)
            }

            unsafe fn destroy(object: *mut Self) -> libc::c_int {
                // SAFETY: the caller guarantees what the library requires.
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
        // SAFETY: the context is alive, and keeps its device alive.
        Argument::Device(unsafe { crate::device::name((*object).device) })
    }

    unsafe fn destroy(object: *mut Self) -> libc::c_int {
        // SAFETY: the caller guarantees what the library requires.
        unsafe { rdma_sys::ibv_close_device(object) }
    }
}

/// Memory that an object reaches without the library's knowledge, kept until the object is
/// destroyed.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

/// The only owner of a C object. Structs declare the object's parents after it, so that they are
/// dropped later.
pub(crate) struct Owned<T: Destroy> {
    object: NonNull<T>,
    /// Dropped when the object is destroyed, or never if that fails.
    kept: Option<Kept>,
    process: Process,
}

impl<T: Destroy> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.object, f)
    }
}

// SAFETY: libibverbs serialises creation, destruction and queries, and no object is tied to the
// thread that created it. Calls that must not be concurrent (two posts to one queue) take `&mut` in
// the types that offer them.
unsafe impl<T: Destroy> Send for Owned<T> {}
// SAFETY: as above; a shared reference only gives the pointer.
unsafe impl<T: Destroy> Sync for Owned<T> {}

impl<T: Destroy> Owned<T> {
    /// Takes ownership of the result of a create call; null means that the call failed.
    ///
    /// # Safety
    ///
    /// `object` is null or a new object, which nothing else destroys.
    pub(crate) unsafe fn new(
        object: *mut T,
        call: &'static str,
        argument: Argument,
    ) -> Result<Self, VerbsError> {
        let object = NonNull::new(object).ok_or_else(|| VerbsError::last(call, argument))?;
        Ok(Self { object, kept: None, process: Process::current() })
    }

    /// Keeps `kept` until the object is destroyed.
    pub(crate) fn keep(&mut self, kept: Kept) {
        self.kept = Some(kept);
    }

    pub(crate) const fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }

    /// Whether this process made the object, and can use it.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    /// Returns the object for this call, unless this process is a fork of the process that made it.
    #[inline]
    pub(crate) fn for_call(&self, call: &'static str) -> Result<*mut T, VerbsError> {
        VerbsError::check_process(self.process, call).map(|()| self.as_ptr())
    }

    /// Destroys the object. If that fails, the object and its parents stay in the kernel.
    pub(crate) fn close(self) -> Result<(), VerbsError> {
        self.for_call(T::CALL)?;
        let mut owner = std::mem::ManuallyDrop::new(self);
        // SAFETY: `owner` is not used afterwards.
        unsafe { owner.destroy() }
    }

    /// # Safety
    ///
    /// The object is not used or destroyed afterwards.
    unsafe fn destroy(&mut self) -> Result<(), VerbsError> {
        // SAFETY: this is the only owner, as the caller guarantees.
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
        if !self.is_ours() {
            std::mem::forget(self.kept.take());
            return;
        }
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
    // SAFETY: the object is alive, as the caller guarantees.
    let argument = unsafe { T::named(object.as_ptr()) };
    // SAFETY: guaranteed by the caller.
    let returned = unsafe { T::destroy(object.as_ptr()) };
    VerbsError::check(returned, T::CALL, argument)
}

/// The reason why an object was not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Handles or objects made from it still use it. The last of them destroys it when it is
    /// dropped.
    #[error("cannot close: other handles, or objects made from it, still exist")]
    InUse,
    /// The destroy call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}
