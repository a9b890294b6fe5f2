//! A value for each process.

use crate::Process;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that each process makes when it first needs it, such as its threads. For statics.
///
/// A fork makes another value: its parent's may have a lock that another thread held during the
/// fork. For the same reason, threads that need the value at the same time do not wait for each
/// other: each makes a value, and all use the first that was finished. The values are never freed,
/// apart from those that came too late.
pub struct PerProcess<T>(AtomicPtr<Made<T>>);

struct Made<T> {
    process: Process,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// Returns a place without a value.
    #[allow(clippy::new_without_default, reason = "statics cannot call `default`")]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the value of the calling process. If there is none, makes it.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        // Acquire: another thread may have made it.
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a value that is never freed.
        match unsafe { found.as_ref() } {
            Some(made) if made.process.is_current() => &made.value,
            _ => self.make(found, make()),
        }
    }

    /// Stores the value in the place of `found`, and returns it; or returns the value that another
    /// thread has stored meanwhile.
    #[cold]
    fn make(&self, found: *mut Made<T>, value: T) -> &'static T {
        let new = Box::into_raw(Box::new(Made { process: Process::current(), value }));
        match self.0.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it is never freed.
            Ok(_) => unsafe { &(*new).value },
            Err(other) => {
                // SAFETY: made above, and not shared.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: not null, since a thread of this process has just stored it, and never
                // freed.
                unsafe { &(*other).value }
            }
        }
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};
    use std::thread;

    #[test]
    fn a_value_is_made_once() {
        static NUMBER: PerProcess<u32> = PerProcess::new();
        assert_eq!(*NUMBER.get_or_make(|| 1), 1);
        assert_eq!(*NUMBER.get_or_make(|| unreachable!()), 1);
    }

    /// Miri shows that what comes too late is freed.
    #[test]
    fn threads_that_make_values_at_once_use_the_same() {
        static NUMBER: PerProcess<Box<usize>> = PerProcess::new();
        let all_make = Arc::new(Barrier::new(3));
        let threads = [0, 1, 2].map(|number| {
            let all_make = Arc::clone(&all_make);
            thread::spawn(move || {
                let make = || {
                    all_make.wait();
                    Box::new(number)
                };
                ptr::from_ref(NUMBER.get_or_make(make)).addr()
            })
        });
        let values = threads.map(|thread| thread.join().unwrap());
        assert_eq!(values, [values[0]; 3]);
    }
}
