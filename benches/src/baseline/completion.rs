//! Completions: correlated, counted, reported in posting order.

use super::request::{Error, VirtualWc};
use super::tracker::ActiveWr;
use super::virtual_qp::VirtualQp;
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::{Completion, WcOpcode};

fn is_send(opcode: WcOpcode) -> bool {
    matches!(opcode, WcOpcode::SEND | WcOpcode::RDMA_WRITE | WcOpcode::RDMA_READ)
}

impl<Q: QueuePair> VirtualQp<Q> {
    /// Processes one completion of one of its queue pairs. Returns the requests that it finishes.
    ///
    /// # Errors
    ///
    /// The completion is unexpected; the requests that it finished are lost.
    pub fn process_completion(&mut self, completion: &Completion) -> Result<Vec<VirtualWc>, Error> {
        let notify = self.notify.as_ref();
        if notify.is_some_and(|notify| notify.qp_num() == completion.qp_num) {
            return self.notify_send_completed(completion);
        }
        let rail = self.rail_by_qp_num.get(&completion.qp_num).copied();
        let rail = rail.ok_or(Error::UnknownQp(completion.qp_num))?;
        if is_send(completion.opcode) {
            self.data_send_completed(rail, completion)
        } else {
            self.data_recv_completed(rail, completion)
        }
    }

    fn notify_send_completed(&mut self, completion: &Completion) -> Result<Vec<VirtualWc>, Error> {
        let mut results = Vec::new();
        let notify = self.notify.as_mut().ok_or(Error::NoNotifyQp)?;
        let id = notify.pop_send(completion.wr_id)?;
        self.sends.find(id)?.complete_one(completion.status, completion.opcode);
        self.report_sends(&mut results)?;
        self.flush_pending_notifies()?;
        Ok(results)
    }

    fn data_send_completed(
        &mut self,
        rail: usize,
        completion: &Completion,
    ) -> Result<Vec<VirtualWc>, Error> {
        let mut results = Vec::new();
        let id = self.rails[rail].pop_send(completion.wr_id)?;
        self.sends.find(id)?.complete_one(completion.status, completion.opcode);
        self.report_sends(&mut results)?;
        self.dispatch_pending_sends(Some(rail))?;
        Ok(results)
    }

    fn data_recv_completed(
        &mut self,
        rail: usize,
        completion: &Completion,
    ) -> Result<Vec<VirtualWc>, Error> {
        let mut results = Vec::new();
        self.rails[rail].pop_recv(completion.wr_id)?;
        for _ in 0..self.sequence.receive_imm(completion.imm) {
            let id = self.recvs.front_finished().ok_or(Error::NoReceive)?;
            self.recvs.find(id)?.complete_one(completion.status, completion.opcode);
            self.report_recvs(&mut results)?;
        }
        self.replenish(rail)?;
        Ok(results)
    }

    /// Reports finished sends from the front on. A front whose data is done gets its notify, and
    /// holds the rest back until that is acknowledged.
    fn report_sends(&mut self, results: &mut Vec<VirtualWc>) -> Result<(), Error> {
        while let Some(id) = self.sends.front_finished() {
            let max_notifies = self.config.max_msgs_per_qp;
            let front = self.sends.find(id)?;
            if front.needs_notify && !front.notify_posted {
                if front.remaining > 1 {
                    break;
                }
                front.notify_posted = true;
                let notify = self.notify.as_ref().ok_or(Error::NoNotifyQp)?;
                if notify.outstanding_sends() >= max_notifies {
                    self.pending_notifies.push_back(id);
                } else {
                    self.post_notify(id)?;
                }
                break;
            }
            if front.remaining > 0 {
                break;
            }
            results.push(virtual_wc(front, self.config.virtual_qp_num));
            self.sends.remove(id);
            self.sends.pop_finished();
        }
        Ok(())
    }

    fn report_recvs(&mut self, results: &mut Vec<VirtualWc>) -> Result<(), Error> {
        while let Some(id) = self.recvs.front_finished() {
            let front = self.recvs.find(id)?;
            if front.remaining > 0 {
                break;
            }
            results.push(virtual_wc(front, self.config.virtual_qp_num));
            self.recvs.remove(id);
            self.recvs.pop_finished();
        }
        Ok(())
    }

    fn flush_pending_notifies(&mut self) -> Result<(), Error> {
        while let Some(id) = self.pending_notifies.front().copied() {
            let notify = self.notify.as_ref().ok_or(Error::NoNotifyQp)?;
            if notify.outstanding_sends() >= self.config.max_msgs_per_qp {
                break;
            }
            self.post_notify(id)?;
            self.pending_notifies.pop_front();
        }
        Ok(())
    }
}

fn virtual_wc(active: &ActiveWr, qp_num: u32) -> VirtualWc {
    VirtualWc {
        wr_id: active.user_wr_id,
        status: active.status,
        opcode: active.wc_opcode,
        qp_num,
        imm: active.imm,
        byte_len: active.local.length(),
    }
}
