//! The null device's receive ring.

use super::RING_SLOTS;
use polyrail_core::hardware::{CommitError, ReceiveQueue, RecvBatch, Refusal};
use polyrail_core::verbs::{RecvRequest, Sge};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct RecvSlot {
    wr_id: u64,
    sge: Sge,
}

const _: () = assert!(size_of::<RecvSlot>() == 64);

/// The receive ring of one queue pair, or of several that share it, whose other end is the
/// [`Wire`](super::Wire).
#[derive(Debug)]
pub struct Inbox {
    slots: [Cell<RecvSlot>; RING_SLOTS],
    /// Receives posted so far, modulo 2^32.
    doorbell: AtomicU32,
    /// Receives consumed so far, modulo 2^32.
    consumed: Cell<u32>,
    qp_num: u32,
}

impl Inbox {
    pub(super) fn new(qp_num: u32) -> Self {
        Self {
            slots: [const { Cell::new(RecvSlot { wr_id: 0, sge: Sge::EMPTY }) }; RING_SLOTS],
            doorbell: AtomicU32::new(0),
            consumed: Cell::new(0),
            qp_num,
        }
    }

    /// The queue pair's number; 0 of a shared ring.
    pub const fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Receives that wait for a message.
    pub fn waiting(&self) -> u32 {
        self.doorbell.load(Ordering::Acquire).wrapping_sub(self.consumed.get())
    }

    #[inline]
    fn slot(&self, cursor: u32) -> &Cell<RecvSlot> {
        &self.slots[cursor as usize % RING_SLOTS]
    }

    #[inline(never)]
    fn ring_doorbell(&self, end: u32) {
        self.doorbell.store(end, Ordering::Release);
    }

    /// Takes the oldest waiting receive. Returns its `wr_id`.
    #[inline]
    pub(super) fn consume(&self) -> u64 {
        assert!(self.waiting() > 0, "queue pair {} has no receive posted", self.qp_num);
        let consumed = self.consumed.get();
        self.consumed.set(consumed.wrapping_add(1));
        self.slot(consumed).get().wr_id
    }
}

/// A shared receive queue of [`RING_SLOTS`] receives.
#[derive(Debug)]
pub struct NullSrq {
    inbox: Rc<Inbox>,
}

impl NullSrq {
    /// An empty one.
    pub fn new() -> Self {
        Self { inbox: Rc::new(Inbox::new(0)) }
    }

    /// Where messages for all its queue pairs arrive.
    pub fn inbox(&self) -> Rc<Inbox> {
        Rc::clone(&self.inbox)
    }
}

impl Default for NullSrq {
    fn default() -> Self {
        Self::new()
    }
}

impl ReceiveQueue for NullSrq {
    type RecvBatch<'q> = NullRecvBatch<'q>;

    #[inline]
    fn start_recv(&mut self) -> NullRecvBatch<'_> {
        NullRecvBatch::new(Some(&self.inbox))
    }
}

/// Receives on their way into a [`NullQp`](super::NullQp) or a [`NullSrq`].
#[derive(Debug)]
pub struct NullRecvBatch<'q> {
    /// `None`: the queue pair takes no receives, and refuses them.
    inbox: Option<&'q Inbox>,
    next: u32,
}

impl<'q> NullRecvBatch<'q> {
    #[inline]
    pub(super) fn new(inbox: Option<&'q Inbox>) -> Self {
        let next = inbox.map_or(0, |inbox| inbox.doorbell.load(Ordering::Relaxed));
        Self { inbox, next }
    }
}

impl RecvBatch for NullRecvBatch<'_> {
    // Always: see `NullSendBatch`.
    #[inline(always)]
    fn add(&mut self, request: &RecvRequest) {
        if let Some(inbox) = self.inbox {
            inbox.slot(self.next).set(RecvSlot { wr_id: request.wr_id, sge: request.sge });
            self.next = self.next.wrapping_add(1);
        }
    }

    #[inline]
    fn commit(self) -> Result<(), CommitError> {
        let Some(inbox) = self.inbox else {
            return Err(CommitError { accepted: 0, refusal: Refusal::QueueFull });
        };
        inbox.ring_doorbell(self.next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::null::NullCq;
    use polyrail_core::hardware::{CompletionQueue, CqId, ReceiveQueue, RecvBatch, Refusal};
    use polyrail_core::verbs::{DeviceId, Imm, RecvRequest, Sge};
    use std::mem::MaybeUninit;

    #[test]
    fn messages_consume_receives_oldest_first() {
        let mut cq = NullCq::new(CqId(0), DeviceId(0), 64);
        let mut qp = cq.queue_pair(7, 1, 256);
        let inbox = qp.inbox().unwrap();
        let mut batch = qp.start_recv();
        for wr_id in 0..3 {
            batch.add(&RecvRequest { wr_id, sge: Sge::EMPTY });
        }
        batch.commit().unwrap();
        assert_eq!(inbox.waiting(), 3);
        for number in 100..102 {
            cq.wire().deliver(&inbox, Imm::from_number(number));
        }
        assert_eq!(inbox.waiting(), 1);
        let mut out = [MaybeUninit::uninit(); 32];
        let completions = cq.poll(&mut out).unwrap();
        let arrived: Vec<_> =
            completions.iter().map(|one| (one.wr_id, one.imm().unwrap().number())).collect();
        assert_eq!(arrived, [(0, 100), (1, 101)]);
    }

    #[test]
    fn a_queue_pair_without_receives_refuses_them() {
        let cq = NullCq::new(CqId(0), DeviceId(0), 64);
        let mut qp = cq.queue_pair(7, 1, 0);
        let mut batch = qp.start_recv();
        batch.add(&RecvRequest { wr_id: 0, sge: Sge::EMPTY });
        assert_eq!(batch.commit().unwrap_err().refusal, Refusal::QueueFull);
    }
}
