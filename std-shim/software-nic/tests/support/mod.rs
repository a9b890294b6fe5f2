//! What the tests of the software NIC share: two connected queue pairs with a buffer each.

#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

use polyrail_core::hardware::QueuePair as _;
use polyrail_core::hardware::{
    CommitError, CompletionQueue as _, CqError, ReceiveQueue, RecvBatch as _, SendBatch as _,
};
use polyrail_core::verbs::{
    AccessFlags, Completion, Imm, LocalBuffer, Opcode, RecvRequest, SendFlags, SendRequest, Sge,
    WcStatus,
};
use polyrail_software_nic::{
    CompletionQueue, ConnectOptions, Device, DeviceConfig, Fabric, MemoryRegion, Pages,
    ProtectionDomain, QpCap, QpInit, QueuePair, connect_pair,
};
use std::mem::MaybeUninit;
use std::sync::Arc;

pub const BUFFER_BYTES: usize = 1 << 20;

pub const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// Short timers, so that failures fail soon: 2 timeouts of 33 us, one RNR retry of 10 us.
pub fn impatient() -> ConnectOptions {
    ConnectOptions {
        timeout: 3,
        retry_cnt: 1,
        rnr_retry: 1,
        min_rnr_timer: 1,
        ..Default::default()
    }
}

/// Registered memory.
pub struct Buffer {
    region: MemoryRegion,
    pages: Arc<Pages>,
}

impl Buffer {
    pub fn new(length: usize, access: AccessFlags, pd: &ProtectionDomain) -> Self {
        let pages = Arc::new(Pages::new(length).unwrap());
        Self { region: pd.register_pages(&pages, access).unwrap(), pages }
    }

    pub fn addr(&self) -> u64 {
        self.region.addr()
    }

    pub fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    pub fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    pub fn local(&self, offset: usize, length: u32) -> LocalBuffer {
        self.pages.local(offset, length).unwrap()
    }

    pub fn write_at(&self, offset: usize, bytes: &[u8]) {
        self.pages.span(offset, bytes.len()).write(bytes);
    }

    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) {
        self.pages.span(offset, bytes.len()).read(bytes);
    }

    pub fn fill(&self, offset: usize, length: usize, byte: u8) {
        self.pages.span(offset, length).fill(byte);
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
    pub fn new(fabric: &Fabric, name: &str, cap: QpCap) -> Self {
        Self::on(fabric.create_device(DeviceConfig::named(name)), cap)
    }

    pub fn on(device: Device, cap: QpCap) -> Self {
        let pd = device.alloc_pd().unwrap();
        let buffer = Buffer::new(BUFFER_BYTES, ALL_ACCESS, &pd);
        let cq = device.create_cq(1024).unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq, cap)).unwrap();
        Self { device, pd, buffer, cq, qp }
    }

    pub fn lkey(&self) -> u32 {
        self.buffer.lkey()
    }

    pub fn rkey(&self) -> u32 {
        self.buffer.rkey()
    }

    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        self.buffer.local(offset, length).sge(self.lkey())
    }

    pub fn recv(&mut self, wr_id: u64, sge: Sge) -> Result<(), CommitError> {
        recv(&mut self.qp, wr_id, sge)
    }

    pub fn post(&mut self, request: SendRequest) -> Result<(), CommitError> {
        self.post_all(&[request])
    }

    pub fn post_all(&mut self, requests: &[SendRequest]) -> Result<(), CommitError> {
        let mut batch = self.qp.start_send();
        requests.iter().for_each(|request| batch.add(request));
        batch.commit()
    }

    pub fn poll(&mut self) -> Vec<Completion> {
        poll(&mut self.cq).unwrap()
    }

    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read_at(offset, &mut bytes);
        bytes
    }
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

/// Two connected sides.
pub struct Pair {
    pub fabric: Fabric,
    pub a: Side,
    pub b: Side,
}

impl Pair {
    pub fn threaded() -> Self {
        Self::with(Fabric::threaded(), QpCap::default(), &ConnectOptions::default())
    }

    pub fn impatient() -> Self {
        Self::with(Fabric::threaded(), QpCap::default(), &impatient())
    }

    pub fn deterministic(seed: u64) -> Self {
        Self::with(Fabric::deterministic(seed), QpCap::default(), &impatient())
    }

    pub fn with(fabric: Fabric, cap: QpCap, options: &ConnectOptions) -> Self {
        let pair = Self::unconnected(fabric, cap);
        connect_pair(&pair.a.qp, &pair.b.qp, options).unwrap();
        pair
    }

    pub fn unconnected(fabric: Fabric, cap: QpCap) -> Self {
        let a = Side::new(&fabric, "soft0", cap);
        let b = Side::new(&fabric, "soft1", cap);
        Self { fabric, a, b }
    }

    /// A request from `a` to `b`, between the same offsets of their buffers, signaled.
    pub fn request(&self, wr_id: u64, opcode: Opcode, offset: usize, length: u32) -> SendRequest {
        SendRequest {
            wr_id,
            opcode,
            flags: SendFlags::SIGNALED,
            imm: Imm::from_number(0x1234_5678),
            sge: if length == 0 { Sge::EMPTY } else { self.a.sge(offset, length) },
            remote_addr: self.b.buffer.addr() + offset as u64,
            rkey: self.b.rkey(),
            compare_add: 0,
            swap: 0,
        }
    }

    pub fn write(&self, wr_id: u64, offset: usize, length: u32) -> SendRequest {
        self.request(wr_id, Opcode::RdmaWrite, offset, length)
    }

    /// Polls or steps both sides until nothing comes any more; returns what `a` got and what `b`
    /// got.
    pub fn settle(&mut self) -> (Vec<Completion>, Vec<Completion>) {
        let mut a = Vec::new();
        let mut b = Vec::new();
        let mut idle = 0;
        while idle < 3 {
            self.fabric.run_until_idle(10_000);
            let from_a = self.a.poll();
            let from_b = self.b.poll();
            idle = if from_a.len() + from_b.len() == 0 { idle + 1 } else { 0 };
            a.extend(from_a);
            b.extend(from_b);
            if self.fabric.is_threaded() && idle > 0 {
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        }
        (a, b)
    }
}

/// Runs a test on a threaded fabric and on some deterministic ones, with short timers.
pub fn impatient_both_ways(test: impl Fn(Pair)) {
    test(Pair::impatient());
    (0..8).for_each(|seed| test(Pair::deterministic(seed)));
}

/// A buffer that is never touched: a key and length for requests that must fail before access.
pub fn wild(side: &Side, length: u32, lkey: u32) -> Sge {
    side.buffer.local(0, length).sge(lkey)
}

pub fn nothing() -> Sge {
    LocalBuffer::EMPTY.sge(0)
}

pub fn ids(completions: &[Completion]) -> Vec<u64> {
    completions.iter().map(|completion| completion.wr_id).collect()
}

pub fn statuses(completions: &[Completion]) -> Vec<u32> {
    completions.iter().map(|completion| completion.status.0).collect()
}

/// Ids with statuses.
pub fn ends(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|completion| (completion.wr_id, completion.status)).collect()
}

pub fn assert_all_success(completions: &[Completion]) {
    assert!(completions.iter().all(|c| c.status.is_success()), "{completions:?}");
}

pub fn number(qp: &QueuePair) -> u32 {
    qp.qp_num()
}
