//! Queues as the engine has them: what they ask of the devices, how they are made, and how memory
//! is registered for them.

use super::{Block, Cq, Fabric, Qp, Registered, Sent, Srq, World};
use crate::nic::{self, CqInfo, Devices, EIO, Lists, QpInfo};
use polyrail_core::hardware::{CommitError, CqId, ENGINE_WR_ID, QpLimits, Refusal};
use polyrail_core::p2p::POOL_WR_ID;
use polyrail_core::verbs::{Completion, DeviceId, RecvRequest, SendRequest, WcStatus};
use std::collections::VecDeque;

pub(crate) type TestQp = nic::Qp<World>;

/// A handle of a shared receive queue. Clones are the same queue.
pub(crate) type TestSrq = nic::Srq<World>;

/// A completion queue. Clones are the same queue.
pub(crate) type TestCq = nic::Cq<World>;

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
        world.cqs.push(Cq { device, entries, capacity, is_broken: false });
        TestCq::new(&self.0, world.cqs.len() - 1)
    }

    pub(crate) fn srq(&self, capacity: u32) -> TestSrq {
        let mut world = self.0.borrow_mut();
        let (refusals, batches) = (VecDeque::new(), Vec::new());
        world.srqs.push(Srq { receives: 0, capacity, refusals, batches });
        TestSrq::new(&self.0, world.srqs.len() - 1)
    }

    pub(crate) fn qp(&self, cq: &TestCq, srq: Option<&TestSrq>, limits: QpLimits) -> TestQp {
        let mut world = self.0.borrow_mut();
        let device = world.cqs[cq.at].device;
        world.qps.push(Qp {
            device,
            cq: cq.at,
            srq: srq.map(|srq| srq.at),
            peer: None,
            limits,
            sends: VecDeque::with_capacity(limits.max_send_wr as usize),
            is_error: false,
            holds_word: false,
            said_word: false,
            hidden: Vec::new(),
            refusals: VecDeque::new(),
            error_refusal: None,
            flushes_all: true,
        });
        TestQp::new(&self.0, world.qps.len() - 1)
    }

    pub(crate) fn connect(&self, left: &TestQp, right: &TestQp) {
        let mut world = self.0.borrow_mut();
        world.qps[left.at].peer = Some(right.at);
        world.qps[right.at].peer = Some(left.at);
    }
}

// SAFETY: memory is shared and checked, and requests complete in order. (What tests inject breaks
// the promises on purpose.)
unsafe impl Devices for World {
    fn qp(&self, at: usize) -> QpInfo {
        let Qp { device, cq, limits, .. } = self.qps[at];
        QpInfo { qp_num: at as u32 + 1, device: DeviceId(device), cq: CqId(cq as u64), limits }
    }

    fn cq(&self, at: usize) -> CqInfo {
        let Cq { device, capacity, .. } = self.cqs[at];
        CqInfo { id: CqId(at as u64), device: DeviceId(device), capacity }
    }

    fn post_sends(
        &mut self,
        at: usize,
        batch: &[SendRequest],
        _lists: &mut Lists,
    ) -> Result<(), CommitError> {
        let qp = &mut self.qps[at];
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

    fn post_shared(&mut self, srq: usize, batch: &[RecvRequest]) -> Result<(), CommitError> {
        let is_pools =
            |receive: &RecvRequest| (receive.wr_id, receive.sge.length()) == (POOL_WR_ID, 0);
        assert!(batch.iter().all(is_pools), "{batch:?}");
        let srq = &mut self.srqs[srq];
        let refused = srq.refusals.pop_front();
        let count = batch.len() as u32;
        let refused = refused.filter(|error| error.accepted < count);
        let accepted = refused.map_or(count, |error| error.accepted);
        assert!(srq.receives + accepted <= srq.capacity, "the shared queue overflows");
        srq.receives += accepted;
        srq.batches.push(accepted);
        refused.map_or(Ok(()), Err)
    }

    fn enter_error(&mut self, at: usize) -> Result<(), Refusal> {
        if let Some(refusal) = self.qps[at].error_refusal {
            return Err(refusal);
        }
        self.flush(at, WcStatus::WR_FLUSH_ERR);
        Ok(())
    }

    fn last_wqe_reached(&mut self, at: usize) -> Result<bool, Refusal> {
        let Self { qps, cqs, .. } = self;
        let qp = &mut qps[at];
        assert!(qp.is_error && qp.sends.is_empty(), "asked for too early");
        qp.said_word |= !qp.holds_word;
        if qp.said_word {
            cqs[qp.cq].entries.extend(qp.hidden.drain(..));
        }
        Ok(qp.said_word)
    }

    fn find(&mut self, cq: usize, most: usize) -> Result<usize, i32> {
        let Cq { entries, is_broken, .. } = &self.cqs[cq];
        if *is_broken { Err(EIO) } else { Ok(most.min(entries.len())) }
    }

    fn take(&mut self, cq: usize) -> Option<Completion> {
        self.cqs[cq].entries.pop_front()
    }
}
