//! Steps, as tests choose them: what happens next, and what goes wrong.

use super::{Block, Fabric, Step};
use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::p2p::POOL_WR_ID;
use polyrail_core::verbs::{Completion, Imm, WcFlags, WcOpcode, WcStatus};
use std::sync::atomic::{AtomicU64, Ordering};

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

    /// The oldest request of a queue pair that failed arrives after all. `late`: even though its
    /// peer is in the error state, unless that one's driver gave its word.
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

    /// The oldest request that was executed completes.
    pub(crate) fn acknowledge(&self, at: usize) -> Step {
        self.0.borrow_mut().acknowledge(at)
    }

    /// Executes and acknowledges all that can be, and returns whether there was anything. Requests
    /// to peers that do not answer fail.
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

    /// A completion queue cannot be polled for now, or again.
    pub(crate) fn break_queue(&self, cq: usize, is_broken: bool) {
        self.0.borrow_mut().cqs[cq].is_broken = is_broken;
    }

    /// Its driver does not give its word for now.
    pub(crate) fn hold_word(&self, at: usize, holds: bool) {
        self.0.borrow_mut().qps[at].holds_word = holds;
    }

    /// The newest completion of this queue pair appears only when its driver gives its word.
    pub(crate) fn hide_newest(&self, at: usize) {
        let mut world = self.0.borrow_mut();
        let cq = world.qps[at].cq;
        let newest = world.cqs[cq].entries.pop_back().expect("a completion");
        assert_eq!(newest.qp_num, at as u32 + 1, "of this queue pair");
        world.qps[at].hidden.push(newest);
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

    /// A queue pair is destroyed: it executes nothing, and completes nothing.
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
