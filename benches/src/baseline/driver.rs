//! The baseline at the rows' work.

use super::{Config, DeviceKeysMap, Keys, RecvWr, Scheme, SendWr, VirtualCq, VirtualQp, VirtualWc};
use crate::arrivals::REQUESTS;
use crate::rig::Rig;
use crate::workload::{DEPTH, FRAGMENT, KEYS, Message, OUTSTANDING, Reported, SMALL, messages};
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::verbs::{Opcode, SendFlags};

const fn config(virtual_qp_num: u32, scheme: Scheme) -> Config {
    Config { virtual_qp_num, scheme, max_msg_size: FRAGMENT, max_msgs_per_qp: DEPTH }
}

/// A write of `message`, as a caller of the baseline's interface prepares it once and posts it many
/// times.
pub fn request(message: &Message, opcode: Opcode) -> SendWr {
    let keys = Keys { lkey: KEYS.lkey, rkey: KEYS.rkey };
    SendWr {
        wr_id: message.wr_id,
        local: message.local,
        remote_addr: message.remote_addr,
        opcode,
        flags: SendFlags::SIGNALED,
        imm: message.imm(),
        device_keys: DeviceKeysMap::from([(KEYS.device, keys)]),
    }
}

fn requests(length: u32, opcode: Opcode) -> Vec<SendWr> {
    messages(length).iter().map(|message| request(message, opcode)).collect()
}

/// Sending virtual queue pairs and their requests.
#[derive(Debug)]
pub struct Sender<Q, C> {
    qps: Vec<VirtualQp<Q>>,
    cq: VirtualCq<C>,
    requests: Vec<SendWr>,
    /// Queue pairs of a burst's requests, from `next` on; see [`scattered`](Self::scattered).
    targets: Vec<u16>,
    next: usize,
}

impl<Q: QueuePair, C: CompletionQueue> Sender<Q, C> {
    fn new(qps: Vec<VirtualQp<Q>>, cq: C, requests: Vec<SendWr>) -> Self {
        let mut cq = VirtualCq::new(vec![cq]);
        qps.iter().enumerate().for_each(|(index, qp)| cq.register(index, qp));
        Self { qps, cq, requests, targets: Vec::new(), next: 0 }
    }

    /// One virtual queue pair over all rails of `rig`, for requests of `length` bytes.
    pub fn striped(rig: Rig<Q, C>, scheme: Scheme, opcode: Opcode, length: u32) -> Self {
        let qp = VirtualQp::new(config(1, scheme), rig.rails, rig.notify);
        Self::new(vec![qp], rig.cq, requests(length, opcode))
    }

    /// A virtual queue pair for each rail of `rig`; bursts go to `targets`, `OUTSTANDING` at a
    /// time.
    pub fn many(rig: Rig<Q, C>, targets: Vec<u16>) -> Self {
        let make = |(num, qp)| VirtualQp::new(config(num, Scheme::Spray), vec![qp], None);
        let qps = (1..).zip(rig.rails).map(make).collect();
        let sender = Self::new(qps, rig.cq, requests(SMALL, Opcode::RdmaWrite));
        Self { targets, ..sender }
    }

    /// Posts the burst's requests to the first virtual queue pair.
    #[inline(never)]
    pub fn post(&mut self) {
        for request in &self.requests {
            self.qps[0].post_send(request).expect("there is room for a burst");
        }
    }

    /// Polls until all are reported.
    #[inline(never)]
    pub fn poll(&mut self) -> Reported {
        let mut reported = Reported::default();
        while reported.count() < OUTSTANDING {
            note(&mut reported, &self.cq.poll_cq(&mut self.qps).expect("nothing fails"));
        }
        reported
    }

    /// Post to report.
    #[inline]
    pub fn cycle(&mut self) -> Reported {
        self.post();
        self.poll()
    }

    /// Post to report, each request on the next of the `targets`.
    #[inline(never)]
    pub fn scattered(&mut self) -> Reported {
        let targets = &self.targets[self.next..self.next + OUTSTANDING];
        for (request, target) in self.requests.iter().zip(targets) {
            self.qps[*target as usize].post_send(request).expect("there is room for a burst");
        }
        self.next = (self.next + OUTSTANDING) % self.targets.len();
        self.poll()
    }
}

#[inline]
fn note(reported: &mut Reported, completions: &[VirtualWc]) {
    for wc in completions {
        reported.note(wc.wr_id, wc.status);
    }
}

/// A virtual queue pair on which numbered fragments arrive.
#[derive(Debug)]
pub struct Receiver<Q, C> {
    qps: Vec<VirtualQp<Q>>,
    cq: VirtualCq<C>,
    next_wr_id: u64,
}

impl<Q: QueuePair, C: CompletionQueue> Receiver<Q, C> {
    /// Over all rails of `rig`, with `OUTSTANDING` receives posted.
    pub fn new(rig: Rig<Q, C>) -> Self {
        let qp = VirtualQp::new(config(1, Scheme::Dqplb), rig.rails, None);
        let mut cq = VirtualCq::new(vec![rig.cq]);
        cq.register(0, &qp);
        let mut receiver = Self { qps: vec![qp], cq, next_wr_id: 0 };
        receiver.post(OUTSTANDING);
        receiver
    }

    #[inline]
    fn post(&mut self, count: usize) {
        for _ in 0..count {
            let wr = RecvWr { wr_id: self.next_wr_id };
            self.next_wr_id += 1;
            self.qps[0].post_recv(&wr).expect("there is room for a burst");
        }
    }

    /// Polls until `REQUESTS` requests have arrived, and posts as many receives again.
    #[inline(never)]
    pub fn receive(&mut self) -> Reported {
        let mut reported = Reported::default();
        while reported.count() < REQUESTS {
            note(&mut reported, &self.cq.poll_cq(&mut self.qps).expect("nothing fails"));
        }
        self.post(REQUESTS);
        reported
    }
}
