//! The state of all NICs of both ends, and what they do when the test lets them.

use super::physical::{Name, Qp, answer, key};
use super::shape::{connection, side};
use crate::nic::{self, CqInfo, Devices, EIO, Lists, QpInfo};
use polyrail_core::hardware::{CommitError, CqId, QpLimits, Refusal};
use polyrail_core::verbs::{
    Completion, DeviceId, Imm, Opcode, RecvRequest, SendFlags, SendRequest, Sge, WcFlags, WcOpcode,
    WcStatus,
};
use std::collections::VecDeque;

/// All NICs of both ends.
pub(super) type Nics = nic::Shared<Fabric>;

/// A queue pair as an owner or the engine has it.
pub(super) type EndQp = nic::Qp<Fabric>;

/// A completion queue as the engine has it.
pub(super) type EndCq = nic::Cq<Fabric>;

#[derive(Debug)]
pub(super) struct Fabric {
    pub(super) qps: Vec<Qp>,
    /// Those of host 0, one for each device, then those of host 1.
    pub(super) cqs: Vec<Cq>,
    /// Devices of each host.
    devices: [usize; 2],
    /// A queue pair's flush happens as soon as it is in the error state.
    pub(super) flushes_at_once: bool,
    /// By connection: completions of receives that were used are lost.
    pub(super) lost_completions: Vec<bool>,
    /// By host: requests and receives that drivers took, and batches that they did not take whole.
    pub(super) taken: [usize; 2],
    pub(super) refused: [usize; 2],
}

#[derive(Debug)]
pub(super) struct Cq {
    pub(super) entries: VecDeque<Entry>,
    pub(super) is_broken: bool,
    /// Completions that the next poll gives out at most.
    pub(super) most: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) at: usize,
    pub(super) completion: Completion,
    /// Send slots that are free again when it is polled.
    frees: u32,
    pub(super) is_recv: bool,
}

/// A request that the peer's NIC executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Executed {
    pub(super) request: SendRequest,
    pub(super) receive: Option<RecvRequest>,
}

impl Fabric {
    pub(super) fn new(devices: [usize; 2], connections: usize, flushes_at_once: bool) -> Self {
        let cq = |_| Cq { entries: VecDeque::new(), is_broken: false, most: usize::MAX };
        Self {
            qps: Vec::new(),
            cqs: (0..devices[0] + devices[1]).map(cq).collect(),
            devices,
            flushes_at_once,
            lost_completions: vec![false; connections],
            taken: [0; 2],
            refused: [0; 2],
        }
    }

    /// A new queue pair, in the lowest number that is free on its device.
    pub(super) fn make(&mut self, name: Name, device: usize, limits: QpLimits) -> usize {
        let taken = |number: &u32| {
            let same = |qp: &Qp| side(qp.name.end) == side(name.end) && qp.device == device;
            self.qps.iter().any(|qp| same(qp) && !qp.is_destroyed && qp.qp_num == *number)
        };
        let qp_num = (1..).find(|number| !taken(number)).expect("few queue pairs");
        self.qps.push(Qp::new(name, device, qp_num, limits));
        let at = self.qps.len() - 1;
        if self.cqs[self.cq_of(at)].is_broken {
            self.remove(at, true);
        }
        at
    }

    /// The newest queue pair of this name.
    pub(super) fn find(&self, name: Name) -> Option<usize> {
        self.qps.iter().rposition(|qp| qp.name == name)
    }

    /// The place of a device's completion queue.
    pub(super) fn cq_at(&self, host: usize, device: usize) -> usize {
        host * self.devices[0] + device
    }

    /// The completion queues of a host.
    pub(super) fn cqs_of(&mut self, host: usize) -> &mut [Cq] {
        let first = self.cq_at(host, 0);
        &mut self.cqs[first..first + self.devices[host]]
    }

