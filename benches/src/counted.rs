//! Devices that count the work they are given: the tests compare the contenders' work with it.

use polyrail_core::hardware::{
    CommitError, CompletionQueue, CqError, CqId, QpLimits, QueuePair, ReceiveQueue, RecvBatch,
    Refusal, SendBatch,
};
use polyrail_core::verbs::{Completion, DeviceId, RecvRequest, SendRequest, Sge};
use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::MaybeUninit;
use std::rc::Rc;

/// Work done by a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Send requests stored.
    pub sends: u64,
    /// Send doorbells rung.
    pub send_doorbells: u64,
    /// Receives stored.
    pub recvs: u64,
    /// Receive doorbells rung.
    pub recv_doorbells: u64,
    /// Polls that found completions.
    pub polls: u64,
    /// Polls that found no completions.
    pub empty_polls: u64,
    /// Completions copied out.
    pub completions: u64,
}

/// The account that several counted devices share.
#[derive(Clone, Debug, Default)]
pub struct Account {
    work: Rc<Cell<Work>>,
    posted: Rc<Cell<u64>>,
}

impl Account {
    /// What was done since the last time this was asked.
    pub fn take(&self) -> Work {
        self.work.take()
    }

    /// A hash of all that was posted so far, in its order: of all fields of sends but their
    /// `wr_id`s.
    pub fn posted(&self) -> u64 {
        self.posted.get()
    }

    fn note_posted(&self, request: &SendRequest) {
        let mut hasher = DefaultHasher::new();
        let SendRequest { opcode, flags, imm, sge, remote_addr, rkey, compare_add, swap, .. } =
            *request;
        let local = (sge.addr(), sge.length(), sge.lkey());
        let rest = (opcode as u8, flags.bits(), imm.number(), remote_addr, rkey, compare_add, swap);
        (self.posted.get(), local, rest).hash(&mut hasher);
        self.posted.set(hasher.finish());
    }

    /// `inner`, with its work counted here.
    pub fn of<T>(&self, inner: T) -> Counted<T> {
        Counted { inner, account: self.clone() }
    }

    fn add(&self, change: impl FnOnce(&mut Work)) {
        let mut work = self.work.get();
        change(&mut work);
        self.work.set(work);
    }
}

/// A queue pair, completion queue or batch whose work is counted.
#[derive(Debug)]
pub struct Counted<T> {
    inner: T,
    account: Account,
}

// SAFETY: every call goes to the inner queue pair, which meets the requirements.
unsafe impl<Q: QueuePair> QueuePair for Counted<Q> {
    type SendBatch<'q>
        = Counted<Q::SendBatch<'q>>
    where
        Q: 'q;

    fn qp_num(&self) -> u32 {
        self.inner.qp_num()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn cq(&self) -> CqId {
        self.inner.cq()
    }

    fn limits(&self) -> QpLimits {
        self.inner.limits()
    }

    fn start_send(&mut self) -> Self::SendBatch<'_> {
        self.account.of(self.inner.start_send())
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        self.inner.enter_error()
    }

    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        self.inner.last_wqe_reached()
    }
}

impl<Q: ReceiveQueue> ReceiveQueue for Counted<Q> {
    type RecvBatch<'q>
        = Counted<Q::RecvBatch<'q>>
    where
        Q: 'q;

    fn start_recv(&mut self) -> Self::RecvBatch<'_> {
        self.account.of(self.inner.start_recv())
    }
}

impl<B: SendBatch> SendBatch for Counted<B> {
    fn add(&mut self, request: &SendRequest) {
        self.account.add(|work| work.sends += 1);
        self.account.note_posted(request);
        self.inner.add(request);
    }

    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        self.account.add(|work| work.sends += 1);
        self.account.note_posted(request);
        self.inner.add_list(request, buffers);
    }

    fn commit(self) -> Result<(), CommitError> {
        self.account.add(|work| work.send_doorbells += 1);
        self.inner.commit()
    }
}

impl<B: RecvBatch> RecvBatch for Counted<B> {
    fn add(&mut self, request: &RecvRequest) {
        self.account.add(|work| work.recvs += 1);
        self.inner.add(request);
    }

    fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
        self.account.add(|work| work.recvs += 1);
        self.inner.add_list(wr_id, buffers);
    }

    fn commit(self) -> Result<(), CommitError> {
        self.account.add(|work| work.recv_doorbells += 1);
        self.inner.commit()
    }
}

// SAFETY: every call goes to the inner queue, which meets the requirements.
unsafe impl<C: CompletionQueue> CompletionQueue for Counted<C> {
    fn id(&self) -> CqId {
        self.inner.id()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn capacity(&self) -> u32 {
        self.inner.capacity()
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let completions = self.inner.poll(out)?;
        self.account.add(|work| {
            work.completions += completions.len() as u64;
            if completions.is_empty() { work.empty_polls += 1 } else { work.polls += 1 }
        });
        Ok(completions)
    }
}
