//! What drivers take and refuse.

use super::{Entry, Fabric, NO_CONNECTION, Name, Nics, Sent, SimSrq, device_id};
use crate::nic::{CqInfo, Devices, EIO, Lists, QpInfo};
use crate::p2p::memory::Kind;
use crate::p2p::shape::MOST;
use crate::p2p::trouble::spend;
use polyrail_core::hardware::{CommitError, CqId, ENGINE_WR_ID, Refusal};
use polyrail_core::p2p::POOL_WR_ID;
use polyrail_core::verbs::{Completion, RecvRequest, SendFlags, SendRequest, WcStatus};

/// Places of shared receive queues: one behind the other, of all devices each.
const SRQS: usize = 2 * MOST;

/// A handle of the shared receive queue that a device has now.
pub(in crate::p2p) fn srq(nics: &Nics, at: usize) -> SimSrq {
    let generation = nics.borrow().srqs[at].generation;
    SimSrq::new(nics, at + SRQS * generation as usize)
}

// SAFETY: they touch no memory but words that are their own.
unsafe impl Devices for Fabric {
    fn qp(&self, at: usize) -> QpInfo {
        let Name { host, device, .. } = self.qps[at].name;
        let cq = CqId(self.cq_of(at) as u64);
        let (qp_num, limits) = (self.qps[at].qp_num, self.qps[at].limits);
        QpInfo { qp_num, device: device_id(host, device), cq, limits }
    }

    fn cq(&self, at: usize) -> CqInfo {
        let device = device_id(at / MOST, at % MOST);
        CqInfo { id: CqId(at as u64), device, capacity: self.cqs[at].capacity }
    }

    fn post_sends(
        &mut self,
        at: usize,
        batch: &[SendRequest],
        _lists: &mut Lists,
    ) -> Result<(), CommitError> {
        let inline: Vec<_> = batch.iter().map(|request| self.inline(at, request)).collect();
        let qp = &mut self.qps[at];
        if qp.is_gone {
            self.has_refused = true;
            qp.has_refused = true;
            return Err(CommitError { accepted: 0, refusal: Refusal::Driver(EIO) });
        }
        assert!(!qp.said_word, "nothing is posted after the driver's word");
        let is_engines = |request: &SendRequest| request.wr_id & ENGINE_WR_ID != 0;
        let is_bystanders = qp.name.connection == NO_CONNECTION;
        assert!(is_bystanders || batch.iter().all(is_engines), "{batch:?}");
        let longest = batch.iter().map(|request| request.sge.length()).max();
        assert!(longest.unwrap_or(0) <= qp.limits.max_msg_size, "a message that is too long");
        let answer = answer(qp.mood.take(), batch.len());
        self.has_refused |= answer.is_err();
        qp.has_refused |= answer.is_err();
        let accepted = answer.map_or_else(|error| error.accepted, |()| batch.len() as u32);
        qp.slots += accepted;
        qp.posted += u64::from(accepted);
        self.posted += u64::from(accepted);
        assert!(qp.slots <= qp.limits.max_send_wr, "a send queue overflows: {:?}", qp.name);
        let taken = batch.iter().zip(inline).take(accepted as usize);
        let sent =
            taken.map(|(request, inline)| Sent { request: *request, is_executed: false, inline });
        qp.sent.extend(sent);
        if qp.in_error {
            self.flush(at, WcStatus::WR_FLUSH_ERR);
        }
        answer
    }

