//! What devices do with requests: they are executed, acknowledged and flushed.

use super::{Block, Step, World};
use polyrail_core::p2p::POOL_WR_ID;
use polyrail_core::verbs::{
    Completion, Opcode, SendFlags, SendRequest, WcFlags, WcOpcode, WcStatus,
};

impl World {
    pub(super) fn find(&self, key: u32, device: u32, addr: u64, len: u64) -> Option<(Block, u64)> {
        let region = self.memory.get((key as usize).checked_sub(1)?)?;
        let offset = addr.checked_sub(region.block.addr())?;
        let fits = offset.checked_add(len)? <= region.block.len() && region.device == device;
        fits.then(|| (region.block.clone(), offset))
    }

    pub(super) fn complete(&mut self, at: usize, completion: Completion) {
        let qp_num = at as u32 + 1;
        let cq = &mut self.cqs[self.qps[at].cq];
        assert!(cq.entries.len() < cq.capacity as usize, "the completion queue overruns");
        cq.entries.push_back(Completion { qp_num, ..completion });
    }

    pub(super) fn execute(&mut self, at: usize, even_in_error: bool) -> Step {
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

    pub(super) fn carry_out(
        &mut self,
        at: usize,
        request: &SendRequest,
        even_in_error: bool,
    ) -> Step {
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

    pub(super) fn acknowledge(&mut self, at: usize) -> Step {
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

    pub(super) fn flush(&mut self, at: usize, first: WcStatus) {
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
}
