//! The behaviours of every backend, on the software NIC.

use polyrail::nic::{
    CompletionQueue, ConnectOptions, Device, DeviceConfig, Fabric, Fault, MemoryRegion,
    ProtectionDomain, QpCap, QpInit, QpState, QueuePair, SharedReceiveQueue, When, connect_pair,
};
use polyrail_core::hardware::CompletionQueue as _;
use polyrail_core::verbs::{AccessFlags, WcStatus};
use polyrail_tests::allocations::CountingAllocator;
use polyrail_tests::behaviours::{self, Buffer, End, Fixture, Retries, Statuses, Wrapped};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Two rails of software NICs.
#[derive(Debug)]
struct Software {
    fabric: Fabric,
    domains: [Vec<ProtectionDomain>; 2],
}

impl Software {
    fn new(fabric: Fabric) -> Self {
        let domain = |name: &str, rail| {
            let device = fabric.create_device(DeviceConfig::named(format!("{name}{rail}")));
            device.alloc_pd().unwrap()
        };
        Self {
            domains: ["near", "far"].map(|name| (0..2).map(|rail| domain(name, rail)).collect()),
            fabric,
        }
    }

    fn domain(&self, end: End, rail: usize) -> &ProtectionDomain {
        &self.domains[end as usize][rail]
    }

    fn device(&self, end: End, rail: usize) -> &Device {
        self.domain(end, rail).device()
    }
}

impl Fixture for Software {
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
        self.domain(end, rail).create_srq(max_wr, 0).unwrap()
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
        let fault = if up { Fault::LinkUp } else { Fault::LinkDown };
        self.device(End::Far, rail).inject(When::Now, fault);
    }
}

#[test]
fn the_software_nic_behaves() {
    let failed =
        behaviours::run("software", &behaviours::list(), &Software::new(Fabric::threaded()));
    assert_eq!(failed, [""; 0]);
}

#[test]
fn a_wrapper_without_faults_behaves_as_what_is_inside() {
    let software = Software::new(Fabric::threaded());
    let failed = behaviours::run("wrapped", &behaviours::list(), &Wrapped::new(&software));
    assert_eq!(failed, [""; 0]);
}

/// A fabric that draws the order in which requests are executed and completions appear.
#[test]
fn physical_queue_pairs_of_the_software_nic_behave_in_any_order() {
    for seed in 0..4 {
        let software = Software::new(Fabric::deterministic(seed));
        let is_over = AtomicBool::new(false);
        let failed = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if software.fabric.step().is_none() {
                        thread::yield_now();
                    }
                }
            });
            let failed = behaviours::run("stepped", &behaviours::physical(), &software);
            is_over.store(true, Ordering::Relaxed);
            failed
        });
        assert_eq!(failed, [""; 0], "seed {seed}");
    }
}
