//! The behaviours of every backend, over TCP: both ends in this process, on the loopback interface.

use polyrail::backend::ConnectOptions;
use polyrail::nic::{QpCap, QpState};
use polyrail::tcp::{
    CompletionQueue, Device, DeviceOptions, MemoryRegion, ProtectionDomain, QpInit, QueuePair,
    SharedReceiveQueue, connect_pair,
};
use polyrail_core::hardware::CompletionQueue as _;
use polyrail_core::verbs::{AccessFlags, WcStatus};
use polyrail_tests::allocations::CountingAllocator;
use polyrail_tests::behaviours::{self, Buffer, End, Fixture, Retries, Statuses};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Two rails between addresses of the loopback interface.
#[derive(Debug)]
struct Loopback {
    domains: [Vec<ProtectionDomain>; 2],
}

impl Loopback {
    fn new() -> Self {
        let domain = |end: usize, rail: usize| {
            let name = format!("127.0.{end}.{}", rail + 1);
            Device::open(&name, &DeviceOptions::default()).unwrap().alloc_pd().unwrap()
        };
        Self { domains: [1, 2].map(|end| (0..2).map(|rail| domain(end, rail)).collect()) }
    }

    fn domain(&self, end: End, rail: usize) -> &ProtectionDomain {
        &self.domains[end as usize][rail]
    }

    fn device(&self, end: End, rail: usize) -> &Device {
        self.domain(end, rail).device()
    }
}

impl Fixture for Loopback {
    type Qp = QueuePair;
    type Cq = CompletionQueue;
    type Srq = SharedReceiveQueue;
    type Memory = Buffer<MemoryRegion>;
    type Domain = ProtectionDomain;

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

    fn create_cq(&self, end: End, rail: usize, capacity: u32) -> CompletionQueue {
        let cq = self.device(end, rail).create_cq(capacity).unwrap();
        assert!(cq.capacity() >= capacity);
        cq
    }

    fn create_srq(&self, end: End, rail: usize, max_wr: u32) -> SharedReceiveQueue {
        self.domain(end, rail).create_srq(max_wr).unwrap()
    }

    fn create_qp(
        &self,
        end: End,
        rail: usize,
        cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
        depth: u32,
    ) -> QueuePair {
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 4,
            max_recv_sge: 4,
            ..QpCap::default()
        };
        let init = QpInit { srq, ..QpInit::new(cq, cap) };
        let qp = self.domain(end, rail).create_qp(&init).unwrap();
        qp.to_init(&ConnectOptions::default()).unwrap();
        qp
    }

    fn connect(&self, _: usize, near: &QueuePair, far: &QueuePair, retries: Retries) {
        let Retries { timeout, retry_cnt, rnr_retry } = retries;
        let options = ConnectOptions { timeout, retry_cnt, rnr_retry, ..ConnectOptions::default() };
        connect_pair(near, far, &options).unwrap();
    }

    fn fail(&self, qp: &QueuePair) {
        qp.to_error().unwrap();
    }

    fn is_failed(&self, qp: &QueuePair) -> bool {
        qp.state() == QpState::Err
    }

    fn memory(&self, end: End, bytes: usize, access: AccessFlags) -> Buffer<MemoryRegion> {
        Buffer::new(bytes, access, &self.domains[end as usize])
    }

    fn open(&self, end: End) -> Vec<ProtectionDomain> {
        self.domains[end as usize].clone()
    }

    fn set_link(&self, rail: usize, up: bool) {
        for end in [End::Near, End::Far] {
            self.device(end, rail).set_link(up);
        }
    }
}

#[test]
fn tcp_has_every_behaviour() {
    let failed = behaviours::run("tcp", &behaviours::list(), &Loopback::new());
    assert!(failed.is_empty(), "{failed:?}");
}