    fn post_shared(&mut self, place: usize, batch: &[RecvRequest]) -> Result<(), CommitError> {
        let is_pools =
            |receive: &RecvRequest| receive.wr_id == POOL_WR_ID && receive.sge.length() == 0;
        assert!(batch.iter().all(is_pools), "{batch:?}");
        let (srq, generation, count) = (place % SRQS, place / SRQS, batch.len());
        if self.is_dead[srq] || self.srqs[srq].generation as usize != generation {
            self.has_refused = true;
            return Err(CommitError { accepted: 0, refusal: Refusal::Driver(EIO) });
        }
        let mood = self.srqs[srq].mood;
        self.srqs[srq].mood =
            mood.filter(|(_, left)| *left > 1).map(|(mood, left)| (mood, left - 1));
        let answer = answer(mood.map(|(mood, _)| mood), count);
        self.has_refused |= answer.is_err();
        let accepted = answer.map_or_else(|error| error.accepted, |()| count as u32);
        self.srqs[srq].receives += accepted;
        assert!(self.srqs[srq].receives <= self.receives, "a shared receive queue overflows");
        answer
    }

    fn enter_error(&mut self, at: usize) -> Result<(), Refusal> {
        let qp = &mut self.qps[at];
        if qp.is_gone {
            return Err(Refusal::Driver(EIO));
        }
        if qp.keeps_working > 0 {
            qp.keeps_working -= 1;
            return Err(Refusal::Driver(EIO));
        }
        self.fail(at, WcStatus::WR_FLUSH_ERR);
        Ok(())
    }

    fn last_wqe_reached(&mut self, at: usize) -> Result<bool, Refusal> {
        let qp = &mut self.qps[at];
        if qp.is_gone {
            return Err(Refusal::Driver(EIO));
        }
        assert!(qp.in_error && qp.sent.is_empty() && qp.slots == 0, "asked for too early");
        let is_early = qp.word_after > 0;
        qp.word_after -= u32::from(is_early);
        qp.said_word = !is_early;
        // All completions that the driver has were taken.
        let cq = self.cq_of(at);
        self.reveal(cq, usize::MAX);
        Ok(self.qps[at].said_word)
    }

    fn destroy(&mut self, at: usize) {
        let cq = self.cq_of(at);
        let waits = self.cqs[cq].entries.iter().any(|entry| entry.at == at);
        let is_excused = self.qps[at].is_gone || self.is_abandoned || std::thread::panicking();
        assert!(!waits || is_excused, "a queue pair is destroyed too early");
        self.remove(at);
        self.qps[at].is_destroyed = true;
    }

    fn find(&mut self, cq: usize, most: usize) -> Result<usize, i32> {
        if spend(&mut self.cqs[cq].fails) { Err(EIO) } else { Ok(most.min(self.cqs[cq].visible)) }
    }

    fn take(&mut self, cq: usize) -> Option<Completion> {
        let queue = &mut self.cqs[cq];
        queue.visible -= 1;
        let Entry { at, completion, frees } = queue.entries.pop_front()?;
        queue.receives -= u32::from(completion.wr_id == POOL_WR_ID);
        self.qps[at].slots -= frees;
        self.moved += 1;
        Some(completion)
    }
}

impl Fabric {
    /// The words that a request brings along.
    fn inline(&self, at: usize, request: &SendRequest) -> Option<Vec<u64>> {
        let (sge, qp) = (&request.sge, &self.qps[at]);
        if !request.flags.contains(SendFlags::INLINE) {
            return None;
        }
        assert!(sge.length() <= qp.limits.max_inline_data, "too much to bring along");
        let place = (qp.name.host, qp.name.device);
        let found = self.memory.find(place, sge.lkey(), sge.addr(), sge.length());
        let (block, offset) = found.expect("words of this end");
        match &self.memory.block(block).kind {
            Kind::Words(words) => Some(words.read(offset as usize / 8, sge.length() as usize / 8)),
            // Its contents follow from its address.
            Kind::Source(source) => {
                assert!(source.is_readable, "a request brings bytes that nobody can read");
                None
            }
            Kind::Target(_) => panic!("a buffer to receive into is sent"),
        }
    }
}

/// What a driver answers to a batch.
fn answer(mood: Option<CommitError>, count: usize) -> Result<(), CommitError> {
    match mood {
        Some(error) => Err(CommitError { accepted: error.accepted.min(count as u32 - 1), ..error }),
        None => Ok(()),
    }
}
