//! Two connected queue pairs, for unit tests.

use crate::completion_queue::CompletionQueue;
use crate::device::{Device, DeviceOptions};
use crate::domain::ProtectionDomain;
use crate::modify::connect_pair;
use crate::queue_pair::{QpInit, QueuePair};
use polyrail_core::hardware::{
    CompletionQueue as _, QueuePair as _, ReceiveQueue as _, RecvBatch as _, SendBatch as _,
};
use polyrail_core::verbs::{Imm, Opcode, RecvRequest, SendFlags, SendRequest, Sge, WcStatus};
use polyrail_nic_parts::options::{ConnectOptions, QpCap};
use polyrail_nic_parts::sync::lock;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(crate) struct End {
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair,
}

impl End {
    fn new(address: &str) -> Self {
        let device = Device::open(address, &DeviceOptions::default()).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(256).unwrap();
        let cap = QpCap { max_send_wr: 256, ..QpCap::default() };
        let qp = pd.create_qp(&QpInit::new(&cq, cap)).unwrap();
        Self { device, pd, cq, qp }
    }

    /// Posts WRITEs in one batch: without a buffer, of no bytes.
    pub(crate) fn post(&mut self, count: usize, sge: Sge) {
        self.post_all(count, Opcode::RdmaWrite, sge);
    }

    /// Posts a SEND of no bytes.
    pub(crate) fn send(&mut self) {
        self.post_all(1, Opcode::Send, Sge::EMPTY);
    }

    fn post_all(&mut self, count: usize, opcode: Opcode, sge: Sge) {
        let request = SendRequest {
            wr_id: 0,
            opcode,
            flags: SendFlags::SIGNALED,
            imm: Imm::default(),
            sge,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
        };
        let mut batch = self.qp.start_send();
        (0..count).for_each(|_| batch.add(&request));
        batch.commit().unwrap();
    }

    /// Posts a receive of no bytes.
    pub(crate) fn receive(&mut self) {
        let mut batch = self.qp.start_recv();
        batch.add(&RecvRequest { wr_id: 0, sge: Sge::EMPTY });
        batch.commit().unwrap();
    }

    /// Polls once. Returns the statuses of completions.
    pub(crate) fn poll(&mut self) -> Vec<WcStatus> {
        let mut room = [MaybeUninit::uninit(); 256];
        self.cq.poll(&mut room).unwrap().iter().map(|completion| completion.status).collect()
    }

    /// Number of requests that are not sent.
    pub(crate) fn unsent(&self) -> u64 {
        lock(&self.qp.shared.queues).requester.unsent()
    }

    /// Polls until that many requests and receives have completed, and returns their statuses.
    pub(crate) fn complete(&mut self, count: usize) -> Vec<WcStatus> {
        let mut done = Vec::new();
        wait(|| {
            done.extend(self.poll());
            done.len() >= count
        });
        assert_eq!(done.len(), count);
        done
    }

    /// As while the completion queue is polled, except that the I/O thread does not look whether it
    /// still is.
    fn leave_to_poller(&self) {
        self.device.0.io.remove(&self.cq.shared.epoll);
        self.cq.shared.io_watches.store(false, Ordering::SeqCst);
    }
}

pub(crate) fn wait(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(120));
        std::thread::yield_now();
    }
}

/// Two connected ends. The I/O thread serves the second one; nothing but polls reads what comes for
/// the first one.
pub(crate) fn ends(near: &str, far: &str) -> (End, End) {
    let (mut near, far) = (End::new(near), End::new(far));
    near.leave_to_poller();
    connect_pair(&near.qp, &far.qp, &ConnectOptions::default()).unwrap();
    near.post(1, Sge::EMPTY);
    near.complete(1);
    (near, far)
}

/// Two connected ends. The first one has polled a receive, and holds the acknowledgement.
pub(crate) fn ends_with_held_acknowledgement(near: &str, far: &str) -> (End, End) {
    let (mut near, mut far) = ends(near, far);
    near.receive();
    far.send();
    assert_eq!(near.complete(1), [WcStatus::SUCCESS]);
    assert!(near.qp.shared.holds_acknowledgement.load(Ordering::SeqCst));
    (near, far)
}
