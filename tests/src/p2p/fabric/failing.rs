//! Queue pairs that fail, and what is gone: what had left is on its way still, and the rest is
//! flushed.

use super::{Fabric, Name, Sent, Srq, device_at};
use crate::p2p::memory::Kind;
use polyrail_core::p2p::POOL_WR_ID;
use polyrail_core::verbs::{Completion, Imm, SendFlags, WcFlags, WcOpcode, WcStatus};

impl Fabric {
    /// A queue pair goes to the error state; its oldest request fails with this status, the others
    /// are flushed.
    pub(in crate::p2p) fn fail(&mut self, at: usize, status: WcStatus) {
        let qp = &mut self.qps[at];
        if qp.is_gone {
            return;
        }
        if !qp.in_error {
            qp.in_error = true;
            let left = qp.sent.iter().filter(|sent| !sent.is_executed);
            qp.stragglers = left.cloned().collect();
            self.freeze_stragglers(at);
        }
        self.flush(at, status);
    }

    /// What has left was read.
    fn freeze_stragglers(&mut self, at: usize) {
        let Self { memory, qps, .. } = self;
        let Name { host, device, .. } = qps[at].name;
        for Sent { request, inline, .. } in &mut qps[at].stragglers {
            let sge = &request.sge;
            let found = memory.find((host, device), sge.lkey(), sge.addr(), sge.length());
            let Some((block, offset)) = found.filter(|_| sge.length() > 0) else { continue };
            if let (Kind::Words(words), None) = (&memory.block(block).kind, &inline) {
                *inline = Some(words.read(offset as usize / 8, sge.length() as usize / 8));
            }
        }
    }

    pub(super) fn flush(&mut self, at: usize, mut status: WcStatus) {
        while let Some(sent) = self.qps[at].sent.pop_front() {
            let qp = &mut self.qps[at];
            let is_signaled = sent.request.flags.contains(SendFlags::SIGNALED);
            if !is_signaled && !self.flushes_all && status == WcStatus::WR_FLUSH_ERR {
                qp.silent += 1;
                continue;
            }
            let frees = 1 + std::mem::take(&mut qp.silent);
            let completion = noise(Completion::failure(qp.qp_num, sent.request.wr_id, status, 7));
            self.push(at, completion, frees);
            status = WcStatus::WR_FLUSH_ERR;
        }
    }

    /// Whether a queue pair that dies can take a shared receive with it.
    pub(in crate::p2p) fn can_take(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        let has_shared = qp.name.is_receivers && !qp.name.is_for_flushes;
        let is_dying = qp.in_error && !qp.said_word && !qp.is_gone;
        has_shared && is_dying && self.srqs[self.cq_of(at)].receives > 0
    }

    /// A queue pair that dies takes a shared receive with it.
    pub(in crate::p2p) fn take_receive(&mut self, at: usize) {
        let cq = self.cq_of(at);
        self.srqs[cq].receives -= 1;
        self.srqs[cq].is_robbed = true;
        let completion =
            Completion::failure(self.qps[at].qp_num, POOL_WR_ID, WcStatus::WR_FLUSH_ERR, 7);
        self.push(at, noise(completion), 0);
    }

    /// A queue pair is destroyed. What had left it may still be on its way.
    pub(in crate::p2p) fn remove(&mut self, at: usize) {
        let qp = &mut self.qps[at];
        if !qp.in_error {
            qp.in_error = true;
            let left = qp.sent.iter().filter(|sent| !sent.is_executed);
            qp.stragglers = left.cloned().collect();
            self.freeze_stragglers(at);
        }
        let qp = &mut self.qps[at];
        qp.is_gone = true;
        qp.sent.clear();
    }

    /// A device is gone, with everything that was on it, and with all completions that were not
    /// taken.
    pub(in crate::p2p) fn remove_device(&mut self, host: usize, device: usize) {
        for at in 0..self.qps.len() {
            let Name { host: other, device: place, .. } = self.qps[at].name;
            if (other, place) == (host, device) {
                self.remove(at);
            }
        }
        let at = device_at(host, device);
        self.is_dead[at] = true;
        self.cqs[at].entries.clear();
        self.cqs[at].receives = 0;
        self.cqs[at].visible = 0;
        let generation = self.srqs[at].generation + 1;
        self.srqs[at] = Srq { generation, ..Srq::default() };
    }
}

/// A failed completion has rubbish in every field that verbs leaves undefined.
fn noise(completion: Completion) -> Completion {
    let noise = (completion.wr_id as u32 ^ completion.qp_num).wrapping_mul(0x9E37_79B9);
    Completion {
        opcode: WcOpcode(noise % 256),
        byte_len: noise,
        imm: Imm::from_number(noise & 0xFFFF),
        src_qp: !noise,
        wc_flags: WcFlags::from_bits_retain(noise | WcFlags::WITH_IMM.bits()),
        ..completion
    }
}
