//! Shared receive queues.

use super::batch::AnySharedRecvBatch;
use super::dispatch::{any, each};
use crate::nic;
#[cfg(feature = "verbs")]
use crate::rdma;
#[cfg(feature = "tcp")]
use crate::tcp;
use polyrail_core::hardware::ReceiveQueue;

any! {
    /// A shared receive queue. A clone is another handle of the same queue.
    #[derive(Clone, Debug)]
    AnySharedReceiveQueue:
        nic::SharedReceiveQueue,
        tcp::SharedReceiveQueue,
        rdma::SharedReceiveQueue
}

impl ReceiveQueue for AnySharedReceiveQueue {
    type RecvBatch<'q> = AnySharedRecvBatch<'q>;

    #[inline]
    fn start_recv(&mut self) -> AnySharedRecvBatch<'_> {
        each!(AnySharedReceiveQueue, self, srq => srq.start_recv().into())
    }
}
