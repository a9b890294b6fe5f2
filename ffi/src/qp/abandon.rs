//! Queue pairs that are dropped while a connector connects them.

use super::last_state::LastState;
use crate::owned::Owned;
use crate::qp_state::QpState;
use rdma_sys::ibv_qp;
use std::sync::{Arc, Weak};

/// Moves a queue pair to ERR, which must be alive. (Its transitions are above this file.)
pub(super) type MoveToErr = unsafe fn(*mut ibv_qp);

/// Keeps connectors from moving a queue pair to RTS that its owner has dropped.
#[derive(Debug)]
pub(super) struct Abandon {
    raw: Weak<Owned<ibv_qp>>,
    state: Arc<LastState>,
    move_to_err: MoveToErr,
}

impl Abandon {
    pub(super) fn new(
        raw: &Arc<Owned<ibv_qp>>,
        state: &Arc<LastState>,
        move_to_err: MoveToErr,
    ) -> Self {
        Self { raw: Arc::downgrade(raw), state: Arc::clone(state), move_to_err }
    }
}

impl Drop for Abandon {
    fn drop(&mut self) {
        let Some(raw) = self.raw.upgrade().filter(|raw| raw.is_ours()) else { return };
        let mut last = self.state.lock();
        // A connector that has not begun does not begin.
        last.set(QpState::Err);
        if last.is_connecting() {
            // If the driver refuses, the connector tries again.
            // SAFETY: the queue pair is alive.
            unsafe { (self.move_to_err)(raw.as_ptr()) };
        }
    }
}
