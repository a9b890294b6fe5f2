//! A plain foreign queue pair on the same completion queues.

use super::host::Host;
use super::shape::Grant;
use super::virtual_qp::QueuePair;
use polyrail::backend::ConnectOptions;
use polyrail::nic::connect_pair;
use polyrail_core::hardware::{QueuePair as _, SendBatch as _};
use polyrail_core::verbs::{Completion, DeviceId, Imm, Opcode, SendFlags, SendRequest, Sge};

const GRANT: Grant = Grant { send: 4, recv: 4, inline: 0, sge: 1 };

/// Its completions are foreign to the virtual completion queue, which hands over every one of them.
pub(super) struct Bystander {
    qp: QueuePair,
    /// Its peer, kept alive for the connection.
    _peer: QueuePair,
    device: DeviceId,
    posted: u64,
    seen: u64,
}

impl Bystander {
    pub(super) fn new(hosts: &[Host; 2]) -> Self {
        let [qp, peer] = [0, 1].map(|end| hosts[end].create_qp(0, GRANT, None));
        let connected = connect_pair(qp.inner(), peer.inner(), &ConnectOptions::default());
        connected.expect("fresh queue pairs");
        Self { device: hosts[0].devices[0].id(), qp, _peer: peer, posted: 0, seen: 0 }
    }

    pub(super) fn post(&mut self) {
        let mut batch = self.qp.start_send();
        batch.add(&SendRequest {
            wr_id: self.posted,
            opcode: Opcode::RdmaWrite,
            flags: SendFlags::SIGNALED,
            imm: Imm::default(),
            sge: Sge::EMPTY,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
        });
        self.posted += u64::from(batch.commit().is_ok());
    }

    /// Takes a foreign completion if it belongs to this queue pair.
    pub(super) fn takes(&mut self, device: DeviceId, completion: &Completion) -> bool {
        let own = (device, completion.qp_num) == (self.device, self.qp.qp_num());
        if own {
            assert_eq!(completion.wr_id, self.seen, "foreign completions keep their order");
            self.seen += 1;
        }
        own
    }

    pub(super) fn check(&self, is_gone: bool) {
        assert!(is_gone || self.seen == self.posted, "no foreign completion is lost");
    }
}
