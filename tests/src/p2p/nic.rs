//! The engine's side of the NICs: core's hardware traits.

use super::fabric::{EIO, Fabric, device_at, device_id};
use super::trouble::spend;
use polyrail_core::hardware::{
    CommitError, CompletionQueue, CqError, CqId, QpLimits, QueuePair, ReceiveQueue, RecvBatch,
    Refusal, SendBatch,
};
use polyrail_core::p2p::POOL_WR_ID;
use polyrail_core::verbs::{Completion, DeviceId, RecvRequest, SendRequest};
use std::cell::RefCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::rc::Rc;

/// All NICs of both hosts.
pub(super) type Nics = Rc<RefCell<Fabric>>;

/// A queue pair as an owner or the engine has it. It is destroyed when it is dropped.
pub(super) struct SimQp {
    pub(super) nics: Nics,
    pub(super) at: usize,
}

impl fmt::Debug for SimQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimQp({})", self.at)
    }
}

impl Drop for SimQp {
    fn drop(&mut self) {
        self.nics.borrow_mut().destroy(self.at);
    }
}

#[derive(Debug)]
pub(super) struct SimSendBatch<'q> {
    qp: &'q SimQp,
    requests: Vec<SendRequest>,
}

impl SendBatch for SimSendBatch<'_> {
    fn add(&mut self, request: &SendRequest) {
        self.requests.push(*request);
    }

    fn commit(self) -> Result<(), CommitError> {
        assert!(!self.requests.is_empty(), "no doorbell without a request");
        self.qp.nics.borrow_mut().post_sends(self.qp.at, &self.requests)
    }
}

/// Receives on their way to a [`SimSrq`].
#[derive(Debug)]
pub(super) struct SimRecvBatch<'q> {
    srq: &'q SimSrq,
    count: usize,
}

impl RecvBatch for SimRecvBatch<'_> {
    fn add(&mut self, request: &RecvRequest) {
        assert_eq!((request.wr_id, request.sge.length()), (POOL_WR_ID, 0));
        self.count += 1;
    }

    fn commit(self) -> Result<(), CommitError> {
        assert!(self.count > 0, "no doorbell without a receive");
        self.srq.nics.borrow_mut().post_receives((self.srq.at, self.srq.generation), self.count)
    }
}

/// A handle of a device's shared receive queue.
#[derive(Clone)]
pub(super) struct SimSrq {
    nics: Nics,
    at: usize,
    generation: u32,
}

impl SimSrq {
    /// The one that is there now.
    pub(super) fn new(nics: &Nics, at: usize) -> Self {
        let generation = nics.borrow().srqs[at].generation;
        Self { nics: Rc::clone(nics), at, generation }
    }
}

impl fmt::Debug for SimSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimSrq({})", self.at)
    }
}

impl ReceiveQueue for SimSrq {
    type RecvBatch<'q> = SimRecvBatch<'q>;

    fn start_recv(&mut self) -> SimRecvBatch<'_> {
        SimRecvBatch { srq: self, count: 0 }
    }
}

impl ReceiveQueue for SimQp {
    type RecvBatch<'q> = SimRecvBatch<'q>;

    fn start_recv(&mut self) -> SimRecvBatch<'_> {
        unreachable!("its receives are shared")
    }
}

// SAFETY: it touches no memory but words that are its own.
unsafe impl QueuePair for SimQp {
    type SendBatch<'q> = SimSendBatch<'q>;

    fn qp_num(&self) -> u32 {
        self.nics.borrow().qps[self.at].qp_num
    }

    fn device(&self) -> DeviceId {
        self.nics.borrow().device_id(self.at)
    }

    fn cq(&self) -> CqId {
        CqId(self.nics.borrow().cq_of(self.at) as u64)
    }

    fn limits(&self) -> QpLimits {
        self.nics.borrow().qps[self.at].limits
    }

    fn start_send(&mut self) -> SimSendBatch<'_> {
        SimSendBatch { qp: self, requests: Vec::new() }
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        self.nics.borrow_mut().enter_error(self.at)
    }

    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        self.nics.borrow_mut().last_wqe_reached(self.at)
    }
}

/// A completion queue as the engine owns it.
pub(super) struct SimCq {
    pub(super) nics: Nics,
    pub(super) host: usize,
    pub(super) device: usize,
    pub(super) capacity: u32,
}

impl fmt::Debug for SimCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimCq({}, {})", self.host, self.device)
    }
}

// SAFETY: it touches no memory.
unsafe impl CompletionQueue for SimCq {
    fn id(&self) -> CqId {
        CqId(device_at(self.host, self.device) as u64)
    }

    fn device(&self) -> DeviceId {
        device_id(self.host, self.device)
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let mut nics = self.nics.borrow_mut();
        let at = device_at(self.host, self.device);
        if spend(&mut nics.cqs[at].fails) {
            return Err(CqError { cq: self.id(), device: self.device(), errno: EIO });
        }
        let count = out.len().min(nics.visible(at));
        for place in &mut out[..count] {
            place.write(nics.take(at).expect("as many as were counted"));
        }
        // SAFETY: the loop above initialised the first `count` places.
        Ok(unsafe { out[..count].assume_init_ref() })
    }
}
