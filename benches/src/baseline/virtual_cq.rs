//! Polling and routing.

use super::request::{Error, VirtualWc};
use super::virtual_qp::VirtualQp;
use crate::workload::POLL;
use hashbrown::HashMap;
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::verbs::{DeviceId, WcOpcode};
use std::mem::MaybeUninit;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct QpId {
    device: DeviceId,
    qp_num: u32,
}

#[derive(Clone, Copy, Debug)]
struct Registered {
    /// Place of the virtual queue pair in the slice that polling is handed.
    index: usize,
    is_multi: bool,
    virtual_qp_num: u32,
}

/// Completion queues and who their completions belong to (`IbvVirtualCq`).
#[derive(Debug)]
pub struct VirtualCq<C> {
    cqs: Vec<C>,
    registered: HashMap<QpId, Registered>,
}

impl<C: CompletionQueue> VirtualCq<C> {
    /// Polls `cqs`.
    pub fn new(cqs: Vec<C>) -> Self {
        Self { cqs, registered: HashMap::new() }
    }

    /// Registers the virtual queue pair at `index`.
    pub fn register<Q: QueuePair>(&mut self, index: usize, qp: &VirtualQp<Q>) {
        let virtual_qp_num = qp.config.virtual_qp_num;
        let registered = Registered { index, is_multi: qp.is_multi(), virtual_qp_num };
        for physical in qp.physical() {
            let id = QpId { device: physical.device(), qp_num: physical.qp_num() };
            self.registered.insert(id, registered);
        }
    }

    /// Polls every completion queue until it is empty.
    ///
    /// # Errors
    ///
    /// The first error; what was collected until then is lost.
    pub fn poll_cq<Q: QueuePair>(
        &mut self,
        qps: &mut [VirtualQp<Q>],
    ) -> Result<Vec<VirtualWc>, Error> {
        let mut results = Vec::new();
        for cq in &mut self.cqs {
            let device = cq.device();
            loop {
                let mut records = [const { MaybeUninit::uninit() }; POLL];
                let completions = cq.poll(&mut records)?;
                if completions.is_empty() {
                    break;
                }
                for completion in completions {
                    let id = QpId { device, qp_num: completion.qp_num };
                    let found = self.registered.get(&id);
                    let info = found.ok_or(Error::UnknownQp(completion.qp_num))?;
                    let passes = matches!(completion.opcode, WcOpcode::SEND | WcOpcode::RECV);
                    if info.is_multi && !passes {
                        results.extend(qps[info.index].process_completion(completion)?);
                    } else {
                        results.push(VirtualWc {
                            wr_id: completion.wr_id,
                            status: completion.status,
                            opcode: completion.opcode,
                            qp_num: info.virtual_qp_num,
                            imm: completion.imm.number(),
                            byte_len: completion.byte_len,
                        });
                    }
                }
            }
        }
        Ok(results)
    }
}