    /// Whether a host has completions to poll.
    pub(super) fn has_completions(&self, host: usize) -> bool {
        let first = self.cq_at(host, 0);
        self.cqs[first..first + self.devices[host]].iter().any(|cq| !cq.entries.is_empty())
    }

    fn cq_of(&self, at: usize) -> usize {
        let Qp { name, device, .. } = &self.qps[at];
        self.cq_at(side(name.end), *device)
    }

    /// The device is gone: whether completions of receives that were used were taken is noted.
    pub(super) fn lose(&mut self, at: usize, purges: bool) {
        let lost = self.remove(at, purges);
        self.lost_completions[connection(self.qps[at].name.end)] |= lost;
    }

    /// The device is gone, or the queue pair destroyed. Returns whether the completion of a receive
    /// that was used was not taken.
    pub(super) fn remove(&mut self, at: usize, purges: bool) -> bool {
        self.move_to_error(at);
        self.qps[at].is_gone = true;
        let cq = self.cq_of(at);
        let is_used = |e: &Entry| e.at == at && e.is_recv && e.completion.status.is_success();
        let lost = self.cqs[cq].entries.iter().any(is_used);
        if purges {
            self.cqs[cq].entries.retain(|entry| entry.at != at);
        }
        lost
    }

    /// A completion queue breaks, and the device with it.
    pub(super) fn break_cq(&mut self, cq: usize) {
        self.cqs[cq].is_broken = true;
        for at in 0..self.qps.len() {
            if self.cq_of(at) == cq {
                self.lose(at, true);
            }
        }
    }

    pub(super) fn move_to_error(&mut self, at: usize) {
        let qp = &mut self.qps[at];
        if !qp.in_error && !qp.is_gone {
            qp.in_error = true;
            qp.left = qp.sent.len();
        }
        if self.flushes_at_once {
            self.flush_all(at);
        }
    }

    /// The queue pair goes to the error state by itself.
    pub(super) fn fail(&mut self, at: usize, status: WcStatus) {
        self.qps[at].status = status;
        self.move_to_error(at);
    }

    /// Whether a queue pair answers the one that it is connected to.
    pub(super) fn answers(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        let answers = |peer: usize| {
            let peer = &self.qps[peer];
            !peer.in_error && !peer.is_gone && peer.peer == Some(at)
        };
        qp.peer.is_some_and(answers)
    }

    /// Whether a queue pair waits for an answer that does not come.
    pub(super) fn is_unanswered(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        !qp.in_error && qp.completed < qp.sent.len() && !self.answers(at)
    }

    /// Whether the peer can execute the next request of a queue pair. What had left before the
    /// queue pair went to the error state counts.
    pub(super) fn can_execute(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        let end = if qp.in_error { qp.left } else { qp.sent.len() };
        let Some(request) = qp.sent[..end].get(qp.executed) else { return false };
        let Some(peer) = qp.peer.filter(|_| self.answers(at)) else { return false };
        !takes_receive(request.opcode) || self.qps[peer].used < self.qps[peer].recvs.len()
    }

    /// The peer executes the next request of a queue pair.
    pub(super) fn execute(&mut self, at: usize) -> Executed {
        let qp = &mut self.qps[at];
        let request = qp.sent[qp.executed];
        qp.executed += 1;
        let peer = qp.peer.expect("it can be executed");
        let receive = takes_receive(request.opcode).then(|| self.fill(peer, &request));
        Executed { request, receive }
    }

    fn fill(&mut self, at: usize, request: &SendRequest) -> RecvRequest {
        let qp = &mut self.qps[at];
        let receive = qp.recvs[qp.used];
        qp.used += 1;
        let is_write = request.opcode == Opcode::RdmaWriteWithImm;
        let opcode = if is_write { WcOpcode::RECV_RDMA_WITH_IMM } else { WcOpcode::RECV };
        let with_imm = is_write || request.opcode == Opcode::SendWithImm;
        let completion = Completion {
            byte_len: request.sge.length(),
            imm: if with_imm { request.imm } else { Imm::default() },
            wc_flags: if with_imm { WcFlags::WITH_IMM } else { WcFlags::empty() },
            ..Completion::success(qp.qp_num, receive.wr_id, opcode)
        };
        self.push(at, completion, 0, true);
        receive
    }

