//! Receives: the ring that holds them, and shared receive queues.

use crate::batch::RecvBatch;
use crate::device::DeviceShared;
use crate::event::AsyncEvent;
use crate::memory::DomainId;
use crate::sync::lock;
use polyrail_core::hardware;
use polyrail_core::verbs::{RecvRequest, Sge};
use std::sync::{Arc, Mutex};

/// Posted receives, oldest first. Positions count from the queue's beginning and never repeat.
#[derive(Debug)]
pub(crate) struct RecvRing {
    slots: Box<[RecvRequest]>,
    taken: u64,
    posted: u64,
}

impl RecvRing {
    /// A ring of at least `min` receives; none if `min` is 0.
    pub(crate) fn new(min: u32) -> Self {
        let size = if min == 0 { 0 } else { (min as usize).next_power_of_two() };
        let empty = RecvRequest { wr_id: 0, sge: Sge::EMPTY };
        Self { slots: vec![empty; size].into_boxed_slice(), taken: 0, posted: 0 }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn len(&self) -> u32 {
        (self.posted - self.taken) as u32
    }

    /// Receives posted since the beginning.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Adds a receive, unless slots up to `released` are all that is free.
    pub(crate) fn push(&mut self, request: &RecvRequest, released: u64) -> bool {
        if self.posted - released >= self.slots.len() as u64 {
            return false;
        }
        let index = self.index(self.posted);
        self.slots[index] = *request;
        self.posted += 1;
        true
    }

    /// Takes the oldest receive, and says how many were taken since the beginning.
    pub(crate) fn pop(&mut self) -> Option<(RecvRequest, u64)> {
        if self.taken == self.posted {
            return None;
        }
        let request = self.slots[self.index(self.taken)];
        self.taken += 1;
        Some((request, self.taken))
    }

    /// Forgets all receives.
    pub(crate) fn clear(&mut self) {
        self.taken = self.posted;
    }

    fn index(&self, position: u64) -> usize {
        position as usize & (self.slots.len() - 1)
    }

    fn taken(&self) -> u64 {
        self.taken
    }
}

#[derive(Debug)]
pub(crate) struct SrqShared {
    pub(crate) device: Arc<DeviceShared>,
    pub(crate) domain: DomainId,
    inner: Mutex<SrqInner>,
}

#[derive(Debug)]
struct SrqInner {
    ring: RecvRing,
    /// Falling below raises the event; 0 is disarmed.
    limit: u32,
    limit_reached: bool,
}

impl SrqShared {
    pub(crate) fn new(
        device: &Arc<DeviceShared>,
        domain: DomainId,
        max_wr: u32,
        limit: u32,
    ) -> Arc<Self> {
        let inner = SrqInner { ring: RecvRing::new(max_wr), limit, limit_reached: false };
        Arc::new(Self { device: Arc::clone(device), domain, inner: Mutex::new(inner) })
    }

    /// Adds a receive if there is room. A slot is free as soon as its receive is taken.
    pub(crate) fn push(&self, request: &RecvRequest) -> bool {
        let mut inner = lock(&self.inner);
        let taken = inner.ring.taken();
        inner.ring.push(request, taken)
    }

    /// Takes the oldest receive.
    pub(crate) fn pop(&self) -> Option<RecvRequest> {
        let mut inner = lock(&self.inner);
        let (request, _) = inner.ring.pop()?;
        if inner.ring.len() < inner.limit {
            inner.limit = 0;
            inner.limit_reached = true;
            self.device.push_event(AsyncEvent::SrqLimitReached);
        }
        Some(request)
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.inner).ring.len() == 0
    }
}

/// A shared receive queue: its receives serve all queue pairs created with it, whoever's message
/// comes first. Receives in it are never flushed. Queue pairs keep it alive. It refuses (EINVAL) a
/// `wr_id` with the bit that the engine's tags are known by: see
/// [`hardware::QueuePair`].
#[derive(Debug)]
pub struct SharedReceiveQueue {
    pub(crate) shared: Arc<SrqShared>,
    staged: Vec<RecvRequest>,
}

impl SharedReceiveQueue {
    pub(crate) fn new(shared: Arc<SrqShared>) -> Self {
        let capacity = lock(&shared.inner).ring.capacity();
        Self { shared, staged: Vec::with_capacity(capacity as usize) }
    }

    /// Receives that it can hold; what was asked for, rounded up.
    pub fn capacity(&self) -> u32 {
        lock(&self.shared.inner).ring.capacity()
    }

    /// Receives that wait in it.
    pub fn len(&self) -> u32 {
        lock(&self.shared.inner).ring.len()
    }

    /// Whether no receive waits in it.
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }

    /// Arms the limit event (`ibv_modify_srq`): it is raised once, when fewer than `limit` receives
    /// are left after one was taken. 0 disarms.
    pub fn set_limit(&mut self, limit: u32) {
        let mut inner = lock(&self.shared.inner);
        inner.limit = limit;
        inner.limit_reached = false;
    }

    /// Whether the limit event was raised since the limit was last armed.
    pub fn limit_reached(&self) -> bool {
        lock(&self.shared.inner).limit_reached
    }
}

impl hardware::ReceiveQueue for SharedReceiveQueue {
    type RecvBatch<'q> = RecvBatch<'q>;

    fn start_recv(&mut self) -> RecvBatch<'_> {
        RecvBatch::for_srq(&self.shared, &mut self.staged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(wr_id: u64) -> RecvRequest {
        RecvRequest { wr_id, sge: Sge::EMPTY }
    }

    #[test]
    fn receives_come_out_in_the_order_they_went_in() {
        let mut ring = RecvRing::new(3);
        assert_eq!(ring.capacity(), 4);
        for wr_id in 0..4 {
            assert!(ring.push(&receive(wr_id), 0));
        }
        assert!(!ring.push(&receive(4), 0));
        assert_eq!(ring.pop().map(|(request, taken)| (request.wr_id, taken)), Some((0, 1)));
    }

    #[test]
    fn a_slot_is_free_when_it_is_released_and_not_when_it_is_taken() {
        let mut ring = RecvRing::new(2);
        assert!(ring.push(&receive(0), 0) && ring.push(&receive(1), 0));
        ring.pop();
        assert!(!ring.push(&receive(2), 0));
        assert!(ring.push(&receive(2), 1));
    }

    #[test]
    fn a_ring_of_no_slots_takes_nothing() {
        let mut ring = RecvRing::new(0);
        assert!(!ring.push(&receive(0), 0));
        assert!(ring.pop().is_none());
    }
}
