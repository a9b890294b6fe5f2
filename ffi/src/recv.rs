//! Batches of receives, for queue pairs and shared receive queues.

use crate::chain::Chain;
use polyrail_core::hardware::{self, CommitError, Refusal};
use polyrail_core::tag::Tag;
use polyrail_core::verbs::RecvRequest;
use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_srq};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Queue {
    Own(*mut ibv_qp),
    Shared(*mut ibv_srq),
}

/// Receives on their way to one queue. Dropped without commit, it posts nothing.
///
/// A shared receive queue refuses a `wr_id` with [`Tag::MARK`] with EINVAL: see
/// [`hardware::QueuePair`].
#[derive(Debug)]
pub struct RecvBatch<'q> {
    queue: Queue,
    chain: &'q mut Chain<ibv_recv_wr>,
}

impl<'q> RecvBatch<'q> {
    /// # Safety
    ///
    /// The queue is alive, and stays so while `chain` is borrowed; nobody else posts to it.
    pub(crate) unsafe fn new(queue: Queue, chain: &'q mut Chain<ibv_recv_wr>) -> Self {
        chain.clear();
        Self { queue, chain }
    }

    /// A batch that takes no receives.
    pub(crate) fn refusing(self, refusal: Refusal) -> Self {
        self.chain.stop(refusal);
        self
    }
}

impl hardware::RecvBatch for RecvBatch<'_> {
    #[inline]
    fn add(&mut self, request: &RecvRequest) {
        if matches!(self.queue, Queue::Shared(_)) && request.wr_id & Tag::MARK != 0 {
            return self.chain.stop(Refusal::Driver(libc::EINVAL));
        }
        self.chain.push(request.sge, |raw| raw.wr_id = request.wr_id);
    }

    #[inline]
    fn commit(self) -> Result<(), CommitError> {
        let queue = self.queue;
        self.chain.post(|first, bad| {
            // SAFETY: the queue is alive by the constructor's contract, and the chain is a list of
            // requests that the driver copies while it is called.
            unsafe {
                match queue {
                    Queue::Own(qp) => rdma_sys::ibv_post_recv(qp, first, bad),
                    Queue::Shared(srq) => rdma_sys::ibv_post_srq_recv(srq, first, bad),
                }
            }
        })
    }
}
