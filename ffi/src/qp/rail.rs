//! A reliable connection as the engine uses it.

use super::last_wqe::ends_by_destroying;
use super::service::Rc;
use super::transition::ToErr;
use super::{QueuePair, SendBatch};
use crate::qp_state::QpState;
use polyrail_core::hardware::{self, CqId, QpLimits, Refusal};
use polyrail_core::verbs::DeviceId;

// SAFETY: these are the promises of libibverbs for a reliable connection; how the end of its receives is known
// is argued in `last_wqe`. The number stays taken until `ibv_destroy_qp`, which removes the queue pair's
// completions (mlx5 and its like) or is followed by numbers counting on: rxe gives all others, a million of them
// (`RXE_MAX_QP_INDEX` of Linux 6.1), before it gives one again, also where `last_wqe_reached` destroys while
// completions are still to be polled. Identity and limits are kept here, and a shared receive queue is a
// `SharedReceiveQueue`, which refuses marked names.
unsafe impl hardware::QueuePair for QueuePair<Rc> {
    type SendBatch<'q> = SendBatch<'q, Rc>;

    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn device(&self) -> DeviceId {
        self.pd.context().id()
    }

    /// The completion queue of its send requests; see [`recv_cq`](Self::recv_cq) for the other.
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
    /// Whether it took its last receive from its shared receive queue; or an errno.
    fn knows_its_last_wqe(&mut self) -> Result<bool, i32> {
        let has_begun = self.last_wqe.is_destroying();
        if self.srq.is_none() || !(has_begun || self.last_state() == QpState::Err) {
            return Err(libc::EINVAL);
        }
        let context = self.pd.context();
        if !ends_by_destroying(context.attributes()) {
            return self.last_wqe.is_heard(context);
        }
        if !has_begun {
            self.destroy_aside()?;
        }
        self.last_wqe.is_destroyed()
    }

    fn destroy_aside(&mut self) -> Result<(), i32> {
        // A batch that was forgotten would be aborted later.
        self.sender.abort();
        let cqs = [self.send_cq.clone(), self.recv_cq.clone()];
        let parts = (cqs, self.srq.clone(), self.pd.clone());
        self.last_wqe.destroy(&mut self.raw, parts)?;
        self.state.lock().set(QpState::Reset);
        Ok(())
    }
}
