//! Requests complete, and completions become visible.

use super::{Cq, Entry, Fabric};
use polyrail_core::p2p::POOL_WR_ID;
use polyrail_core::verbs::{Completion, SendFlags};

impl Fabric {
    pub(in crate::p2p) fn can_acknowledge(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        !qp.in_error && qp.sent.front().is_some_and(|sent| sent.is_executed)
    }

    /// The oldest request completes.
    pub(in crate::p2p) fn acknowledge(&mut self, at: usize) {
        let qp = &mut self.qps[at];
        let request = qp.sent.pop_front().expect("it was executed").request;
        qp.silent += 1;
        self.moved += 1;
        if request.flags.contains(SendFlags::SIGNALED) {
            let frees = std::mem::take(&mut qp.silent);
            let opcode = request.opcode.completion();
            let completion = Completion::success(qp.qp_num, request.wr_id, opcode);
            self.push(at, completion, frees);
        }
    }

    pub(super) fn push(&mut self, at: usize, completion: Completion, frees: u32) {
        let cq = self.cq_of(at);
        let Cq { entries, receives, capacity, .. } = &mut self.cqs[cq];
        assert!(entries.len() < *capacity as usize, "a completion queue overruns");
        *receives += u32::from(completion.wr_id == POOL_WR_ID);
        entries.push_back(Entry { at, completion, frees });
    }

    /// So many more completions of a queue become visible.
    pub(in crate::p2p) fn reveal(&mut self, cq: usize, most: usize) {
        let Cq { entries, visible, .. } = &mut self.cqs[cq];
        *visible = visible.saturating_add(most).min(entries.len());
    }

    pub(in crate::p2p) fn waiting(&self, cq: usize) -> usize {
        self.cqs[cq].entries.len()
    }
}
