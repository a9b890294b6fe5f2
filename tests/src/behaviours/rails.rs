//! Rails of devices in software: both ends in this process.

use super::{Buffer, End, Fixture, Retries, Statuses};
use polyrail::any::{AnyDomain, AnyQueuePair};
use polyrail::backend::{Connect, ConnectOptions, ConnectSteps, Domain, Port, QpCap, RemoteQp};
use polyrail::nic::{self, Fault, QpState, When};
use polyrail::tcp;
use polyrail_core::hardware::{CompletionQueue as _, QueuePair as _};
use polyrail_core::verbs::{AccessFlags, WcStatus};
use std::fmt::Debug;

const PSN: u32 = 0;

/// A device in software.
pub trait InSoftware: Domain<Qp: Debug, Cq: Debug + Send, Srq: Debug + Send> + Debug {
    /// Returns the state of a queue pair.
    fn state(qp: &Self::Qp) -> QpState;

    /// Takes the link between two devices down, or brings it up.
    fn set_link(near: &Self, far: &Self, up: bool);
}

impl InSoftware for nic::ProtectionDomain {
    fn state(qp: &nic::QueuePair) -> QpState {
        qp.state()
    }

    fn set_link(_: &Self, far: &Self, up: bool) {
        let fault = if up { Fault::LinkUp } else { Fault::LinkDown };
        far.device().inject(When::Now, fault);
    }
}

impl InSoftware for tcp::ProtectionDomain {
    fn state(qp: &tcp::QueuePair) -> QpState {
        qp.state()
    }

    fn set_link(near: &Self, far: &Self, up: bool) {
        near.device().set_link(up);
        far.device().set_link(up);
    }
}

impl InSoftware for AnyDomain {
    fn state(qp: &AnyQueuePair) -> QpState {
        match qp {
            AnyQueuePair::Software(qp) => qp.state(),
            AnyQueuePair::Tcp(qp) => qp.state(),
            other => panic!("{other:?}"),
        }
    }

    fn set_link(near: &Self, far: &Self, up: bool) {
        match (near, far) {
            (Self::Software(near), Self::Software(far)) => InSoftware::set_link(near, far, up),
            (Self::Tcp(near), Self::Tcp(far)) => InSoftware::set_link(near, far, up),
            other => panic!("{other:?}"),
        }
    }
}

/// Rails between devices in software. The devices of both ends at one position are joined.
#[derive(Debug)]
pub struct Rails<D> {
    domains: [Vec<D>; 2],
}

impl<D: InSoftware> Rails<D> {
    /// Joins the devices of two ends.
    pub fn new(near: Vec<D>, far: Vec<D>) -> Self {
        assert_eq!(near.len(), far.len(), "a rail has two ends");
        Self { domains: [near, far] }
    }

    fn domain(&self, end: End, rail: usize) -> &D {
        &self.domains[end as usize][rail]
    }

    fn port(&self, end: End, rail: usize) -> Port {
        self.domain(end, rail).ports().unwrap()[0]
    }
}

impl<D: InSoftware> Fixture for Rails<D> {
    type Qp = D::Qp;
    type Cq = D::Cq;
    type Srq = D::Srq;
    type Memory = Buffer<D::Region>;
    type Domain = D;

    fn rails(&self) -> usize {
        self.domains[0].len()
    }

    fn statuses(&self) -> Statuses {
        Statuses {
            write_with_bad_lkey: WcStatus::LOC_PROT_ERR,
            read_with_bad_lkey: WcStatus::LOC_PROT_ERR,
            receive_too_short: (WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR),
            receive_with_bad_lkey: (WcStatus::REM_OP_ERR, WcStatus::LOC_PROT_ERR),
        }
    }

    fn create_cq(&self, end: End, rail: usize, capacity: u32) -> D::Cq {
        let cq = self.domain(end, rail).create_cq(capacity).unwrap();
        assert!(cq.capacity() >= capacity);
        cq
    }

    fn create_srq(&self, end: End, rail: usize, max_wr: u32) -> D::Srq {
        self.domain(end, rail).create_srq(max_wr).unwrap()
    }

    fn create_qp(
        &self,
        end: End,
        rail: usize,
        cq: &D::Cq,
        srq: Option<&D::Srq>,
        depth: u32,
    ) -> D::Qp {
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 4,
            max_recv_sge: 4,
            ..QpCap::default()
        };
        let domain = self.domain(end, rail);
        let qp = match srq {
            Some(srq) => domain.create_qp_with_srq(cq, srq, cap),
            None => domain.create_qp(cq, cap),
        };
        let qp = qp.unwrap();
        qp.init(&self.port(end, rail), &ConnectOptions::default()).unwrap();
        qp
    }

    fn connect(&self, rail: usize, near: &D::Qp, far: &D::Qp, retries: Retries) {
        let Retries { timeout, retry_cnt, rnr_retry } = retries;
        let options = ConnectOptions { timeout, retry_cnt, rnr_retry, ..ConnectOptions::default() };
        let [near_port, far_port] = [End::Near, End::Far].map(|end| self.port(end, rail));
        let steps = |port: Port, peer: &D::Qp, peer_port: Port| {
            let Port { gid, lid, .. } = peer_port;
            let (qp_num, meeting) = (peer.qp_num(), peer.meeting());
            let peer = RemoteQp { gid, lid, qp_num, psn: PSN, meeting };
            ConnectSteps { port, peer, receives: options, psn: PSN, sends: options }
        };
        steps(near_port, far, far_port).run(near).unwrap();
        steps(far_port, near, near_port).run(far).unwrap();
    }

    fn fail(&self, qp: &D::Qp) {
        qp.fail().unwrap();
    }

    fn is_failed(&self, qp: &D::Qp) -> bool {
        D::state(qp) == QpState::Err
    }

    fn memory(&self, end: End, bytes: usize, access: AccessFlags) -> Buffer<D::Region> {
        Buffer::new(bytes, access, &self.domains[end as usize])
    }

    fn open(&self, end: End) -> Vec<D> {
        self.domains[end as usize].clone()
    }

    fn set_link(&self, rail: usize, up: bool) {
        D::set_link(self.domain(End::Near, rail), self.domain(End::Far, rail), up);
    }
}
