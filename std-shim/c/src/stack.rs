//! Calls that make and remove connections: what they are lies on the stack on its way to the heap and back, and the threads
//! of a program may have less of that than it takes.

use crate::code::Code;
use crate::error::{Failure, Refusal};
use std::panic::resume_unwind;
use std::thread;

/// Bytes that are enough for everything that is made, in debug builds, too. Only what is touched is ever there.
const ENOUGH: usize = 64 << 20;

/// Carries something out on a stack of its own, which is gone when this returns.
pub(crate) fn on_a_deep_one<T: Send>(
    what: impl FnOnce() -> Result<T, Refusal> + Send,
) -> Result<T, Refusal> {
    let builder = thread::Builder::new().name("polyrail-deep".into()).stack_size(ENOUGH);
    // SAFETY: it has ended when this returns, so that what it borrows is there. (`scope` would leave a handle of the
    // caller's thread behind, which checkers take for a leak.)
    let spawned = unsafe { builder.spawn_unchecked(what) };
    let thread = spawned.map_err(|error| {
        Failure::new(Code::System, format_args!("no thread with a stack of its own: {error}"))
    })?;
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
