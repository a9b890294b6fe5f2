//! Two connected queue pairs, with memory and a completion queue each.

use super::{ALL_ACCESS, End, Fixture, LIMIT, Memory, QUIET, Retries};
use polyrail_core::hardware::{
    CommitError, CompletionQueue, QueuePair, ReceiveQueue, RecvBatch, SendBatch,
};
use polyrail_core::verbs::{
    Completion, Imm, Opcode, RecvRequest, SendFlags, SendRequest, Sge, WcStatus,
};
use std::mem::MaybeUninit;
use std::time::Instant;

/// Bytes of each side's memory.
pub const BYTES: usize = 64 << 10;

/// Requests that fit each queue at least.
pub const DEPTH: u32 = 16;

/// The immediate of every request that has one.
pub const IMM: u32 = 0x1234_5678;

/// One end.
#[derive(Debug)]
pub struct Side<F: Fixture> {
    /// Its rail.
    pub rail: usize,
    /// Its completion queue, for both queues.
    pub cq: F::Cq,
    /// Its queue pair.
    pub qp: F::Qp,
    /// Its memory.
    pub memory: F::Memory,
}

impl<F: Fixture> Side<F> {
    /// One end of a rail, in INIT.
    pub fn new(fixture: &F, end: End, rail: usize, srq: Option<&F::Srq>) -> Self {
        let cq = fixture.create_cq(end, rail, 8 * DEPTH);
        let qp = fixture.create_qp(end, rail, &cq, srq, DEPTH);
        Self { rail, qp, cq, memory: fixture.memory(end, BYTES, ALL_ACCESS) }
    }

    /// A part of the memory, for requests.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        self.memory.local(offset, length).sge(self.memory.lkey(self.rail))
    }

    /// Posts requests with one doorbell.
    pub fn post(&mut self, requests: &[SendRequest]) -> Result<(), CommitError> {
        post(&mut self.qp, requests)
    }

    /// Posts a receive.
    pub fn recv(&mut self, wr_id: u64, sge: Sge) -> Result<(), CommitError> {
        recv(&mut self.qp, wr_id, sge)
    }

    /// Polls until this many completions have come.
    pub fn completions(&mut self, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        let start = Instant::now();
        while all.len() < count {
            all.extend(poll(&mut self.cq));
            assert!(start.elapsed() < LIMIT, "{} of {count} completions: {all:?}", all.len());
        }
        assert_eq!(all.len(), count, "{all:?}");
        all
    }

    /// Polls until this many completions have come. Returns their names and statuses.
    pub fn ends(&mut self, count: usize) -> Vec<(u64, WcStatus)> {
        let end = |wc: &Completion| (wc.wr_id, wc.status);
        self.completions(count).iter().map(end).collect()
    }

    /// Checks for a while that no completion comes.
    pub fn stays_quiet(&mut self) {
        let start = Instant::now();
        while start.elapsed() < QUIET {
            assert_eq!(poll(&mut self.cq), []);
        }
    }
}

/// Posts requests with one doorbell.
pub fn post(qp: &mut impl QueuePair, requests: &[SendRequest]) -> Result<(), CommitError> {
    let mut batch = qp.start_send();
    requests.iter().for_each(|request| batch.add(request));
    batch.commit()
}

/// Posts a receive.
pub fn recv(queue: &mut impl ReceiveQueue, wr_id: u64, sge: Sge) -> Result<(), CommitError> {
    let mut batch = queue.start_recv();
    batch.add(&RecvRequest { wr_id, sge });
    batch.commit()
}

/// The completions that are there now.
pub fn poll(cq: &mut impl CompletionQueue) -> Vec<Completion> {
    let mut out = [MaybeUninit::uninit(); 8];
    cq.poll(&mut out).expect("a working completion queue").to_vec()
}

/// Two connected sides.
#[derive(Debug)]
pub struct Pair<F: Fixture> {
    /// Mostly the sender.
    pub near: Side<F>,
    /// Mostly the receiver.
    pub far: Side<F>,
}

impl<F: Fixture> Pair<F> {
    /// On rail 0, with many retries.
    pub fn new(fixture: &F) -> Self {
        Self::on(fixture, 0, Retries::MANY)
    }

    /// On rail 0, with few retries: a lost packet fails soon.
    pub fn with_few_retries(fixture: &F) -> Self {
        Self::on(fixture, 0, Retries::FEW)
    }

    /// On any rail.
    pub fn on(fixture: &F, rail: usize, retries: Retries) -> Self {
        let near = Side::new(fixture, End::Near, rail, None);
        let far = Side::new(fixture, End::Far, rail, None);
        fixture.connect(rail, &near.qp, &far.qp, retries);
        Self { near, far }
    }

    /// A signaled request from `near` to `far`, between the same offsets of their memories.
    pub fn request(&self, wr_id: u64, opcode: Opcode, offset: usize, length: u32) -> SendRequest {
        SendRequest {
            wr_id,
            opcode,
            flags: SendFlags::SIGNALED,
            imm: Imm::from_number(IMM),
            sge: if length == 0 { Sge::EMPTY } else { self.near.sge(offset, length) },
            remote_addr: self.far.memory.addr() + offset as u64,
            rkey: self.far.memory.rkey(self.far.rail),
            compare_add: 0,
            swap: 0,
        }
    }

    /// A signaled WRITE.
    pub fn write(&self, wr_id: u64, offset: usize, length: u32) -> SendRequest {
        self.request(wr_id, Opcode::RdmaWrite, offset, length)
    }
}

/// `length` bytes that differ from place to place, and from `seed` to `seed`.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mix = |at: usize| (at as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    (0..length).map(|at| mix(at) as u8).collect()
}
