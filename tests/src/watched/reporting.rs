//! What ends on rails, and what is reported of it.

use super::Watched;
use super::fragment::{STRIDE, is_marker, place, units};
use crate::rig::REMOTE;
use polyrail_core::internals::SequenceImm;
use polyrail_core::verbs::{Opcode, SendFlags, SendRequest, WcStatus};
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::QpState;

impl<const RAILS: usize, const DEPTH: usize, const WRS: usize> Watched<RAILS, DEPTH, WRS> {
    /// The next requests of a queue pair end: these.
    pub(super) fn ended(&mut self, qp_num: u32, requests: &[SendRequest], status: WcStatus) {
        let at = self.handles.iter().position(|qp| qp.qp_num() == qp_num).expect("one of ours");
        for request in requests {
            self.silent[at].push(*request);
            if request.flags.contains(SendFlags::SIGNALED) || !status.is_success() {
                std::mem::take(&mut self.silent[at])
                    .iter()
                    .for_each(|request| self.note_completed(request));
            }
            if is_marker(request) {
                continue;
            }
            if self.is_notify(request) {
                let this = &mut self.requests[((request.remote_addr - REMOTE) / STRIDE) as usize];
                this.notify_acknowledged = status.is_success();
                this.notify_error = (!status.is_success()).then_some(status);
                if request.sge.length() == 0 {
                    continue;
                }
            }
            let (id, _) = place(request);
            let this = &mut self.requests[id];
            this.ended += units(request);
            this.error = this.error.or((!status.is_success()).then_some(status));
            if self.span.is_some() && this.opcode == Opcode::RdmaWriteWithImm {
                let number = SequenceImm::decode(request.imm).expect("a number").number.get();
                assert!(self.unacknowledged.remove(&number));
            }
        }
    }

    /// A completion shows that this request ended.
    fn note_completed(&mut self, request: &SendRequest) {
        if is_marker(request) {
            return;
        }
        if self.is_notify(request) {
            let id = ((request.remote_addr - REMOTE) / STRIDE) as usize;
            self.requests[id].notify_completed = true;
            if request.sge.length() == 0 {
                return;
            }
        }
        let (id, _) = place(request);
        self.requests[id].completed += units(request);
        if request.opcode == Opcode::RdmaWriteWithImm
            && let Some(imm) = SequenceImm::decode(request.imm)
        {
            self.incomplete.remove(&imm.number.get());
        }
    }

    pub(super) fn reported(&mut self, wc: &VirtualWc) {
        let id = wc.wr_id as usize;
        let this = &self.requests[id];
        assert!(!this.reported, "{id} is reported twice");
        assert_eq!((wc.opcode, wc.byte_len), (this.opcode.completion(), this.bytes));
        assert_eq!(this.posted, this.ended, "{id} is in flight still");
        let is_done = this.is_done(self.span.is_none());
        if wc.status.is_success() {
            assert!(is_done, "{id} is not done: {this:?}");
            assert!(this.flags.contains(SendFlags::SIGNALED), "{id} is unsignaled");
        } else {
            assert_eq!(self.rig.qp.state(), QpState::Error, "{id} failed, and nothing else");
            // A driver's refusal has no status, and what the driver takes later is still carried
            // out.
            let refused = wc.status == WcStatus::GENERAL_ERR && self.failing;
            let first = !is_done && wc.status == this.expected_error();
            assert!(refused || first, "{id} failed as {wc:?}: {this:?}");
        }
        if this.is_fragmented() && !this.when_done {
            let before = self.requests[..id].iter().filter(|earlier| earlier.is_fragmented());
            // The report of one that is done ahead may wait for budget.
            let due = before.filter(|earlier| {
                earlier.flags.contains(SendFlags::SIGNALED) && !earlier.when_done
            });
            assert!(due.clone().all(|earlier| earlier.reported), "{id} is out of order");
        }
        self.requests[id].reported = true;
    }
}
