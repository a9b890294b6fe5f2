//! The state of a cache, shared between threads.

use super::limits::{CacheLimits, StillRegistered};
use super::state::State;
use crate::backend::Region;
use crate::memory::foreign::ForeignBuffer;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// State that a cache shares with its buffers. Devices are never called under the lock: their calls
/// may be slow, and other ranges need not wait for them.
#[derive(Debug)]
pub(super) struct Shared<R> {
    state: Mutex<State<R>>,
    /// Notified when a deregistration ends, successful or not.
    closed: Condvar,
}

impl<R: Region> Shared<R> {
    pub(super) fn new(limits: CacheLimits) -> Self {
        Self { state: Mutex::new(State::new(limits)), closed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then deregisters surplus registrations.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State<R>) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        let surplus = state.surplus();
        drop(state);
        surplus.into_iter().for_each(|buffer| self.close(buffer));
        result
    }

    fn close(&self, buffer: ForeignBuffer<R>) {
        let range = buffer.range();
        let is_kept = buffer.close().is_err();
        self.lock().closed(range, is_kept);
        self.closed.notify_all();
    }

    /// Drops the registrations that overlap a range, and waits until no thread is deregistering any
    /// of it.
    pub(super) fn forget(&self, range: &Range<u64>) -> Result<(), StillRegistered> {
        self.change(|state| state.forget(range));
        let closing = |state: &mut State<R>| state.is_closing(range);
        let state = self.closed.wait_while(self.lock(), closing);
        state.unwrap_or_else(PoisonError::into_inner).check_gone(range)
    }
}
