//! The state of a cache, shared between threads.

use super::limits::{CacheLimits, StillRegistered};
use super::state::State;
use crate::backend::Region;
use polyrail_process::{Forked, Process};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// State that a cache shares with its buffers. Devices are never called under the lock: their calls
/// may be slow, and other ranges need not wait for them.
#[derive(Debug)]
pub(super) struct Shared<R> {
    state: Mutex<State<R>>,
    /// Notified when a deregistration ends, successful or not.
    closed: Condvar,
    /// A fork must not wait for the lock, which another thread may have held, or for another
    /// thread's deregistration.
    process: Process,
}

impl<R: Region> Shared<R> {
    pub(super) fn new(limits: CacheLimits) -> Self {
        let (state, process) = (Mutex::new(State::new(limits)), Process::current());
        Self { state, closed: Condvar::new(), process }
    }

    /// # Errors
    ///
    /// The calling process is a fork of the process that made the cache.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, State<R>>, Forked> {
        self.process.check()?;
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the state, then deregisters surplus registrations.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State<R>) -> T) -> Result<T, Forked> {
        let mut state = self.lock()?;
        let result = change(&mut state);
        let surplus = state.surplus();
        drop(state);
        for buffer in surplus {
            let range = buffer.range();
            let is_kept = buffer.close().is_err();
            self.lock()?.closed(range, is_kept);
            self.closed.notify_all();
        }
        Ok(result)
    }

    /// Drops the registrations that overlap a range, and waits until no thread is deregistering any
    /// of it. Returns at once in a fork of the process, where no device accesses the range.
    pub(super) fn forget(&self, range: &Range<u64>) -> Result<(), StillRegistered> {
        let Ok(state) = self.change(|state| state.forget(range)).and_then(|()| self.lock()) else {
            return Ok(());
        };
        let closing = |state: &mut State<R>| state.is_closing(range);
        let state = self.closed.wait_while(state, closing);
        state.unwrap_or_else(PoisonError::into_inner).check_gone(range)
    }
}
