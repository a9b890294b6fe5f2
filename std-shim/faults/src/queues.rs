//! Queue pairs and receive queues of a faulty driver.

use crate::batch::{Memory, RecvBatch, SendBatch};
use crate::faults::Faults;
use crate::faulty::{Enrolment, Faulty};
use polyrail_core::hardware::{CqId, QpLimits, QueuePair, ReceiveQueue, Refusal};
use polyrail_core::verbs::DeviceId;

impl Faults {
    /// Wraps a queue pair. To delay its completions, wrap its [completion
    /// queue](Self::completion_queue) as well.
    pub fn queue_pair<Q: QueuePair>(&self, inner: Q) -> Faulty<Q> {
        let QpLimits { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, .. } = inner.limits();
        Faulty {
            enrolment: Some(Enrolment::new(self, &inner)),
            sends: Memory::new(max_send_wr, max_send_sge),
            receives: Memory::new(max_recv_wr, max_recv_sge),
            ..Faulty::new(inner, self)
        }
    }

    /// Wraps a shared receive queue that holds `max_wr` receives of one buffer each.
    pub fn receive_queue<R: ReceiveQueue>(&self, inner: R, max_wr: u32) -> Faulty<R> {
        Faulty { receives: Memory::new(max_wr, 1), ..Faulty::new(inner, self) }
    }
}

impl<R: ReceiveQueue> ReceiveQueue for Faulty<R> {
    type RecvBatch<'q>
        = RecvBatch<'q, R>
    where
        R: 'q;

    fn start_recv(&mut self) -> RecvBatch<'_, R> {
        RecvBatch::new(&mut self.inner, &self.faults, &mut self.receives)
    }
}

// SAFETY: every call goes to the inner queue pair, which meets the requirements. A batch posts at
// its commit, and only the requests that the commit reports as accepted. No held back completion is
// returned after the queue pair is destroyed, and none is held back after it took its last receive:
// see `roster`.
unsafe impl<Q: QueuePair> QueuePair for Faulty<Q> {
    type SendBatch<'q>
        = SendBatch<'q, Q>
    where
        Q: 'q;

    fn qp_num(&self) -> u32 {
        self.inner.qp_num()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn cq(&self) -> CqId {
        self.inner.cq()
    }

    fn limits(&self) -> QpLimits {
        self.inner.limits()
    }

    fn start_send(&mut self) -> SendBatch<'_, Q> {
        SendBatch::new(&mut self.inner, &self.faults, &mut self.sends)
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        self.inner.enter_error()
    }

    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        let reached = self.inner.last_wqe_reached()? && !self.faults.delays_last_wqe();
        Ok(reached && self.enrolment.as_ref().is_none_or(Enrolment::end))
    }
}