    /// All that was executed is acknowledged. Returns it.
    pub(super) fn acknowledge(&mut self, at: usize) -> Vec<SendRequest> {
        let mut acknowledged = Vec::new();
        while self.qps[at].completed < self.qps[at].executed {
            let qp = &mut self.qps[at];
            let request = qp.sent[qp.completed];
            acknowledged.push(request);
            qp.completed += 1;
            qp.silent += 1;
            if request.flags.contains(SendFlags::SIGNALED) {
                let opcode = request.opcode.completion();
                let completion = Completion::success(qp.qp_num, request.wr_id, opcode);
                let frees = std::mem::take(&mut qp.silent);
                self.push(at, completion, frees, false);
            }
        }
        acknowledged
    }

    /// Whether there is something in the send queue, or the receive queue, to be flushed.
    pub(super) fn can_flush(&self, at: usize, sends: bool) -> bool {
        let qp = &self.qps[at];
        let is_left = if sends { qp.completed < qp.sent.len() } else { qp.used < qp.recvs.len() };
        qp.in_error && !qp.is_gone && is_left
    }

    /// Flushes one send or receive.
    pub(super) fn flush(&mut self, at: usize, sends: bool) {
        let qp = &mut self.qps[at];
        if sends {
            let wr_id = qp.sent[qp.completed].wr_id;
            let frees = 1 + std::mem::take(&mut qp.silent);
            let status = std::mem::replace(&mut qp.status, WcStatus::WR_FLUSH_ERR);
            qp.completed += 1;
            self.push_failure(at, wr_id, status, frees, false);
        } else {
            let wr_id = qp.recvs[qp.used].wr_id;
            qp.used += 1;
            self.push_failure(at, wr_id, WcStatus::WR_FLUSH_ERR, 0, true);
        }
    }

    pub(super) fn flush_all(&mut self, at: usize) {
        for sends in [true, false] {
            while self.can_flush(at, sends) {
                self.flush(at, sends);
            }
        }
    }

    fn push(&mut self, at: usize, completion: Completion, frees: u32, is_recv: bool) {
        let cq = self.cq_of(at);
        self.cqs[cq].entries.push_back(Entry { at, completion, frees, is_recv });
    }

    /// A failed completion has rubbish in every field that verbs leaves undefined.
    fn push_failure(&mut self, at: usize, wr_id: u64, status: WcStatus, frees: u32, recv: bool) {
        const OPCODES: [u32; 6] = [0, 128, 1, 129, 0xDEAD_BEEF, 4];
        let qp_num = self.qps[at].qp_num;
        let noise = (wr_id as u32 ^ qp_num).wrapping_mul(0x9E37_79B9);
        let completion = Completion {
            opcode: WcOpcode(OPCODES[noise as usize % OPCODES.len()]),
            byte_len: noise,
            imm: Imm::from_number(noise & 0x8000_00FF),
            src_qp: !noise,
            wc_flags: WcFlags::from_bits_retain(noise | WcFlags::WITH_IMM.bits()),
            ..Completion::failure(qp_num, wr_id, status, 0x8100_0000 | noise >> 8)
        };
        self.push(at, completion, frees, recv);
    }

    /// Takes at most this many of the oldest completions of a host's queue, unless the queue is
    /// broken.
    pub(super) fn take_some(&mut self, host: usize, device: usize, most: usize) -> Vec<Completion> {
        let cq = self.cq_at(host, device);
        let most = if self.cqs[cq].is_broken { 0 } else { most };
        std::iter::from_fn(|| self.take(cq)).take(most).collect()
    }

