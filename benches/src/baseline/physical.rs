//! One physical queue pair and the deques that correlate its completions.

use super::request::Error;
use polyrail_core::hardware::{QueuePair, RecvBatch, SendBatch};
use polyrail_core::verbs::{DeviceId, RecvRequest, SendRequest, Sge};
use std::collections::VecDeque;

/// A request in flight (`PhysicalWrStatus`).
#[derive(Clone, Copy, Debug)]
struct InFlight {
    physical_wr_id: u64,
    virtual_wr_id: u64,
}

/// A queue pair with what is in flight on it (`IbvQp`).
#[derive(Debug)]
pub struct PhysicalQp<Q> {
    qp: Q,
    sends: VecDeque<InFlight>,
    recvs: VecDeque<InFlight>,
}

impl<Q: QueuePair> PhysicalQp<Q> {
    pub(super) fn new(qp: Q) -> Self {
        Self { qp, sends: VecDeque::new(), recvs: VecDeque::new() }
    }

    /// Its number.
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// Its device.
    pub fn device(&self) -> DeviceId {
        self.qp.device()
    }

    /// Sends in flight.
    pub fn outstanding_sends(&self) -> usize {
        self.sends.len()
    }

    /// Posts one request with one doorbell.
    pub(super) fn post_send(&mut self, request: &SendRequest) -> Result<(), Error> {
        let mut batch = self.qp.start_send();
        batch.add(request);
        Ok(batch.commit()?)
    }

    /// Posts one request of a tracked one.
    pub(super) fn post_tracked(
        &mut self,
        request: &SendRequest,
        virtual_wr_id: u64,
    ) -> Result<(), Error> {
        self.post_send(request)?;
        self.sends.push_back(InFlight { physical_wr_id: request.wr_id, virtual_wr_id });
        Ok(())
    }

    /// Posts one zero-length receive.
    pub(super) fn post_recv(&mut self, wr_id: u64) -> Result<(), Error> {
        let mut batch = self.qp.start_recv();
        batch.add(&RecvRequest { wr_id, sge: Sge::EMPTY });
        batch.commit()?;
        // It belongs to no particular request: sequence numbers identify the request that it ends.
        self.recvs.push_back(InFlight { physical_wr_id: wr_id, virtual_wr_id: u64::MAX });
        Ok(())
    }

    /// Takes the front send off. Returns the id of its request.
    pub(super) fn pop_send(&mut self, wr_id: u64) -> Result<u64, Error> {
        pop(&mut self.sends, wr_id)
    }

    /// Takes the front receive off.
    pub(super) fn pop_recv(&mut self, wr_id: u64) -> Result<u64, Error> {
        pop(&mut self.recvs, wr_id)
    }
}

fn pop(queue: &mut VecDeque<InFlight>, wr_id: u64) -> Result<u64, Error> {
    match queue.front() {
        Some(front) if front.physical_wr_id == wr_id => {
            let owner = front.virtual_wr_id;
            queue.pop_front();
            Ok(owner)
        }
        _ => Err(Error::OutOfOrder),
    }
}
