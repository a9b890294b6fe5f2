//! Shared receive queues.

use crate::batch::RecvBatch;
use crate::domain::ProtectionDomain;
use crate::posts::Posts;
use crate::receives::SrqInner;
use crate::shared::{DeviceShared, SrqShared};
use polyrail_core::hardware;
use polyrail_core::verbs::{RecvRequest, Sge};
use polyrail_nic_parts::error::NicError;
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::lists::Listed;
use polyrail_nic_parts::memory::DomainId;
use polyrail_nic_parts::options::in_limits;
use polyrail_nic_parts::recv_ring::RecvRing;
use polyrail_nic_parts::staging::StagingMemory;
use polyrail_nic_parts::sync::lock;
use std::sync::{Arc, Mutex};

/// Scatter/gather entries of a receive in a shared queue.
const MAX_SGE: u32 = 1;

impl ProtectionDomain {
    /// Creates a shared receive queue of at least `max_wr` receives. Falling below `limit` raises
    /// [`AsyncEvent::SrqLimitReached`](crate::AsyncEvent::SrqLimitReached) once; 0 means never.
    ///
    /// # Errors
    ///
    /// The size is 0 or over the device's limit; the device is gone.
    pub fn create_srq(&self, max_wr: u32, limit: u32) -> Result<SharedReceiveQueue, NicError> {
        let device = &self.device().0;
        device.check_alive()?;
        in_limits("the shared receive queue's size", max_wr, device.limits.max_srq_wr)?;
        Ok(SharedReceiveQueue::new(SrqShared::new(device, self.id, max_wr, limit)))
    }
}

impl SrqShared {
    pub(crate) fn new(
        device: &Arc<DeviceShared>,
        domain: DomainId,
        max_wr: u32,
        limit: u32,
    ) -> Arc<Self> {
        let mut ring = Posts::new(RecvRing::new(max_wr, MAX_SGE));
        if device.full_queues {
            ring.reserve();
        }
        let inner = SrqInner { ring, limit, limit_reached: false };
        let capacity = inner.ring.capacity();
        Arc::new(Self { device: Arc::clone(device), domain, capacity, inner: Mutex::new(inner) })
    }

    /// Adds a receive if there is room. A slot is free as soon as its receive is taken.
    pub(crate) fn push(&self, request: &Listed<RecvRequest>, list: &[Sge]) -> bool {
        let mut inner = lock(&self.inner);
        let taken = inner.ring.taken();
        inner.ring.push(request, list, taken)
    }

    /// Takes the oldest receive.
    pub(crate) fn pop(&self) -> Option<Listed<RecvRequest>> {
        let mut inner = lock(&self.inner);
        let (request, _) = inner.ring.pop()?;
        if inner.ring.len() < inner.limit {
            inner.limit = 0;
            inner.limit_reached = true;
            self.device.push_event(AsyncEvent::SrqLimitReached);
        }
        Some(request)
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
    pub(crate) fn new(shared: Arc<SrqShared>) -> Self {
        let mut staged = StagingMemory::new(shared.capacity, MAX_SGE);
        if shared.device.full_queues {
            staged.reserve_all();
        }
        Self { shared, staged }
    }

    /// Returns its capacity: the requested one, rounded up.
    pub fn capacity(&self) -> u32 {
        self.shared.capacity
    }

    /// Returns the number of receives in it, or 0 in a fork of the process.
    pub fn len(&self) -> u32 {
        if self.shared.device.is_forked() { 0 } else { lock(&self.shared.inner).ring.len() }
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Arms the limit event (`ibv_modify_srq`): it is raised once, when fewer than `limit` receives
    /// are left after one was taken. 0 disarms.
    pub fn set_limit(&mut self, limit: u32) {
        if self.shared.device.is_forked() {
            return;
        }
        let mut inner = lock(&self.shared.inner);
        inner.limit = limit;
        inner.limit_reached = false;
    }

    /// Returns whether the limit event was raised since the limit was last armed.
    pub fn limit_reached(&self) -> bool {
        !self.shared.device.is_forked() && lock(&self.shared.inner).limit_reached
    }
}

/// Makes another handle of the same queue.
impl Clone for SharedReceiveQueue {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.shared))
    }
}

impl hardware::ReceiveQueue for SharedReceiveQueue {
    type RecvBatch<'q> = RecvBatch<'q>;

    fn start_recv(&mut self) -> RecvBatch<'_> {
        RecvBatch::for_srq(&self.shared, &mut self.staged)
    }
}