    fn posted(&mut self, at: usize, accepted: u32, is_refused: bool) {
        let host = side(self.qps[at].name.end);
        self.taken[host] += accepted as usize;
        self.refused[host] += usize::from(is_refused);
        if self.qps[at].in_error && self.flushes_at_once {
            self.flush_all(at);
        }
    }
}

// SAFETY: they touch no memory.
unsafe impl Devices for Fabric {
    fn qp(&self, at: usize) -> QpInfo {
        let Qp { device, qp_num, limits, .. } = self.qps[at];
        QpInfo { qp_num, device: DeviceId(device as u32), cq: CqId(device as u64), limits }
    }

    fn cq(&self, at: usize) -> CqInfo {
        let device = at - if at < self.devices[0] { 0 } else { self.devices[0] };
        CqInfo { id: CqId(device as u64), device: DeviceId(device as u32), capacity: 1 << 12 }
    }

    fn post_sends(
        &mut self,
        at: usize,
        batch: &[SendRequest],
        lists: &mut Lists,
    ) -> Result<(), CommitError> {
        check_rows(lists);
        let far_device = self.qps[at].peer.map_or(usize::MAX, |far| self.qps[far].device);
        let qp = &mut self.qps[at];
        let count = batch.len() as u32;
        let room = qp.limits.max_send_wr - qp.slots;
        let answer = answer(&mut qp.mood, qp.is_gone, count, room);
        let accepted = answer.map_or_else(|error| error.accepted, |()| count);
        qp.check_keys(batch, far_device);
        qp.slots += accepted;
        qp.sent.extend(&batch[..accepted as usize]);
        qp.took(accepted as usize, batch);
        self.posted(at, accepted, accepted < count);
        answer
    }

    fn post_recvs(
        &mut self,
        at: usize,
        batch: &[RecvRequest],
        lists: &mut Lists,
    ) -> Result<(), CommitError> {
        check_rows(lists);
        let qp = &mut self.qps[at];
        let room = qp.limits.max_recv_wr - (qp.recvs.len() - qp.used) as u32;
        let count = batch.len() as u32;
        let answer = answer(&mut qp.recv_mood, qp.is_gone, count, room);
        let accepted = answer.map_or_else(|error| error.accepted, |()| count);
        let own = key(qp.name.end, qp.device);
        assert!(batch.iter().all(|r| r.sge.length() == 0 || r.sge.lkey() == own), "{batch:?}");
        qp.recvs.extend(&batch[..accepted as usize]);
        self.posted(at, accepted, accepted < count);
        answer
    }

    fn enter_error(&mut self, at: usize) -> Result<(), Refusal> {
        if self.qps[at].is_gone {
            return Err(Refusal::Driver(EIO));
        }
        self.move_to_error(at);
        Ok(())
    }

    fn destroy(&mut self, at: usize) {
        self.remove(at, true);
        self.qps[at].is_destroyed = true;
    }

    fn find(&mut self, cq: usize, most: usize) -> Result<usize, i32> {
        let cq = &mut self.cqs[cq];
        if cq.is_broken {
            return Err(EIO);
        }
        let count = most.min(cq.entries.len()).min(cq.most);
        cq.most -= count;
        Ok(count)
    }

    fn take(&mut self, cq: usize) -> Option<Completion> {
        let entry = self.cqs[cq].entries.pop_front()?;
        self.qps[entry.at].slots -= entry.frees;
        Some(entry.completion)
    }
}

/// The buffers of a request lie one behind the other.
fn check_rows(lists: &Lists) {
    let follows = |pair: &[Sge]| {
        pair[0].addr() + u64::from(pair[0].length()) == pair[1].addr()
            && pair[0].lkey() == pair[1].lkey()
    };
    for (_, buffers) in lists {
        let is_row = buffers.windows(2).all(follows);
        assert!(is_row, "bytes are missing, or twice there: {buffers:?}");
    }
}

/// Whether a request takes a receive of the peer.
pub(super) fn takes_receive(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::RdmaWriteWithImm | Opcode::Send | Opcode::SendWithImm)
}
