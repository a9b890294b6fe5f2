//! Queue pairs.

use super::batch::{AnyRecvBatch, AnySendBatch};
use super::dispatch::{any, each};
use crate::backend::{
    Connect, ConnectOptions, ConnectSteps, Connecting, DeviceError, Gone, Meeting, Port, RemoteQp,
};
use crate::nic;
#[cfg(feature = "verbs")]
use crate::rdma;
#[cfg(feature = "tcp")]
use crate::tcp;
use polyrail_core::hardware::{CqId, QpLimits, QueuePair, ReceiveQueue, Refusal};
use polyrail_core::verbs::DeviceId;

any! {
    /// A queue pair.
    #[derive(Debug)]
    #[allow(clippy::large_enum_variant, reason = "boxed, each post would read a pointer first")]
    AnyQueuePair: nic::QueuePair, tcp::QueuePair, rdma::QueuePair
}

impl ReceiveQueue for AnyQueuePair {
    type RecvBatch<'q> = AnyRecvBatch<'q>;

    #[inline]
    fn start_recv(&mut self) -> AnyRecvBatch<'_> {
        each!(AnyQueuePair, self, qp => qp.start_recv().into())
    }
}

// SAFETY: every method is that of the queue pair inside, which keeps the contract and stays the
// same, and batches are its batches. Backends number devices in different ranges, so no queue pair
// of another backend has the same device and number. The shared receive queue, if there is one, is
// of the same backend.
unsafe impl QueuePair for AnyQueuePair {
    type SendBatch<'q> = AnySendBatch<'q>;

    #[inline]
    fn qp_num(&self) -> u32 {
        each!(AnyQueuePair, self, qp => QueuePair::qp_num(qp))
    }

    #[inline]
    fn device(&self) -> DeviceId {
        each!(AnyQueuePair, self, qp => QueuePair::device(qp))
    }

    #[inline]
    fn cq(&self) -> CqId {
        each!(AnyQueuePair, self, qp => QueuePair::cq(qp))
    }

    #[inline]
    fn limits(&self) -> QpLimits {
        each!(AnyQueuePair, self, qp => QueuePair::limits(qp))
    }

    #[inline]
    fn start_send(&mut self) -> AnySendBatch<'_> {
        each!(AnyQueuePair, self, qp => qp.start_send().into())
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        each!(AnyQueuePair, self, qp => qp.enter_error())
    }

    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        each!(AnyQueuePair, self, qp => qp.last_wqe_reached())
    }
}

impl Connect for AnyQueuePair {
    fn init(&self, port: &Port, options: &ConnectOptions) -> Result<(), DeviceError> {
        each!(AnyQueuePair, self, qp => qp.init(port, options))
    }

    fn meeting(&self) -> Option<Meeting> {
        each!(AnyQueuePair, self, qp => Connect::meeting(qp))
    }

    fn ready_to_receive(
        &self,
        port: &Port,
        peer: &RemoteQp,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError> {
        each!(AnyQueuePair, self, qp => qp.ready_to_receive(port, peer, options))
    }

    fn ready_to_send(&self, psn: u32, options: &ConnectOptions) -> Result<(), DeviceError> {
        each!(AnyQueuePair, self, qp => qp.ready_to_send(psn, options))
    }

    fn fail(&self) -> Result<(), DeviceError> {
        each!(AnyQueuePair, self, qp => qp.fail())
    }

    fn connect_aside(&self, steps: &ConnectSteps) -> Connecting<()> {
        each!(AnyQueuePair, self, qp => qp.connect_aside(steps))
    }

    fn is_connected(&self) -> bool {
        each!(AnyQueuePair, self, qp => Connect::is_connected(qp))
    }

    fn retire(self) {
        each!(AnyQueuePair, self, qp => qp.retire());
    }

    fn gone(&self) -> Option<Gone> {
        each!(AnyQueuePair, self, qp => qp.gone())
    }
}
