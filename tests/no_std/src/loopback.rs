//! Two queue pairs of one device that complete at once what they are given.

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use polyrail_core::hardware::{
    CommitError, CompletionQueue, CqError, CqId, QpLimits, QueuePair, ReceiveQueue, RecvBatch,
    SendBatch,
};
use polyrail_core::verbs::{Completion, DeviceId, RecvRequest, SendFlags, SendRequest, WcOpcode};

const DEPTH: usize = 16;

/// Signaled requests that were posted, as `(qp_num, wr_id)`, and how many were polled.
static POSTED: [(AtomicU64, AtomicU64); DEPTH] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; DEPTH];
static HEAD: AtomicUsize = AtomicUsize::new(0);
static TAIL: AtomicUsize = AtomicUsize::new(0);

pub struct LoopbackQp {
    qp_num: u32,
    added: Cell<usize>,
}

impl LoopbackQp {
    pub fn new(qp_num: u32) -> Self {
        Self { qp_num, added: Cell::new(0) }
    }
}

pub struct Batch<'q>(&'q LoopbackQp);

impl SendBatch for Batch<'_> {
    fn add(&mut self, request: &SendRequest) {
        if request.flags.contains(SendFlags::SIGNALED) {
            let at = (TAIL.load(Ordering::Relaxed) + self.0.added.get()) % DEPTH;
            POSTED[at].0.store(u64::from(self.0.qp_num), Ordering::Relaxed);
            POSTED[at].1.store(request.wr_id, Ordering::Relaxed);
            self.0.added.set(self.0.added.get() + 1);
        }
    }

    fn commit(self) -> Result<(), CommitError> {
        TAIL.fetch_add(self.0.added.take(), Ordering::Release);
        Ok(())
    }
}

impl RecvBatch for Batch<'_> {
    fn add(&mut self, _request: &RecvRequest) {}

    fn commit(self) -> Result<(), CommitError> {
        Ok(())
    }
}

impl ReceiveQueue for LoopbackQp {
    type RecvBatch<'q> = Batch<'q>;

    fn start_recv(&mut self) -> Batch<'_> {
        Batch(self)
    }
}

// SAFETY: a request is executed while it is posted, and completes in order, once.
unsafe impl QueuePair for LoopbackQp {
    type SendBatch<'q> = Batch<'q>;

    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn device(&self) -> DeviceId {
        DeviceId(0)
    }

    fn cq(&self) -> CqId {
        CqId(0)
    }

    fn limits(&self) -> QpLimits {
        let (max_send_wr, max_recv_wr) = (DEPTH as u32, DEPTH as u32);
        QpLimits { max_send_wr, max_recv_wr, max_inline_data: 0, max_msg_size: 1 << 30 }
    }

    fn start_send(&mut self) -> Batch<'_> {
        Batch(self)
    }
}

pub struct LoopbackCq;

// SAFETY: a request is executed while it is posted, and completes in order, once.
unsafe impl CompletionQueue for LoopbackCq {
    fn id(&self) -> CqId {
        CqId(0)
    }

    fn device(&self) -> DeviceId {
        DeviceId(0)
    }

    fn capacity(&self) -> u32 {
        1024
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let (head, tail) = (HEAD.load(Ordering::Relaxed), TAIL.load(Ordering::Acquire));
        let count = out.len().min(tail - head);
        for (at, slot) in out[..count].iter_mut().enumerate() {
            let (qp_num, wr_id) = &POSTED[(head + at) % DEPTH];
            let qp_num = qp_num.load(Ordering::Relaxed) as u32;
            let wr_id = wr_id.load(Ordering::Relaxed);
            slot.write(Completion::success(qp_num, wr_id, WcOpcode::RDMA_WRITE));
        }
        HEAD.store(head + count, Ordering::Relaxed);
        // SAFETY: the first `count` were written above.
        Ok(unsafe { out[..count].assume_init_ref() })
    }
}
