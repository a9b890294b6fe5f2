//! Queues as the engine has them: core's hardware traits; how they are made, and memory registered for them.

use super::{Block, Cq, Fabric, Qp, Registered, Srq, World};
use polyrail_core::hardware::{
    CommitError, CompletionQueue, CqError, CqId, QpLimits, QueuePair, ReceiveQueue, RecvBatch,
    Refusal, SendBatch,
};
use polyrail_core::p2p::POOL_WR_ID;
use polyrail_core::verbs::{Completion, DeviceId, RecvRequest, SendRequest, WcStatus};
use std::collections::VecDeque;
use std::mem::MaybeUninit;

/// Set-up.
impl Fabric {
    /// Registers memory with a device; the key is for both ends' requests.
    pub(crate) fn register(&self, device: u32, block: &Block) -> u32 {
        let mut world = self.0.borrow_mut();
        world.memory.push(Registered { device, block: block.clone() });
        world.memory.len() as u32
    }

    pub(crate) fn cq(&self, device: u32, capacity: u32) -> TestCq {
        let mut world = self.0.borrow_mut();
        let entries = VecDeque::with_capacity(capacity as usize);
        world.cqs.push(Cq { entries, capacity, is_broken: false });
        TestCq { fabric: self.clone(), at: world.cqs.len() - 1, device }
    }

    pub(crate) fn srq(&self, capacity: u32) -> TestSrq {
        let mut world = self.0.borrow_mut();
        let (refusals, batches) = (VecDeque::new(), Vec::new());
        world.srqs.push(Srq { receives: 0, capacity, refusals, batches });
        TestSrq { fabric: self.clone(), at: world.srqs.len() - 1 }
    }

    pub(crate) fn qp(&self, cq: &TestCq, srq: Option<&TestSrq>, limits: QpLimits) -> TestQp {
        let mut world = self.0.borrow_mut();
        world.qps.push(Qp {
            device: cq.device,
            cq: cq.at,
            srq: srq.map(|srq| srq.at),
            peer: None,
            limits,
            sends: VecDeque::with_capacity(limits.max_send_wr as usize),
            is_error: false,
            holds_word: false,
            said_word: false,
            hidden: Vec::new(),
            refusals: VecDeque::new(),
            error_refusal: None,
            flushes_all: true,
        });
        TestQp { fabric: self.clone(), at: world.qps.len() - 1 }
    }

    pub(crate) fn connect(&self, left: &TestQp, right: &TestQp) {
        let mut world = self.0.borrow_mut();
        world.qps[left.at].peer = Some(right.at);
        world.qps[right.at].peer = Some(left.at);
    }
}

pub(crate) struct TestQp {
    fabric: Fabric,
    pub(crate) at: usize,
}

pub(crate) struct Batch<'q, R> {
    fabric: &'q Fabric,
    at: usize,
    requests: arrayvec::ArrayVec<R, 1024>,
}

impl SendBatch for Batch<'_, SendRequest> {
    fn add(&mut self, request: &SendRequest) {
        self.requests.push(*request);
    }

    fn commit(self) -> Result<(), CommitError> {
        self.fabric.0.borrow_mut().post(self.at, &self.requests)
    }
}

impl RecvBatch for Batch<'_, RecvRequest> {
    fn add(&mut self, request: &RecvRequest) {
        assert_eq!((request.wr_id, request.sge.length()), (POOL_WR_ID, 0));
        self.requests.push(*request);
    }

    fn commit(self) -> Result<(), CommitError> {
        let srq = &mut self.fabric.0.borrow_mut().srqs[self.at];
        let refused = srq.refusals.pop_front();
        let count = self.requests.len() as u32;
        let refused = refused.filter(|error| error.accepted < count);
        let accepted = refused.map_or(count, |error| error.accepted);
        assert!(srq.receives + accepted <= srq.capacity, "the shared queue overflows");
        srq.receives += accepted;
        srq.batches.push(accepted);
        refused.map_or(Ok(()), Err)
    }
}

impl ReceiveQueue for TestQp {
    type RecvBatch<'q> = Batch<'q, RecvRequest>;

    fn start_recv(&mut self) -> Self::RecvBatch<'_> {
        unreachable!("its receives are shared")
    }
}

// SAFETY: memory is shared and checked, and requests complete in order. (What tests inject breaks the
// promises on purpose.)
unsafe impl QueuePair for TestQp {
    type SendBatch<'q> = Batch<'q, SendRequest>;

    fn qp_num(&self) -> u32 {
        self.at as u32 + 1
    }

    fn device(&self) -> DeviceId {
        DeviceId(self.fabric.0.borrow().qps[self.at].device)
    }

    fn cq(&self) -> CqId {
        CqId(self.fabric.0.borrow().qps[self.at].cq as u64)
    }

    fn limits(&self) -> QpLimits {
        self.fabric.0.borrow().qps[self.at].limits
    }

    fn start_send(&mut self) -> Self::SendBatch<'_> {
        Batch { fabric: &self.fabric, at: self.at, requests: arrayvec::ArrayVec::new() }
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        let mut world = self.fabric.0.borrow_mut();
        if let Some(refusal) = world.qps[self.at].error_refusal {
            return Err(refusal);
        }
        world.flush(self.at, WcStatus::WR_FLUSH_ERR);
        Ok(())
    }

    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        let World { qps, cqs, .. } = &mut *self.fabric.0.borrow_mut();
        let qp = &mut qps[self.at];
        assert!(qp.is_error && qp.sends.is_empty(), "asked for too early");
        qp.said_word |= !qp.holds_word;
        if qp.said_word {
            cqs[qp.cq].entries.extend(qp.hidden.drain(..));
        }
        Ok(qp.said_word)
    }
}

/// A handle of a shared receive queue. Clones are the same queue.
#[derive(Clone)]
pub(crate) struct TestSrq {
    fabric: Fabric,
    pub(crate) at: usize,
}

impl std::fmt::Debug for TestSrq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TestSrq({})", self.at)
    }
}

impl ReceiveQueue for TestSrq {
    type RecvBatch<'q> = Batch<'q, RecvRequest>;

    fn start_recv(&mut self) -> Self::RecvBatch<'_> {
        Batch { fabric: &self.fabric, at: self.at, requests: arrayvec::ArrayVec::new() }
    }
}

/// A completion queue. Clones are the same queue.
#[derive(Clone)]
pub(crate) struct TestCq {
    fabric: Fabric,
    pub(crate) at: usize,
    device: u32,
}

// SAFETY: completions are taken off before they are handed over. (What tests inject breaks the promises
// on purpose.)
unsafe impl CompletionQueue for TestCq {
    fn id(&self) -> CqId {
        CqId(self.at as u64)
    }

    fn device(&self) -> DeviceId {
        DeviceId(self.device)
    }

    fn capacity(&self) -> u32 {
        self.fabric.0.borrow().cqs[self.at].capacity
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let cq = &mut self.fabric.0.borrow_mut().cqs[self.at];
        if cq.is_broken {
            let (cq, device) = (CqId(self.at as u64), DeviceId(self.device));
            return Err(CqError { cq, device, errno: 5 });
        }
        let count = out.len().min(cq.entries.len());
        for place in &mut out[..count] {
            place.write(cq.entries.pop_front().expect("as many as were counted"));
        }
        // SAFETY: the first `count` were written above.
        Ok(unsafe { out[..count].assume_init_ref() })
    }
}
