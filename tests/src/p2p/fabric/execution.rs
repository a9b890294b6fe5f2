//! What a NIC does for its peer: requests are executed in their order, and take receives.

use super::{Executed, Fabric, Sent, Step};
use crate::p2p::memory::Kind;
use crate::p2p::shape::MOST;
use polyrail_core::p2p::POOL_WR_ID;
use polyrail_core::verbs::{Completion, Imm, Opcode, SendFlags, SendRequest, WcFlags, WcOpcode};

/// Where in memory: a block, and an offset in it.
type Place = (usize, u32);

impl Fabric {
    /// Whether a queue pair answers the one that it is connected to.
    fn answers(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        !qp.is_gone && (!qp.in_error || (qp.takes_one_more && !qp.said_word))
    }

    fn next(&self, at: usize) -> Option<&Sent> {
        let qp = &self.qps[at];
        if qp.in_error {
            return qp.stragglers.front();
        }
        qp.sent.iter().find(|sent| !sent.is_executed)
    }

    /// The requests of a queue pair that have no answer yet.
    pub(in crate::p2p) fn requests(&self, at: usize) -> impl Iterator<Item = &SendRequest> {
        self.qps[at].sent.iter().map(|sent| &sent.request)
    }

    /// Whether the peer can be asked to execute the next request of a queue pair.
    pub(in crate::p2p) fn can_execute(&self, at: usize) -> bool {
        let answered = self.qps[at].peer.is_some_and(|peer| self.answers(peer));
        answered && self.next(at).is_some()
    }

    /// Whether a queue pair has requests on their way.
    pub(in crate::p2p) fn has_sent(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        !qp.in_error && qp.sent.iter().any(|sent| !sent.is_executed)
    }

    /// Whether a queue pair waits for an answer that does not come.
    pub(in crate::p2p) fn is_unanswered(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        let is_dead = |peer: usize| self.qps[peer].is_gone || self.qps[peer].in_error;
        !qp.in_error && !qp.is_gone && !qp.sent.is_empty() && qp.peer.is_some_and(is_dead)
    }

    /// The peer executes the next request of a queue pair, if it can.
    pub(in crate::p2p) fn execute(&mut self, at: usize) -> Step {
        let sent = self.next(at).expect("it can be executed").clone();
        let request = sent.request;
        let peer = self.qps[at].peer.expect("it is connected");
        let Some((local, remote)) = self.places(at, peer, &request) else {
            return Step::BadAccess;
        };
        if request.opcode == Opcode::RdmaWriteWithImm {
            let cq = self.cq_of(peer);
            if self.srqs[cq].receives == 0 {
                return Step::NoReceive;
            }
            self.deliver(peer, request.imm, request.sge.length(), WcOpcode::RECV_RDMA_WITH_IMM);
        }
        let mut entries = Vec::new();
        if let (Some(local), Some(remote)) = (local, remote) {
            let is_honest = self.qps[at].is_honest;
            entries = self.copy_words(local, remote, &sent, is_honest).unwrap_or_default();
        }
        self.moved += 1;
        let qp = &mut self.qps[at];
        let is_straggler = qp.in_error;
        if is_straggler {
            qp.stragglers.pop_front();
        } else {
            let next = qp.sent.iter_mut().find(|sent| !sent.is_executed);
            next.expect("there is one").is_executed = true;
        }
        if self.qps[peer].in_error {
            self.qps[peer].takes_one_more = false;
        }
        Step::Done(Executed { request, remote, local, is_straggler, entries })
    }

    /// Where a request reads and writes; `None` if it may not.
    fn places(
        &self,
        at: usize,
        peer: usize,
        request: &SendRequest,
    ) -> Option<(Option<Place>, Option<Place>)> {
        let length = request.sge.length();
        if length == 0 {
            return Some((None, None));
        }
        let [near, far] = [at, peer].map(|at| &self.qps[at].name);
        let (lkey, addr) = (request.sge.lkey(), request.sge.addr());
        let local = self.memory.find((near.host, near.device), lkey, addr, length);
        let is_inline = request.flags.contains(SendFlags::INLINE);
        assert!(local.is_some() || is_inline, "an lkey that does not fit: {request:?} of {near:?}");
        let place = (far.host, far.device);
        let remote = self.memory.find(place, request.rkey, request.remote_addr, length)?;
        // Keys that a peer made up may fit by chance.
        let block = self.memory.block(remote.0);
        let is_own = block.connection == near.connection && !matches!(block.kind, Kind::Source(_));
        is_own.then_some((local, Some(remote)))
    }

    /// A receive is taken by an immediate.
    pub(in crate::p2p) fn deliver(&mut self, at: usize, imm: Imm, byte_len: u32, opcode: WcOpcode) {
        self.srqs[self.qps[at].name.device + self.qps[at].name.host * MOST].receives -= 1;
        let completion = Completion {
            byte_len,
            imm,
            wc_flags: WcFlags::WITH_IMM,
            ..Completion::success(self.qps[at].qp_num, POOL_WR_ID, opcode)
        };
        self.push(at, completion, 0);
    }
}
