//! Devices of which the test chooses every step: what is executed, acknowledged, shown, refused.
//!
//! A request is *posted*, then *executed* at its peer, then *acknowledged*: only then it completes. A queue
//! pair in the error state executes nothing of its peer's any more, but for what the test lets through.

use polyrail_core::hardware::{
    CommitError, CompletionQueue, CqError, CqId, ENGINE_WR_ID, QpLimits, QueuePair, ReceiveQueue,
    RecvBatch, Refusal, SendBatch,
};
use polyrail_core::p2p::POOL_WR_ID;
use polyrail_core::verbs::{
    Completion, DeviceId, Imm, Opcode, RecvRequest, SendFlags, SendRequest, WcFlags, WcOpcode,
    WcStatus,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Memory that devices reach.
#[derive(Clone)]
pub(crate) enum Block {
    /// Words that are written whole.
    Words(Rc<[AtomicU64]>),
    /// Bytes.
    Bytes(Rc<[AtomicU8]>),
    /// So many bytes at this address that nobody looks at: for lengths that no test can hold.
    Phantom(u64, u64),
}

impl Block {
    pub(crate) fn addr(&self) -> u64 {
        match self {
            Self::Words(words) => words.as_ptr().addr() as u64,
            Self::Bytes(bytes) => bytes.as_ptr().addr() as u64,
            Self::Phantom(addr, _) => *addr,
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Words(words) => words.len() as u64 * 8,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Phantom(_, len) => *len,
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) {
        for (at, byte) in (offset..).zip(out) {
            *byte = match self {
                Self::Words(words) => {
                    words[at as usize / 8].load(Ordering::Relaxed).to_ne_bytes()[at as usize % 8]
                }
                Self::Bytes(bytes) => bytes[at as usize].load(Ordering::Relaxed),
                Self::Phantom(..) => 0,
            };
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        match self {
            Self::Words(words) => {
                assert!(offset.is_multiple_of(8) && bytes.len().is_multiple_of(8), "whole words");
                for (at, word) in (offset as usize / 8..).zip(bytes.chunks_exact(8)) {
                    let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
                    words[at].store(word, Ordering::Release);
                }
            }
            Self::Bytes(all) => {
                for (at, byte) in (offset as usize..).zip(bytes) {
                    all[at].store(*byte, Ordering::Relaxed);
                }
            }
            Self::Phantom(..) => {}
        }
    }
}

struct Registered {
    device: u32,
    block: Block,
}

/// A send request on its way.
#[derive(Clone, Copy)]
struct Sent {
    request: SendRequest,
    executed: bool,
}

struct Qp {
    device: u32,
    cq: usize,
    srq: Option<usize>,
    peer: Option<usize>,
    limits: QpLimits,
    sends: VecDeque<Sent>,
    is_error: bool,
    /// Its driver does not say yet that it takes no receive any more.
    holds_word: bool,
    said_word: bool,
    refusals: VecDeque<CommitError>,
    error_refusal: Option<Refusal>,
    /// Unsignaled requests complete when they are flushed, too.
    flushes_all: bool,
}

struct Srq {
    receives: u32,
    capacity: u32,
    refusals: VecDeque<CommitError>,
    batches: Vec<u32>,
}

struct Cq {
    entries: VecDeque<Completion>,
    capacity: u32,
}

#[derive(Default)]
struct World {
    memory: Vec<Registered>,
    qps: Vec<Qp>,
    srqs: Vec<Srq>,
    cqs: Vec<Cq>,
    /// Words of entries are kept back: address and bytes.
    tears: bool,
    kept: Vec<(u32, u64, [u8; 8])>,
    /// Every request that was executed: queue pair and request.
    log: Vec<(usize, SendRequest)>,
    rnr: u32,
    /// Requests of queue pairs that failed, which may be on their way still: queue pair and request.
    stragglers: Vec<(usize, SendRequest)>,
}

/// All devices. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Fabric(Rc<RefCell<World>>);

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Done,
    /// There is nothing to do.
    Idle,
    /// The peer has no receive.
    Rnr,
    /// The peer does not answer any more.
    Dead,
}

impl World {
    fn find(&self, key: u32, device: u32, addr: u64, len: u64) -> Option<(Block, u64)> {
        let region = self.memory.get((key as usize).checked_sub(1)?)?;
        let offset = addr.checked_sub(region.block.addr())?;
        let fits = offset.checked_add(len)? <= region.block.len() && region.device == device;
        fits.then(|| (region.block.clone(), offset))
    }

    fn complete(&mut self, at: usize, completion: Completion) {
        let qp_num = at as u32 + 1;
        let cq = &mut self.cqs[self.qps[at].cq];
        assert!(cq.entries.len() < cq.capacity as usize, "the completion queue overruns");
        cq.entries.push_back(Completion { qp_num, ..completion });
    }

    fn execute(&mut self, at: usize, even_in_error: bool) -> Step {
        let Some(next) = self.qps[at].sends.iter().position(|sent| !sent.executed) else {
            return Step::Idle;
        };
        if self.qps[at].is_error && !even_in_error {
            return Step::Idle;
        }
        let request = self.qps[at].sends[next].request;
        let step = self.carry_out(at, &request, even_in_error);
        if step == Step::Done {
            self.qps[at].sends[next].executed = true;
        }
        step
    }

    fn carry_out(&mut self, at: usize, request: &SendRequest, even_in_error: bool) -> Step {
        let peer = self.qps[at].peer.expect("connected");
        if self.qps[peer].is_error && (!even_in_error || self.qps[peer].said_word) {
            return Step::Dead;
        }
        let takes_receive = request.opcode == Opcode::RdmaWriteWithImm;
        if takes_receive {
            let srq = self.qps[peer].srq.expect("a shared receive queue");
            if self.srqs[srq].receives == 0 {
                self.rnr += 1;
                return Step::Rnr;
            }
            self.srqs[srq].receives -= 1;
        }
        self.copy(at, peer, request);
        self.log.push((at, *request));
        if takes_receive {
            let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
            let completion = Completion {
                byte_len: request.sge.length(),
                imm: request.imm,
                wc_flags: WcFlags::WITH_IMM,
                ..Completion::success(0, POOL_WR_ID, opcode)
            };
            self.complete(peer, completion);
        }
        Step::Done
    }

    fn copy(&mut self, at: usize, peer: usize, request: &SendRequest) {
        let length = u64::from(request.sge.length());
        if length == 0 {
            return;
        }
        let (here, there) = (self.qps[at].device, self.qps[peer].device);
        let local = self.find(request.sge.lkey(), here, request.sge.addr(), length);
        let (local, local_at) = local.expect("a good lkey");
        let remote = self.find(request.rkey, there, request.remote_addr, length);
        let (remote, remote_at) = remote.expect("a good rkey");
        if matches!((&local, &remote), (Block::Phantom(..), Block::Phantom(..))) {
            return;
        }
        let mut bytes = vec![0; length as usize];
        if request.opcode == Opcode::RdmaRead {
            remote.read(remote_at, &mut bytes);
            return;
        }
        local.read(local_at, &mut bytes);
        if self.tears && matches!(remote, Block::Words(_)) && request.opcode == Opcode::RdmaWrite {
            for (at, word) in (0..).step_by(8).zip(bytes.chunks_exact(8)) {
                let word = word.try_into().expect("8 bytes");
                self.kept.push((request.rkey, request.remote_addr + at, word));
            }
        } else {
            remote.write(remote_at, &bytes);
        }
    }

    fn acknowledge(&mut self, at: usize) -> Step {
        let qp = &mut self.qps[at];
        if qp.is_error || !qp.sends.front().is_some_and(|sent| sent.executed) {
            return Step::Idle;
        }
        let request = qp.sends.pop_front().expect("there is one").request;
        if request.flags.contains(SendFlags::SIGNALED) {
            let opcode = request.opcode.completion();
            self.complete(at, Completion::success(0, request.wr_id, opcode));
        }
        Step::Done
    }

    fn flush(&mut self, at: usize, first: WcStatus) {
        self.qps[at].is_error = true;
        let mut status = first;
        while let Some(sent) = self.qps[at].sends.pop_front() {
            let signaled = sent.request.flags.contains(SendFlags::SIGNALED);
            if signaled || self.qps[at].flushes_all || status != WcStatus::WR_FLUSH_ERR {
                self.complete(at, Completion::failure(0, sent.request.wr_id, status, 0));
            }
            status = WcStatus::WR_FLUSH_ERR;
            if !sent.executed {
                self.stragglers.push((at, sent.request));
            }
        }
    }

    fn post(&mut self, at: usize, batch: &[SendRequest]) -> Result<(), CommitError> {
        let qp = &mut self.qps[at];
        assert!(!batch.is_empty(), "no doorbell without a request");
        assert!(!qp.said_word, "nothing is posted after the word");
        let refused = qp.refusals.pop_front();
        let refused = refused.filter(|error| (error.accepted as usize) < batch.len());
        for (accepted, request) in (0..).zip(batch) {
            if let Some(error) = refused.filter(|error| error.accepted == accepted) {
                return Err(error);
            }
            assert!(qp.sends.len() < qp.limits.max_send_wr as usize, "credits");
            assert!(request.wr_id & ENGINE_WR_ID != 0);
            qp.sends.push_back(Sent { request: *request, executed: false });
        }
        if qp.is_error {
            // What is posted in the error state never leaves.
            let stragglers = self.stragglers.len();
            self.flush(at, WcStatus::WR_FLUSH_ERR);
            self.stragglers.truncate(stragglers);
        }
        Ok(())
    }
}

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
        world.cqs.push(Cq { entries, capacity });
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

/// Steps. Queue pairs are named by their places.
impl Fabric {
    /// The oldest request that was not executed is.
    pub(crate) fn execute(&self, at: usize) -> Step {
        self.0.borrow_mut().execute(at, false)
    }

    /// The same, whatever state the ends are in, unless the peer's driver gave its word.
    pub(crate) fn execute_late(&self, at: usize) -> Step {
        self.0.borrow_mut().execute(at, true)
    }

    /// The oldest request of a queue pair that failed arrives after all. `late`: even though its peer is in
    /// the error state, unless that one's driver gave its word.
    pub(crate) fn straggle(&self, at: usize, late: bool) -> Step {
        let mut world = self.0.borrow_mut();
        let Some(first) = world.stragglers.iter().position(|(from, _)| *from == at) else {
            return Step::Idle;
        };
        let request = world.stragglers[first].1;
        let step = world.carry_out(at, &request, late);
        if step == Step::Done {
            world.stragglers.remove(first);
        }
        step
    }

    /// Lets stragglers arrive wherever anybody answers. Returns whether one did.
    pub(crate) fn straggle_any(&self) -> bool {
        (0..self.queue_pairs()).any(|at| self.straggle(at, true) == Step::Done)
    }

    /// The oldest request that was executed completes.
    pub(crate) fn acknowledge(&self, at: usize) -> Step {
        self.0.borrow_mut().acknowledge(at)
    }

    /// Executes and acknowledges all that can be, and returns whether there was anything. Requests to peers
    /// that do not answer fail.
    pub(crate) fn run(&self) -> bool {
        let queue_pairs = self.0.borrow().qps.len();
        let mut has_run = false;
        loop {
            let mut any = false;
            for at in 0..queue_pairs {
                match self.execute(at) {
                    Step::Done => any = true,
                    Step::Dead => self.fail(at, WcStatus::RETRY_EXC_ERR),
                    Step::Idle | Step::Rnr => {}
                }
                any |= self.acknowledge(at) == Step::Done;
            }
            if !any {
                return has_run;
            }
            has_run = true;
        }
    }

    /// Executes and acknowledges all of one queue pair.
    pub(crate) fn run_only(&self, at: usize) {
        while self.execute(at) == Step::Done || self.acknowledge(at) == Step::Done {}
    }

    /// The oldest request fails, and the rest are flushed.
    pub(crate) fn fail(&self, at: usize, status: WcStatus) {
        self.0.borrow_mut().flush(at, status);
    }

    /// Its driver does not give its word for now.
    pub(crate) fn hold_word(&self, at: usize, holds: bool) {
        self.0.borrow_mut().qps[at].holds_word = holds;
    }

    pub(crate) fn refuse_error(&self, at: usize, refusal: Option<Refusal>) {
        self.0.borrow_mut().qps[at].error_refusal = refusal;
    }

    /// Requests that were not signaled are flushed without a completion.
    pub(crate) fn flush_signaled_only(&self, at: usize) {
        self.0.borrow_mut().qps[at].flushes_all = false;
    }

    /// The next commit of this queue pair stops after `accepted` requests.
    pub(crate) fn refuse(&self, at: usize, accepted: u32, refusal: Refusal) {
        self.0.borrow_mut().qps[at].refusals.push_back(CommitError { accepted, refusal });
    }

    /// The next commit of this shared receive queue stops after `accepted` receives.
    pub(crate) fn refuse_receives(&self, srq: usize, accepted: u32, refusal: Refusal) {
        self.0.borrow_mut().srqs[srq].refusals.push_back(CommitError { accepted, refusal });
    }

    /// A queue pair that dies takes a shared receive with it.
    pub(crate) fn take_receive(&self, at: usize) {
        let mut world = self.0.borrow_mut();
        let srq = world.qps[at].srq.expect("a shared receive queue");
        world.srqs[srq].receives -= 1;
        let status = WcStatus::WR_FLUSH_ERR;
        world.complete(at, Completion::failure(0, POOL_WR_ID, status, 0));
    }

    /// The next commits of this shared receive queue take nothing.
    pub(crate) fn refuse_receives_of(&self, srq: usize, commits: usize) {
        (0..commits).for_each(|_| self.refuse_receives(srq, 0, Refusal::QueueFull));
    }

    /// A queue pair is no more: it executes nothing, and completes nothing.
    pub(crate) fn kill(&self, at: usize) {
        let qp = &mut self.0.borrow_mut().qps[at];
        (qp.is_error, qp.said_word) = (true, true);
        qp.sends.clear();
    }

    /// What waits in a completion queue is lost with its device.
    pub(crate) fn lose_completions(&self, cq: usize) {
        self.0.borrow_mut().cqs[cq].entries.clear();
    }

    /// [`deliver`](Self::deliver) of an immediate.
    pub(crate) fn deliver_imm(&self, at: usize, imm: Imm, byte_len: u32) {
        let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
        let wc_flags = WcFlags::WITH_IMM;
        self.deliver(
            at,
            Completion { imm, byte_len, wc_flags, ..Completion::success(0, 0, opcode) },
        );
    }

    /// The same, if it is dying, its driver gave no word, and there is a receive. Returns whether it did.
    pub(crate) fn die_with_receive(&self, at: usize) -> bool {
        let world = self.0.borrow();
        let qp = &world.qps[at];
        let takes = qp.is_error && !qp.said_word;
        let is_there = qp.srq.is_some_and(|srq| world.srqs[srq].receives > 0);
        drop(world);
        if takes && is_there {
            self.take_receive(at);
        }
        takes && is_there
    }

    /// An immediate comes that no sender of ours sent.
    pub(crate) fn deliver(&self, at: usize, completion: Completion) {
        let mut world = self.0.borrow_mut();
        let srq = world.qps[at].srq.expect("a shared receive queue");
        assert!(world.srqs[srq].receives > 0, "the pool is dry");
        world.srqs[srq].receives -= 1;
        world.complete(at, Completion { wr_id: POOL_WR_ID, ..completion });
    }

    /// Writes to words are kept back from now on, to be shown one by one.
    pub(crate) fn tear(&self, tears: bool) {
        self.0.borrow_mut().tears = tears;
    }

    /// How many words are kept back, of those that are not what is there anyway.
    pub(crate) fn hidden(&self) -> usize {
        let mut world = self.0.borrow_mut();
        let kept = std::mem::take(&mut world.kept);
        let differs = |(key, addr, word): &(u32, u64, [u8; 8])| {
            let device = world.memory[*key as usize - 1].device;
            let (block, offset) = world.find(*key, device, *addr, 8).expect("it was found");
            let mut there = [0; 8];
            block.read(offset, &mut there);
            there != *word
        };
        let kept = kept.into_iter().filter(differs).collect::<Vec<_>>();
        world.kept = kept;
        world.kept.len()
    }

    /// Shows one of the words that are kept back.
    pub(crate) fn show(&self, which: usize) {
        let mut world = self.0.borrow_mut();
        let (key, addr, word) = world.kept.remove(which);
        let device = world.memory[key as usize - 1].device;
        let (block, offset) = world.find(key, device, addr, 8).expect("it was found before");
        block.write(offset, &word);
    }

    /// Writes words past all queue pairs.
    pub(crate) fn put(&self, addr: u64, words: &[AtomicU64]) {
        let world = self.0.borrow();
        let mut blocks = world.memory.iter().map(|region| &region.block);
        let covers = |block: &&Block| (block.addr()..block.addr() + block.len()).contains(&addr);
        let block = blocks.find(covers).expect("registered memory");
        for (at, word) in (0..).step_by(8).zip(words) {
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            block.write(addr - block.addr() + at, &bytes);
        }
    }
}

/// What happened.
impl Fabric {
    pub(crate) fn is_error(&self, at: usize) -> bool {
        self.0.borrow().qps[at].is_error
    }

    /// Requests that are posted and did not complete.
    pub(crate) fn posted(&self, at: usize) -> Vec<SendRequest> {
        self.0.borrow().qps[at].sends.iter().map(|sent| sent.request).collect()
    }

    /// Requests executed since the last call: queue pair and request.
    pub(crate) fn take_log(&self) -> Vec<(usize, SendRequest)> {
        std::mem::take(&mut self.0.borrow_mut().log)
    }

    /// Forgets what was executed.
    pub(crate) fn clear_log(&self) {
        self.0.borrow_mut().log.clear();
    }

    pub(crate) fn reserve(&self) {
        let mut world = self.0.borrow_mut();
        world.log.reserve(1 << 16);
        world.stragglers.reserve(1 << 12);
        world.srqs.iter_mut().for_each(|srq| srq.batches.reserve(1 << 16));
    }

    pub(crate) fn queue_pairs(&self) -> usize {
        self.0.borrow().qps.len()
    }

    /// Receives in a shared queue.
    pub(crate) fn receives(&self, srq: usize) -> u32 {
        self.0.borrow().srqs[srq].receives
    }

    /// Sizes of the batches of receives since the last call.
    pub(crate) fn take_batches(&self, srq: usize) -> Vec<u32> {
        std::mem::take(&mut self.0.borrow_mut().srqs[srq].batches)
    }

    /// Receive completions that wait in a completion queue.
    pub(crate) fn untaken_receives(&self, cq: usize) -> u32 {
        let world = self.0.borrow();
        let receives = world.cqs[cq].entries.iter().filter(|entry| entry.wr_id == POOL_WR_ID);
        receives.count() as u32
    }

    /// How often a request found no receive.
    pub(crate) fn rnr(&self) -> u32 {
        self.0.borrow().rnr
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
        let qp = &mut self.fabric.0.borrow_mut().qps[self.at];
        assert!(qp.is_error && qp.sends.is_empty(), "asked for too early");
        qp.said_word |= !qp.holds_word;
        Ok(qp.said_word)
    }
}

/// A handle of a shared receive queue. Clones are the same queue.
#[derive(Clone)]
pub(crate) struct TestSrq {
    fabric: Fabric,
    pub(crate) at: usize,
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
        let count = out.len().min(cq.entries.len());
        for place in &mut out[..count] {
            place.write(cq.entries.pop_front().expect("as many as were counted"));
        }
        // SAFETY: the first `count` were written above.
        Ok(unsafe { out[..count].assume_init_ref() })
    }
}
