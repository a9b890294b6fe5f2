//! The engine's side of the scripted NIC: core's hardware traits.

use super::Nic;
use super::state::EINVAL;
use polyrail_core::hardware::{
    CommitError, CompletionQueue, CqError, CqId, QpLimits, QueuePair, ReceiveQueue, RecvBatch,
    Refusal, SendBatch,
};
use polyrail_core::verbs::{Completion, DeviceId, LocalBuffer, RecvRequest, SendRequest, Sge};
use std::fmt;
use std::mem::MaybeUninit;

/// A queue pair as the engine owns it.
pub struct ScriptedQp {
    pub(super) nic: Nic,
    pub(super) at: usize,
}

/// Without the NIC, which it is only a part of.
impl fmt::Debug for ScriptedQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScriptedQp").field(&self.at).finish()
    }
}

/// Sends on their way to a [`ScriptedQp`].
#[derive(Debug)]
pub struct ScriptedSendBatch<'q> {
    qp: &'q ScriptedQp,
    requests: Vec<SendRequest>,
    /// The buffers of those of them that have several.
    lists: Vec<(u64, Vec<Sge>)>,
}

/// Receives on their way to a [`ScriptedQp`].
#[derive(Debug)]
pub struct ScriptedRecvBatch<'q> {
    qp: &'q ScriptedQp,
    requests: Vec<RecvRequest>,
    /// The buffers of those of them that have several.
    lists: Vec<(u64, Vec<Sge>)>,
}

/// What stands for a list where only its length matters: all bytes from the first address on.
fn as_one(buffers: &[Sge]) -> Sge {
    let length = buffers.iter().map(Sge::length).sum();
    // SAFETY: the scripted NIC never touches memory.
    let first = |sge: &Sge| unsafe { LocalBuffer::new(sge.addr(), length) }.sge(sge.lkey());
    buffers.first().map_or(Sge::EMPTY, first)
}

impl SendBatch for ScriptedSendBatch<'_> {
    fn add(&mut self, request: &SendRequest) {
        self.requests.push(*request);
    }

    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        self.requests.push(SendRequest { sge: as_one(buffers), ..*request });
        self.lists.push((request.wr_id, buffers.to_vec()));
    }

    fn commit(self) -> Result<(), CommitError> {
        assert!(!self.requests.is_empty(), "no doorbell without a request");
        let mut state = self.qp.nic.state.borrow_mut();
        let names = self.requests.iter().map(|request| request.wr_id);
        state.qps[self.qp.at].note_send_lists(names, self.lists);
        let posted = state.post_sends(self.qp.at, &self.requests);
        if state.qps[self.qp.at].errored {
            state.flush(self.qp.at);
        }
        posted
    }
}

impl RecvBatch for ScriptedRecvBatch<'_> {
    fn add(&mut self, request: &RecvRequest) {
        self.requests.push(*request);
    }

    fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
        self.requests.push(RecvRequest { wr_id, sge: as_one(buffers) });
        self.lists.push((wr_id, buffers.to_vec()));
    }

    fn commit(self) -> Result<(), CommitError> {
        assert!(!self.requests.is_empty(), "no doorbell without a request");
        let mut state = self.qp.nic.state.borrow_mut();
        let names = self.requests.iter().map(|request| request.wr_id);
        state.qps[self.qp.at].note_recv_lists(names, self.lists);
        let posted = state.qps[self.qp.at].post_recvs(self.requests);
        if state.qps[self.qp.at].errored {
            state.flush(self.qp.at);
        }
        posted
    }
}

impl ReceiveQueue for ScriptedQp {
    type RecvBatch<'q> = ScriptedRecvBatch<'q>;

    fn start_recv(&mut self) -> ScriptedRecvBatch<'_> {
        ScriptedRecvBatch { qp: self, requests: Vec::new(), lists: Vec::new() }
    }
}

// SAFETY: it touches no memory. (What tests inject breaks the promises on purpose.)
unsafe impl QueuePair for ScriptedQp {
    type SendBatch<'q> = ScriptedSendBatch<'q>;

    fn qp_num(&self) -> u32 {
        self.nic.state.borrow().qps[self.at].qp_num
    }

    fn device(&self) -> DeviceId {
        self.nic.state.borrow().qps[self.at].device
    }

    fn cq(&self) -> CqId {
        Nic::cq_id(self.nic.state.borrow().qps[self.at].cq)
    }

    fn limits(&self) -> QpLimits {
        self.nic.state.borrow().qps[self.at].limits
    }

    fn start_send(&mut self) -> ScriptedSendBatch<'_> {
        ScriptedSendBatch { qp: self, requests: Vec::new(), lists: Vec::new() }
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        let mut state = self.nic.state.borrow_mut();
        if let Some(refusal) = state.qps[self.at].error_refusal {
            return Err(refusal);
        }
        state.flush(self.at);
        Ok(())
    }

    /// Receives are its own.
    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        Err(Refusal::Driver(EINVAL))
    }
}

/// A completion queue as the engine owns it. Clones are the same queue.
#[derive(Clone)]
pub struct ScriptedCq {
    pub(super) nic: Nic,
    pub(super) at: usize,
}

/// Without the NIC, which it is only a part of.
impl fmt::Debug for ScriptedCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScriptedCq").field(&self.at).finish()
    }
}

// SAFETY: it touches no memory. (What tests inject breaks the promises on purpose.)
unsafe impl CompletionQueue for ScriptedCq {
    fn id(&self) -> CqId {
        Nic::cq_id(self.at)
    }

    fn device(&self) -> DeviceId {
        self.nic.state.borrow().cqs[self.at].device
    }

    fn capacity(&self) -> u32 {
        self.nic.state.borrow().cqs[self.at].capacity
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let mut state = self.nic.state.borrow_mut();
        let state = &mut *state;
        let cq = &mut state.cqs[self.at];
        if let Some(errno) = cq.broken {
            return Err(CqError { cq: Nic::cq_id(self.at), device: cq.device, errno });
        }
        let count = out.len().min(cq.entries.len());
        for place in &mut out[..count] {
            let entry = state.cqs[self.at].entries.pop_front().expect("as many as were counted");
            state.polled(&entry);
            place.write(entry.completion);
        }
        // SAFETY: the loop above initialised the first `count` places.
        Ok(unsafe { out[..count].assume_init_ref() })
    }
}
