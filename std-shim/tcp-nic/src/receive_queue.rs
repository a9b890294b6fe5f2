//! Shared receive queues.

use crate::domain::ProtectionDomain;
use crate::ending;
use crate::shared::{QpShared, SrqInner, SrqShared};
use crate::transmit;
use polyrail_core::hardware::{self, CommitError, ENGINE_WR_ID, Refusal};
use polyrail_core::verbs::{RecvRequest, Sge};
use polyrail_nic_parts::error::NicError;
use polyrail_nic_parts::error::errno::EINVAL;
use polyrail_nic_parts::lists::Listed;
use polyrail_nic_parts::options::in_limits;
use polyrail_nic_parts::recv_ring::RecvRing;
use polyrail_nic_parts::staging::{Staging, StagingMemory};
use polyrail_nic_parts::sync::lock;
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, Weak};

/// Scatter/gather entries of a receive in a shared queue.
const MAX_SGE: u32 = 1;

impl ProtectionDomain {
    /// Creates a shared receive queue of at least `max_wr` receives.
    ///
    /// # Errors
    ///
    /// The size is 0 or over the device's limit.
    pub fn create_srq(&self, max_wr: u32) -> Result<SharedReceiveQueue, NicError> {
        let device = &self.device().0;
        device.process.check()?;
        in_limits("the shared receive queue's size", max_wr, device.limits.max_srq_wr)?;
        let inner = SrqInner { ring: RecvRing::new(max_wr, MAX_SGE), waiting: VecDeque::new() };
        let capacity = inner.ring.capacity();
        let (device, domain) = (Arc::clone(device), self.id);
        let shared = SrqShared { device, domain, capacity, inner: Mutex::new(inner) };
        Ok(SharedReceiveQueue::new(Arc::new(shared)))
    }
}

impl SrqShared {
    /// Takes the oldest receive. If there is none, the queue pair's peer is notified of the next
    /// one.
    pub(crate) fn take(&self, qp: &QpShared) -> Option<Listed<RecvRequest>> {
        let mut inner = lock(&self.inner);
        let taken = inner.ring.pop().map(|(request, _)| request);
        if taken.is_none() {
            inner.waiting.push_back(qp.me.clone());
        }
        taken
    }
}

/// Notifies the peers of all queue pairs that wait for a receive. All, although there may be fewer
/// receives: a peer that does not answer any more would keep the others waiting. A queue pair that
/// meets no receive waits again. Must be called without locks.
fn notify_all(waiting: VecDeque<Weak<QpShared>>) {
    for qp in waiting.iter().filter_map(Weak::upgrade) {
        lock(&qp.queues).responder.receive_posted();
        transmit::run(&qp);
        ending::run(&qp);
    }
}

/// A shared receive queue. Its receives serve all queue pairs created with it, in the order in
/// which messages arrive, and are never flushed. Queue pairs keep it alive. Clones are handles of
/// the same queue, for posting from several places. It refuses (EINVAL) a `wr_id` with the bit that
/// marks the engine's tags: see [`hardware::QueuePair`].
#[derive(Debug)]
pub struct SharedReceiveQueue {
    pub(crate) shared: Arc<SrqShared>,
    staged: StagingMemory<RecvRequest>,
}

impl SharedReceiveQueue {
    fn new(shared: Arc<SrqShared>) -> Self {
        let staged = StagingMemory::new(shared.capacity, MAX_SGE);
        Self { shared, staged }
    }

    /// Returns its capacity: the requested one, rounded up.
    pub fn capacity(&self) -> u32 {
        self.shared.capacity
    }
}

/// Makes another handle of the same queue.
impl Clone for SharedReceiveQueue {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.shared))
    }
}

impl hardware::ReceiveQueue for SharedReceiveQueue {
    type RecvBatch<'q> = SharedRecvBatch<'q>;

    fn start_recv(&mut self) -> SharedRecvBatch<'_> {
        SharedRecvBatch { srq: &self.shared, staged: Staging::new(&mut self.staged) }
    }
}

/// A batch of receives for a shared receive queue.
#[derive(Debug)]
pub struct SharedRecvBatch<'q> {
    srq: &'q SrqShared,
    staged: Staging<'q, RecvRequest>,
}

impl hardware::RecvBatch for SharedRecvBatch<'_> {
    fn add(&mut self, request: &RecvRequest) {
        self.staged.add(Listed::recv(*request));
    }

    /// At most one buffer may have a length above 0. Longer lists are refused (EINVAL).
    fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
        self.staged.add_list(RecvRequest { wr_id, sge: Sge::EMPTY }, buffers);
    }

    fn commit(self) -> Result<(), CommitError> {
        let srq = self.srq;
        srq.device.check_batch()?;
        let (waiting, result) = {
            let mut inner = lock(&srq.inner);
            let (accepted, result) = self.staged.commit(|request, list| {
                // A slot is free as soon as its receive is taken.
                let taken = inner.ring.taken();
                if request.wr_id & ENGINE_WR_ID != 0 {
                    Err(Refusal::Driver(EINVAL))
                } else if inner.ring.push(request, list, taken) {
                    Ok(())
                } else {
                    Err(Refusal::QueueFull)
                }
            });
            let waits = accepted > 0 && !inner.waiting.is_empty();
            (waits.then(|| mem::take(&mut inner.waiting)), result)
        };
        waiting.into_iter().for_each(notify_all);
        result
    }
}
