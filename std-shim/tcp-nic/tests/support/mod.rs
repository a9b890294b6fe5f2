//! What the tests of the TCP NIC share: queue pairs with memory, and a peer that sends what it
//! likes.

#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

pub mod fuzz;
pub mod raw;
pub mod thread;

use polyrail_core::hardware::{
    CommitError, CompletionQueue as _, CqError, QueuePair as _, ReceiveQueue, RecvBatch as _,
    SendBatch as _,
};
use polyrail_core::verbs::{
    AccessFlags, Completion, Imm, Opcode, RecvRequest, SendFlags, SendRequest, Sge, WcStatus,
};
use polyrail_nic_parts::options::{ConnectOptions, QpCap};
use polyrail_nic_parts::pages::Pages;
use polyrail_tcp_nic::{
    CompletionQueue, Device, DeviceOptions, MemoryRegion, ProtectionDomain, QpInit, QueuePair,
    connect_pair,
};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const BUFFER_BYTES: usize = 2 << 20;

/// How long a test waits for what must happen. Only one that hangs comes near it.
pub const LONG: Duration = Duration::from_secs(600);

pub const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// Registered memory.
pub struct Buffer {
    region: Option<MemoryRegion>,
    pages: Arc<Pages>,
    pub lkey: u32,
    pub rkey: u32,
}

impl Buffer {
    pub fn new(length: usize, pd: &ProtectionDomain) -> Self {
        Self::with_access(length, ALL_ACCESS, pd)
    }

    pub fn with_access(length: usize, access: AccessFlags, pd: &ProtectionDomain) -> Self {
        let pages = Arc::new(Pages::new(length).unwrap());
        let region = pd.register_pages(&pages, access).unwrap();
        let (lkey, rkey) = (region.lkey(), region.rkey());
        Self { region: Some(region), pages, lkey, rkey }
    }

    pub fn addr(&self, offset: usize) -> u64 {
        self.pages.addr() + offset as u64
    }

    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        self.pages.local(offset, length as u32).unwrap().sge(self.lkey)
    }

    /// The bytes with another key.
    pub fn sge_with(&self, offset: usize, length: usize, lkey: u32) -> Sge {
        self.pages.local(offset, length as u32).unwrap().sge(lkey)
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.pages.span(offset, bytes.len()).write(bytes);
    }

    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.pages.span(offset, length).read(&mut bytes);
        bytes
    }

    pub fn all(&self) -> Vec<u8> {
        self.read(0, self.pages.len())
    }

    pub fn fill(&self, byte: u8) {
        self.pages.span(0, self.pages.len()).fill(byte);
    }

    /// Whether all bytes are this one.
    pub fn is_all(&self, byte: u8) -> bool {
        self.all().iter().all(|&own| own == byte)
    }

    pub fn deregister(&mut self) {
        self.region = None;
    }
}

/// One end.
pub struct Side {
    pub device: Device,
    pub pd: ProtectionDomain,
    pub buffer: Buffer,
    pub cq: CompletionQueue,
    pub qp: QueuePair,
}

impl Side {
    /// Opens a device at an address of the loopback interface, with a queue pair in INIT.
    pub fn new(address: &str) -> Self {
        Self::on(&Device::open(address, &DeviceOptions::default()).unwrap())
    }

    pub fn on(device: &Device) -> Self {
        let pd = device.alloc_pd().unwrap();
        let buffer = Buffer::new(BUFFER_BYTES, &pd);
        let cq = device.create_cq(4096).unwrap();
        let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::default() };
        let qp = pd.create_qp(&QpInit::new(&cq, cap)).unwrap();
        qp.to_init(&ConnectOptions::default()).unwrap();
        Self { device: device.clone(), pd, buffer, cq, qp }
    }

    /// Creates another queue pair, in RESET, with the same completion queue.
    pub fn another(&self) -> QueuePair {
        self.pd.create_qp(&QpInit::new(&self.cq, QpCap::default())).unwrap()
    }

    pub fn post(&mut self, request: SendRequest) -> Result<(), CommitError> {
        post(&mut self.qp, &request)
    }

    pub fn recv(&mut self, wr_id: u64, sge: Sge) -> Result<(), CommitError> {
        recv(&mut self.qp, wr_id, sge)
    }

    pub fn poll(&mut self) -> Vec<Completion> {
        poll(&mut self.cq).unwrap()
    }

    /// Polls until there is a completion.
    pub fn completion(&mut self) -> Completion {
        self.completions(1)[0]
    }

    /// Polls until there are this many completions.
    pub fn completions(&mut self, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        wait("completions", || {
            all.extend(self.poll());
            all.len() >= count
        });
        assert_eq!(all.len(), count, "{all:?}");
        all
    }

    /// A WRITE of bytes of the buffer to a peer's buffer.
    pub fn write_to(&self, peer: &Buffer, offset: usize, length: usize) -> SendRequest {
        SendRequest {
            sge: self.buffer.sge(offset, length),
            remote_addr: peer.addr(offset),
            rkey: peer.rkey,
            ..request(Opcode::RdmaWrite, 0)
        }
    }
}

pub fn request(opcode: Opcode, wr_id: u64) -> SendRequest {
    SendRequest {
        wr_id,
        opcode,
        flags: SendFlags::SIGNALED,
        imm: Imm::from_number(0),
        sge: Sge::EMPTY,
        remote_addr: 0,
        rkey: 0,
        compare_add: 0,
        swap: 0,
    }
}

pub fn post(qp: &mut QueuePair, request: &SendRequest) -> Result<(), CommitError> {
    let mut batch = qp.start_send();
    batch.add(request);
    batch.commit()
}

pub fn recv(queue: &mut impl ReceiveQueue, wr_id: u64, sge: Sge) -> Result<(), CommitError> {
    let mut batch = queue.start_recv();
    batch.add(&RecvRequest { wr_id, sge });
    batch.commit()
}

pub fn poll(cq: &mut CompletionQueue) -> Result<Vec<Completion>, CqError> {
    let mut out = [MaybeUninit::uninit(); 32];
    cq.poll(&mut out).map(<[Completion]>::to_vec)
}

/// Waits until it is so.
pub fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Two connected sides on devices of their own.
pub fn pair(near: &str, far: &str) -> (Side, Side) {
    let (near, far) = (Side::new(near), Side::new(far));
    connect_pair(&near.qp, &far.qp, &ConnectOptions::default()).unwrap();
    (near, far)
}

/// Moves a megabyte in both directions, and checks every byte.
pub fn exchange(near: &mut Side, far: &mut Side, seed: u8) {
    const BYTES: usize = 1 << 20;
    let bytes: Vec<u8> =
        (0..BYTES).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
    near.buffer.write(0, &bytes);
    near.post(near.write_to(&far.buffer, 0, BYTES)).unwrap();
    assert_eq!(near.completion().status, WcStatus::SUCCESS);
    assert!(far.buffer.read(0, BYTES) == bytes, "bytes arrive unchanged");
    let back = far.write_to(&near.buffer, 0, BYTES);
    far.post(back).unwrap();
    assert_eq!(far.completion().status, WcStatus::SUCCESS);
}
