//! A reliable connection as the engine uses it.

use super::service::Rc;
use super::transition::ToErr;
use super::{QueuePair, SendBatch};
use polyrail_core::hardware::{self, CqId, QpLimits, Refusal};
use polyrail_core::verbs::DeviceId;

// SAFETY: these are the promises of libibverbs for a reliable connection. The number stays taken until
// `ibv_destroy_qp`, which removes the queue pair's completions (mlx5 and its like) or is followed by
// numbers counting on (rxe). Identity and limits are kept here, and a shared receive queue is a
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
        self.modify(&ToErr).map_err(|error| Refusal::Driver(error.errno()))
    }

    /// Not known yet of any driver.
    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        Err(Refusal::Driver(libc::EOPNOTSUPP))
    }
}
