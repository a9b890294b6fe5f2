//! Batches of receives, for queue pairs and shared receive queues.

use crate::chain::Chain;
use polyrail_core::hardware::ENGINE_WR_ID;
use polyrail_core::hardware::{self, CommitError, Refusal};
use polyrail_core::verbs::{RecvRequest, Sge};
use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_srq};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Queue {
    Own(*mut ibv_qp),
    Shared(*mut ibv_srq),
}

/// A batch of receives for one queue. A batch that is dropped without a commit posts nothing.
///
/// A shared receive queue refuses a `wr_id` with [`ENGINE_WR_ID`] with EINVAL: see
/// [`hardware::QueuePair`].
#[derive(Debug)]
pub struct RecvBatch<'q> {
    queue: Queue,
    chain: &'q mut Chain<ibv_recv_wr>,
}

impl<'q> RecvBatch<'q> {
    /// # Safety
    ///
    /// The queue stays alive while `chain` is borrowed, or the batch [refuses all
    /// receives](Self::refusing). No other batch posts to the receive queue of a queue pair
    /// meanwhile.
    pub(crate) unsafe fn new(queue: Queue, chain: &'q mut Chain<ibv_recv_wr>) -> Self {
        chain.clear();
        Self { queue, chain }
    }

    /// Makes the batch refuse all receives.
    pub(crate) fn refusing(self, refusal: Refusal) -> Self {
        self.chain.stop(refusal);
        self
    }
}

impl hardware::RecvBatch for RecvBatch<'_> {
    #[inline]
    fn add(&mut self, request: &RecvRequest) {
        self.add_list(request.wr_id, std::slice::from_ref(&request.sge));
    }

    /// At most [`max_recv_sge`](crate::QpCap::max_recv_sge) or [`max_sge`](crate::SrqInit::max_sge)
    /// nonempty buffers; a longer list is refused with EINVAL when the batch is committed.
    #[inline]
    fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
        if matches!(self.queue, Queue::Shared(_)) && wr_id & ENGINE_WR_ID != 0 {
            return self.chain.stop(Refusal::Driver(libc::EINVAL));
        }
        self.chain.push(buffers, |raw| raw.wr_id = wr_id);
    }

    #[inline]
    fn commit(self) -> Result<(), CommitError> {
        let queue = self.queue;
        self.chain.post(|first, bad| {
            // SAFETY: the queue is alive by the constructor's contract, and the chain is a list of
            // requests that the driver copies during the call.
            unsafe {
                match queue {
                    Queue::Own(qp) => rdma_sys::ibv_post_recv(qp, first, bad),
                    Queue::Shared(srq) => rdma_sys::ibv_post_srq_recv(srq, first, bad),
                }
            }
        })
    }
}
