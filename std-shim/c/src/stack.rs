//! A large stack for calls that make and remove connections. Connections are moved between stack
//! and heap, and a program's threads may have smaller stacks than that takes.

use crate::code::Code;
use crate::error::{Failure, Refusal};
use std::panic::resume_unwind;
use std::thread;

/// Bytes that are enough for everything that is made, in debug builds, too. Only what is touched is
/// ever there.
const ENOUGH: usize = 64 << 20;

/// Runs a closure on a separate stack, which is freed when this returns.
pub(crate) fn on_a_deep_one<T: Send>(
    what: impl FnOnce() -> Result<T, Refusal> + Send,
) -> Result<T, Refusal> {
    let builder = thread::Builder::new().name("polyrail-deep".into()).stack_size(ENOUGH);
    // SAFETY: the thread has ended when this returns, so everything that it borrows outlives it.
    // (`scope` would keep a handle of the caller's thread, which leak checkers report.)
    let spawned = unsafe { builder.spawn_unchecked(what) };
    let thread = spawned.map_err(|error| {
        Failure::new(
            Code::System,
            format_args!("cannot start a thread with a larger stack: {error}"),
        )
    })?;
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
