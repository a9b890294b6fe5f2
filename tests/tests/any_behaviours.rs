//! The behaviours of every backend, on devices of any backend: over rails of the software NIC, over
//! rails of TCP, and over one of each.

use polyrail::any::{
    AnyCompletionQueue, AnyDomain, AnyQueuePair, AnyRegion, AnySharedReceiveQueue, OpenOptions,
    open_devices,
};
use polyrail::backend::{Connect, ConnectOptions, ConnectSteps, Domain, Port, QpCap, RemoteQp};
use polyrail::nic::{Fault, QpState, When};
use polyrail_core::hardware::{CompletionQueue as _, QueuePair as _};
use polyrail_core::verbs::{AccessFlags, WcStatus};
use polyrail_tests::allocations::CountingAllocator;
use polyrail_tests::behaviours::{self, Buffer, End, Fixture, Retries, Statuses};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const PSN: u32 = 0;

/// Two rails.
#[derive(Debug)]
struct Rails {
    domains: [Vec<AnyDomain>; 2],
}

impl Rails {
    fn new(near: [&str; 2], far: [&str; 2]) -> Self {
        let open = |names: [&str; 2]| open_devices(&names, &OpenOptions::default()).unwrap();
        Self { domains: [near, far].map(open) }
    }

    fn domain(&self, end: End, rail: usize) -> &AnyDomain {
        &self.domains[end as usize][rail]
    }

    fn port(&self, end: End, rail: usize) -> Port {
        self.domain(end, rail).ports().unwrap()[0]
    }
}

impl Fixture for Rails {
    type Qp = AnyQueuePair;
    type Cq = AnyCompletionQueue;
    type Srq = AnySharedReceiveQueue;
    type Memory = Buffer<AnyRegion>;
    type Domain = AnyDomain;

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

    fn create_cq(&self, end: End, rail: usize, capacity: u32) -> AnyCompletionQueue {
        let cq = self.domain(end, rail).create_cq(capacity).unwrap();
        assert!(cq.capacity() >= capacity);
        cq
    }

    fn create_srq(&self, end: End, rail: usize, max_wr: u32) -> AnySharedReceiveQueue {
        self.domain(end, rail).create_srq(max_wr).unwrap()
    }

    fn create_qp(
        &self,
        end: End,
        rail: usize,
        cq: &AnyCompletionQueue,
        srq: Option<&AnySharedReceiveQueue>,
        depth: u32,
    ) -> AnyQueuePair {
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
        }
        .unwrap();
        qp.init(&self.port(end, rail), &ConnectOptions::default()).unwrap();
        qp
    }

    fn connect(&self, rail: usize, near: &AnyQueuePair, far: &AnyQueuePair, retries: Retries) {
        let Retries { timeout, retry_cnt, rnr_retry } = retries;
        let options = ConnectOptions { timeout, retry_cnt, rnr_retry, ..ConnectOptions::default() };
        let [near_port, far_port] = [End::Near, End::Far].map(|end| self.port(end, rail));
        let remote = |qp: &AnyQueuePair, port: &Port| RemoteQp {
            gid: port.gid,
            lid: port.lid,
            qp_num: qp.qp_num(),
            psn: PSN,
            meeting: qp.meeting(),
        };
        let steps =
            |port, peer| ConnectSteps { port, peer, receives: options, psn: PSN, sends: options };
        steps(near_port, remote(far, &far_port)).run(near).unwrap();
        steps(far_port, remote(near, &near_port)).run(far).unwrap();
    }

    fn fail(&self, qp: &AnyQueuePair) {
        qp.fail().unwrap();
    }

    fn is_failed(&self, qp: &AnyQueuePair) -> bool {
        let state = match qp {
            AnyQueuePair::Software(qp) => qp.state(),
            AnyQueuePair::Tcp(qp) => qp.state(),
            other => panic!("{other:?}"),
        };
        state == QpState::Err
    }

    fn memory(&self, end: End, bytes: usize, access: AccessFlags) -> Buffer<AnyRegion> {
        Buffer::new(bytes, access, &self.domains[end as usize])
    }

    fn open(&self, end: End) -> Vec<AnyDomain> {
        self.domains[end as usize].clone()
    }

    fn set_link(&self, rail: usize, up: bool) {
        match (self.domain(End::Near, rail), self.domain(End::Far, rail)) {
            (_, AnyDomain::Software(far)) => {
                let fault = if up { Fault::LinkUp } else { Fault::LinkDown };
                far.device().inject(When::Now, fault);
            }
            (AnyDomain::Tcp(near), AnyDomain::Tcp(far)) => {
                near.device().set_link(up);
                far.device().set_link(up);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn check(title: &str, rails: &Rails) {
    let failed = behaviours::run(title, &behaviours::list(), rails);
    assert!(failed.is_empty(), "{title}: {failed:?}");
}

#[test]
fn devices_of_any_backend_behave_as_the_backend_does() {
    // One after the other: some behaviours count all allocations of the process.
    check("software", &Rails::new(["software:n0", "software:n1"], ["software:f0", "software:f1"]));
    check(
        "tcp",
        &Rails::new(["tcp:127.2.1.1", "tcp:127.2.1.2"], ["tcp:127.2.2.1", "tcp:127.2.2.2"]),
    );
    check("mixed", &Rails::new(["software:n2", "tcp:127.2.1.3"], ["software:f2", "tcp:127.2.2.3"]));
    check(
        "mixed, tcp first",
        &Rails::new(["tcp:127.2.1.4", "software:n3"], ["tcp:127.2.2.4", "software:f3"]),
    );
}
