//! The test's side of a scripted queue pair.

use super::Nic;
use super::state::{QpState, State};
use polyrail_core::hardware::{CommitError, QpLimits, Refusal};
use polyrail_core::verbs::{
    Completion, Imm, RecvRequest, SendRequest, Sge, WcFlags, WcOpcode, WcStatus,
};
use polyrail_core::virtual_qp::RailCounters;

/// Scripts one queue pair. Clones are the same one.
#[derive(Clone, Debug)]
pub struct QpHandle {
    pub(super) nic: Nic,
    pub(super) at: usize,
}

impl QpHandle {
    fn with<R>(&self, act: impl FnOnce(&mut QpState) -> R) -> R {
        act(&mut self.nic.state.borrow_mut().qps[self.at])
    }

    fn with_state<R>(&self, act: impl FnOnce(&mut State, usize) -> R) -> R {
        act(&mut self.nic.state.borrow_mut(), self.at)
    }

    /// Its number.
    pub fn qp_num(&self) -> u32 {
        self.with(|qp| qp.qp_num)
    }

    /// What it was granted.
    pub fn limits(&self) -> QpLimits {
        self.with(|qp| qp.limits)
    }

    /// Counters of what the device did for it: completions count when they are polled.
    pub fn counters(&self) -> RailCounters {
        self.with(|qp| qp.counters)
    }

    /// Whether its driver took only the front of the last batch, and may take the rest later.
    pub fn owes(&self) -> bool {
        self.with(|qp| qp.owes)
    }

    /// Whether it is in the error state: what is posted to it is flushed at once.
    pub fn is_errored(&self) -> bool {
        self.with(|qp| qp.errored)
    }

    /// The requests of each doorbell since the last call.
    pub fn take_doorbells(&self) -> Vec<Vec<SendRequest>> {
        self.with(|qp| std::mem::take(&mut qp.doorbells))
    }

    /// Receives posted by each commit since the last call.
    pub fn take_recv_batches(&self) -> Vec<usize> {
        self.with(|qp| std::mem::take(&mut qp.recv_batches))
    }

    /// Sends posted and not executed.
    pub fn sends(&self) -> Vec<SendRequest> {
        self.with(|qp| qp.sends.iter().copied().collect())
    }

    /// The buffers of a request that was posted.
    pub fn buffers(&self, request: &SendRequest) -> Vec<Sge> {
        let list = self.with(|qp| qp.send_lists.get(&request.wr_id).cloned());
        list.unwrap_or_else(|| vec![request.sge])
    }

    /// The buffers of a receive that was posted.
    pub fn recv_buffers(&self, receive: &RecvRequest) -> Vec<Sge> {
        let list = self.with(|qp| qp.recv_lists.get(&receive.wr_id).cloned());
        list.unwrap_or_else(|| vec![receive.sge])
    }

    /// Receives posted and not consumed.
    pub fn recvs(&self) -> Vec<RecvRequest> {
        self.with(|qp| qp.recvs.iter().copied().collect())
    }

    /// Send slots that are taken.
    pub fn slots(&self) -> u32 {
        self.with(|qp| qp.slots)
    }

    /// The next `n` sends succeed; signaled ones produce completions.
    pub fn complete(&self, n: usize) {
        for _ in 0..n {
            self.with_state(|state, at| state.execute(at, WcStatus::SUCCESS));
        }
    }

    /// All sends posted so far succeed.
    pub fn complete_all(&self) {
        self.complete(self.sends().len());
    }

    /// The next send fails with `status`; everything behind it is flushed, signaled or not, and
    /// so are the receives. The queue pair is in the error state from here on.
    pub fn fail(&self, status: WcStatus) {
        self.with_state(|state, at| {
            state.execute(at, status);
            state.flush(at);
        });
    }

    /// The next `good` sends succeed, the one after them fails.
    pub fn fail_after(&self, good: usize, status: WcStatus) {
        self.complete(good);
        self.fail(status);
    }

    /// Moves the queue pair to the error state: both queues are flushed.
    pub fn flush(&self) {
        self.with_state(|state, at| state.flush(at));
    }

    /// Whether the driver refuses to move the queue pair to the error state from now on.
    pub fn refuse_error(&self, refusal: Option<Refusal>) {
        self.with(|qp| qp.error_refusal = refusal);
    }

    /// A WRITE_WITH_IMM of the peer arrives and consumes a receive.
    pub fn deliver_imm(&self, imm: Imm) {
        self.deliver(WcOpcode::RECV_RDMA_WITH_IMM, 0, Some(imm));
    }

    /// A SEND of the peer arrives in the next receive.
    pub fn deliver_send(&self, byte_len: u32, imm: Option<Imm>) {
        self.deliver(WcOpcode::RECV, byte_len, imm);
    }

    /// Something of the peer arrives that consumes a receive.
    pub fn deliver(&self, opcode: WcOpcode, byte_len: u32, imm: Option<Imm>) {
        self.with_state(|state, at| {
            let qp = &mut state.qps[at];
            let recv = qp.recvs.pop_front().expect("a posted receive (else: RNR)");
            let mut completion = Completion::success(qp.qp_num, recv.wr_id, opcode);
            completion.byte_len = byte_len;
            if let Some(imm) = imm {
                completion.imm = imm;
                completion.wc_flags = WcFlags::WITH_IMM;
            }
            state.complete(at, completion, None);
        });
    }

    /// The next receive fails; everything behind it, and every send, is flushed.
    pub fn fail_recv(&self, status: WcStatus) {
        self.with_state(|state, at| {
            let qp_num = state.qps[at].qp_num;
            let recv = state.qps[at].recvs.pop_front().expect("a posted receive");
            let completion = state.rubbish(qp_num, recv.wr_id, status);
            state.complete(at, completion, None);
            state.flush(at);
        });
    }

    /// Puts an arbitrary completion on the completion queue.
    pub fn inject(&self, completion: Completion) {
        self.with_state(|state, at| state.complete(at, completion, None));
    }

    /// The next commit of sends stops after `accepted` requests.
    pub fn refuse_next(&self, accepted: u32, refusal: Refusal) {
        self.with(|qp| qp.send_mood.next.push_back(CommitError { accepted, refusal }));
    }

    /// The next commit of sends takes `accepted` requests, or all there are, reports that it took
    /// `accepted`, and returns an error in either case.
    pub fn complain_next(&self, accepted: u32, refusal: Refusal) {
        self.with(|qp| qp.send_mood.complaint = Some(CommitError { accepted, refusal }));
    }

    /// Whether every commit of sends is refused from now on.
    pub fn refuse_all(&self, refusal: Option<Refusal>) {
        self.with(|qp| qp.send_mood.lasting = refusal);
    }

    /// The next commit of receives stops after `accepted`.
    pub fn refuse_next_recv(&self, accepted: u32, refusal: Refusal) {
        self.with(|qp| qp.recv_mood.next.push_back(CommitError { accepted, refusal }));
    }

    /// The next commit of receives takes what it has room for, and still returns this error.
    pub fn complain_next_recv(&self, accepted: u32, refusal: Refusal) {
        self.with(|qp| qp.recv_mood.complaint = Some(CommitError { accepted, refusal }));
    }

    /// Whether every commit of receives is refused from now on.
    pub fn refuse_all_recvs(&self, refusal: Option<Refusal>) {
        self.with(|qp| qp.recv_mood.lasting = refusal);
    }
}
