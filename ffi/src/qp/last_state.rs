//! The state of a queue pair, as its transitions set it.

use crate::qp_state::QpState;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state that a queue pair was last moved to.
///
/// Transitions take a shared reference and are serialised by a lock. Without the lock, the recorded
/// state could be one that a concurrent transition has left, and sends would reach a driver that
/// does not check the state.
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
    /// RESET, the state of a new queue pair.
    pub(super) const fn new() -> Self {
        Self { raw: AtomicU32::new(QpState::Reset.raw()), transition: Mutex::new(()) }
    }

    #[inline]
    pub(super) fn get(&self) -> QpState {
        QpState::from_raw(self.raw.load(Ordering::Relaxed))
    }

    pub(super) fn lock(&self) -> TransitionLock<'_> {
        // A panic cannot leave the state inconsistent, since it is one number.
        let _lock = self.transition.lock().unwrap_or_else(PoisonError::into_inner);
        TransitionLock { raw: &self.raw, _lock }
    }
}

impl TransitionLock<'_> {
    pub(super) fn set(&mut self, state: QpState) {
        self.raw.store(state.raw(), Ordering::Relaxed);
    }
}
