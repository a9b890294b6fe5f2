//! The state of a queue pair, as its transitions set it.

use crate::qp_state::QpState;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state that a queue pair was last moved to.
///
/// Transitions take a shared reference and are serialised by a lock. Without the lock, the recorded
/// state could be one that a concurrent transition has left, and sends would reach a driver that
/// does not check the state. A [`Connector`](super::Connector) does not hold the lock while the
/// kernel searches for a path, so that the queue pair can be moved to ERR meanwhile.
#[derive(Debug)]
pub(super) struct LastState {
    raw: AtomicU32,
    transition: Mutex<Connecting>,
}

/// Whether a connector is moving the queue pair to RTR.
#[derive(Debug)]
struct Connecting(bool);

/// The right to make a transition.
pub(super) struct TransitionLock<'q> {
    raw: &'q AtomicU32,
    connecting: MutexGuard<'q, Connecting>,
}

impl LastState {
    /// RESET, the state of a new queue pair.
    pub(super) const fn new() -> Self {
        let raw = AtomicU32::new(QpState::Reset.raw());
        Self { raw, transition: Mutex::new(Connecting(false)) }
    }

    #[inline]
    pub(super) fn get(&self) -> QpState {
        QpState::from_raw(self.raw.load(Ordering::Relaxed))
    }

    pub(super) fn lock(&self) -> TransitionLock<'_> {
        // A panic cannot leave the state inconsistent: no call in between panics.
        let connecting = self.transition.lock().unwrap_or_else(PoisonError::into_inner);
        TransitionLock { raw: &self.raw, connecting }
    }
}

impl TransitionLock<'_> {
    pub(super) fn get(&self) -> QpState {
        QpState::from_raw(self.raw.load(Ordering::Relaxed))
    }

    pub(super) fn set(&mut self, state: QpState) {
        self.raw.store(state.raw(), Ordering::Relaxed);
    }

    pub(super) fn is_connecting(&self) -> bool {
        self.connecting.0
    }

    pub(super) fn set_connecting(&mut self, connecting: bool) {
        self.connecting.0 = connecting;
    }
}
