//! The state that a queue pair is in, as far as its transitions tell.

use crate::qp_state::QpState;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state that a queue pair was last moved to.
///
/// Transitions go through a shared reference, one after the other: else what is noted could be a state
/// that another transition has left meanwhile, and sends would reach a driver that does not look.
#[derive(Debug)]
pub(super) struct LastState {
    raw: AtomicU32,
    transition: Mutex<()>,
}

/// The right to make a transition.
pub(super) struct TransitionLock<'q> {
    raw: &'q AtomicU32,
    _lock: MutexGuard<'q, ()>,
}

impl LastState {
    /// RESET, as created.
    pub(super) const fn new() -> Self {
        Self { raw: AtomicU32::new(QpState::Reset.raw()), transition: Mutex::new(()) }
    }

    #[inline]
    pub(super) fn get(&self) -> QpState {
        QpState::from_raw(self.raw.load(Ordering::Relaxed))
    }

    pub(super) fn lock(&self) -> TransitionLock<'_> {
        // Nothing is left half done by a panic: the state is one number.
        let _lock = self.transition.lock().unwrap_or_else(PoisonError::into_inner);
        TransitionLock { raw: &self.raw, _lock }
    }
}

impl TransitionLock<'_> {
    pub(super) fn set(&mut self, state: QpState) {
        self.raw.store(state.raw(), Ordering::Relaxed);
    }
}
