//! The engine's side of the NICs: core's hardware traits.

use super::fabric::{EINVAL, EIO, Fabric};
use polyrail_core::hardware::{
    CommitError, CompletionQueue, CqError, CqId, QpLimits, QueuePair, ReceiveQueue, RecvBatch,
    Refusal, SendBatch,
};
use polyrail_core::verbs::{Completion, DeviceId, LocalBuffer, RecvRequest, SendRequest, Sge};
use std::cell::RefCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::rc::Rc;

/// All NICs of both ends.
pub(super) type Nics = Rc<RefCell<Fabric>>;

/// A queue pair as an owner or the engine has it. It is destroyed when it is dropped.
pub(super) struct EndQp {
    pub(super) nics: Nics,
    pub(super) at: usize,
}

impl fmt::Debug for EndQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndQp({})", self.at)
    }
}

impl Drop for EndQp {
    fn drop(&mut self) {
        let mut nics = self.nics.borrow_mut();
        nics.remove(self.at, true);
        nics.qps[self.at].is_destroyed = true;
    }
}

/// Sends on their way to an [`EndQp`].
#[derive(Debug)]
pub(super) struct EndSendBatch<'q> {
    qp: &'q EndQp,
    requests: Vec<SendRequest>,
}

/// Receives on their way to an [`EndQp`].
#[derive(Debug)]
pub(super) struct EndRecvBatch<'q> {
    qp: &'q EndQp,
    requests: Vec<RecvRequest>,
}

/// The bytes of a list: the buffers of a request lie one behind the other.
fn in_a_row(buffers: &[Sge], max_sge: u32) -> Sge {
    let count = buffers.len();
    assert!((2..=max_sge as usize).contains(&count), "{count} buffers of {max_sge}");
    assert!(buffers.iter().all(|sge| sge.length() > 0), "an empty buffer in {buffers:?}");
    let follows = |pair: &[Sge]| {
        pair[0].addr() + u64::from(pair[0].length()) == pair[1].addr()
            && pair[0].lkey() == pair[1].lkey()
    };
    assert!(buffers.windows(2).all(follows), "bytes are missing, or twice there: {buffers:?}");
    let length = buffers.iter().map(Sge::length).sum();
    // SAFETY: these NICs touch no memory but their own.
    unsafe { LocalBuffer::new(buffers[0].addr(), length) }.sge(buffers[0].lkey())
}

impl SendBatch for EndSendBatch<'_> {
    fn add(&mut self, request: &SendRequest) {
        self.requests.push(*request);
    }

    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        let sge = in_a_row(buffers, self.qp.limits().max_send_sge);
        self.requests.push(SendRequest { sge, ..*request });
    }

    fn commit(self) -> Result<(), CommitError> {
        assert!(!self.requests.is_empty(), "no doorbell without a request");
        self.qp.nics.borrow_mut().post_sends(self.qp.at, &self.requests)
    }
}

impl RecvBatch for EndRecvBatch<'_> {
    fn add(&mut self, request: &RecvRequest) {
        self.requests.push(*request);
    }

    fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
        let sge = in_a_row(buffers, self.qp.limits().max_recv_sge);
        self.requests.push(RecvRequest { wr_id, sge });
    }

    fn commit(self) -> Result<(), CommitError> {
        assert!(!self.requests.is_empty(), "no doorbell without a request");
        self.qp.nics.borrow_mut().post_recvs(self.qp.at, &self.requests)
    }
}

impl ReceiveQueue for EndQp {
    type RecvBatch<'q> = EndRecvBatch<'q>;

    fn start_recv(&mut self) -> EndRecvBatch<'_> {
        EndRecvBatch { qp: self, requests: Vec::new() }
    }
}

// SAFETY: it touches no memory but its own.
unsafe impl QueuePair for EndQp {
    type SendBatch<'q> = EndSendBatch<'q>;

    fn qp_num(&self) -> u32 {
        self.nics.borrow().qps[self.at].qp_num
    }

    fn device(&self) -> DeviceId {
        self.nics.borrow().device_id(self.at)
    }

    fn cq(&self) -> CqId {
        CqId(self.nics.borrow().qps[self.at].device as u64)
    }

    fn limits(&self) -> QpLimits {
        self.nics.borrow().qps[self.at].limits
    }

    fn start_send(&mut self) -> EndSendBatch<'_> {
        EndSendBatch { qp: self, requests: Vec::new() }
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        let mut nics = self.nics.borrow_mut();
        if nics.qps[self.at].is_gone {
            return Err(Refusal::Driver(EIO));
        }
        nics.enter_error(self.at);
        Ok(())
    }

    /// Receives are its own.
    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        Err(Refusal::Driver(EINVAL))
    }
}

/// A completion queue as the engine owns it.
pub(super) struct EndCq {
    pub(super) nics: Nics,
    pub(super) host: usize,
    pub(super) device: usize,
}

impl fmt::Debug for EndCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndCq({}, {})", self.host, self.device)
    }
}

// SAFETY: it touches no memory.
unsafe impl CompletionQueue for EndCq {
    fn id(&self) -> CqId {
        CqId(self.device as u64)
    }

    fn device(&self) -> DeviceId {
        DeviceId(self.device as u32)
    }

    fn capacity(&self) -> u32 {
        1 << 12
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let mut nics = self.nics.borrow_mut();
        let at = nics.cq_at(self.host, self.device);
        if nics.cqs[at].is_broken {
            return Err(CqError { cq: self.id(), device: self.device(), errno: EIO });
        }
        let count = out.len().min(nics.cqs[at].entries.len()).min(nics.cqs[at].most);
        nics.cqs[at].most -= count;
        for place in &mut out[..count] {
            place.write(nics.take(at).expect("as many as were counted"));
        }
        // SAFETY: the loop above initialised the first `count` places.
        Ok(unsafe { out[..count].assume_init_ref() })
    }
}
