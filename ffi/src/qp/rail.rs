//! The engine's queue pair trait for a reliable connection.

use super::last_wqe::ends_by_destroying;
use super::service::Rc;
use super::transition::ToErr;
use super::{QueuePair, SendBatch};
use crate::error::FORKED;
use crate::qp_state::QpState;
use polyrail_core::hardware::{self, CqId, QpLimits, Refusal};
use polyrail_core::verbs::DeviceId;
use std::sync::Arc;

// SAFETY: libibverbs guarantees these properties for a reliable connection; `last_wqe` argues how
// the end of its receives is detected. The number stays in use until `ibv_destroy_qp`. That call
// removes the queue pair's completions (mlx5 and similar), or numbers are reused only after
// counting through all others: rxe has about a million (`RXE_MAX_QP_INDEX` of Linux 6.1), also if
// `last_wqe_reached` destroys the queue pair while completions are still to be polled. Identity and
// limits are stored here, and a shared receive queue is a `SharedReceiveQueue`, which refuses the
// engine's `wr_id`s.
unsafe impl hardware::QueuePair for QueuePair<Rc> {
    type SendBatch<'q> = SendBatch<'q, Rc>;

    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn device(&self) -> DeviceId {
        self.pd.context().id()
    }

    /// Returns the completion queue of send requests; see [`recv_cq`](Self::recv_cq) for the other.
    fn cq(&self) -> CqId {
        self.send_cq.id()
    }

    fn limits(&self) -> QpLimits {
        self.limits
    }

    #[inline]
    fn start_send(&mut self) -> SendBatch<'_, Rc> {
        self.start()
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        if self.raw.is_none() {
            return Ok(());
        }
        self.modify(&ToErr).map_err(|error| Refusal::Driver(error.errno()))
    }

    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        self.knows_its_last_wqe().map_err(Refusal::Driver)
    }
}

impl QueuePair<Rc> {
    /// Whether the queue pair took its last receive from its shared receive queue, or an errno.
    fn knows_its_last_wqe(&mut self) -> Result<bool, i32> {
        if self.is_forked() || self.last_wqe.is_forked() {
            return Err(FORKED);
        }
        let has_begun = self.last_wqe.is_destroying();
        if self.srq.is_none() || !(has_begun || self.last_state() == QpState::Err) {
            return Err(libc::EINVAL);
        }
        let context = self.pd.context();
        if !ends_by_destroying(context.attributes()) {
            return self.last_wqe.has_event(context);
        }
        if !has_begun {
            self.destroy_aside()?;
        }
        self.last_wqe.is_destroyed()
    }

    fn destroy_aside(&mut self) -> Result<(), i32> {
        if self.raw.as_ref().is_some_and(|raw| Arc::strong_count(raw) > 1) {
            // A connector uses it until the kernel has searched for a path: at a later call.
            return Ok(());
        }
        // Abort a forgotten batch now, while the queue pair exists.
        self.sender.abort();
        let cqs = [self.send_cq.clone(), self.recv_cq.clone()];
        let parts = (cqs, self.srq.clone(), self.pd.clone());
        self.last_wqe.destroy(&mut self.raw, parts)?;
        self.state.lock().set(QpState::Reset);
        Ok(())
    }
}
