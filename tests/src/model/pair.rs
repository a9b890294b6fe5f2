//! Two virtual queue pairs on the deterministic software NIC, beside the seeds' tracker.
//!
//! One side sends whatever the bytes choose, the other takes notifications; the NIC's scheduler,
//! seeded from the bytes too, decides what runs next and what shows. The oracle knows what was
//! posted and in which order, and looks at the memory of both sides.

use super::Bytes;
use super::tracker::SeedTracker;
use crate::endpoint::{Side, connect};
use polyrail::nic::{Device, Fabric, Fault, When};
use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::{RecvWr, SendFlags, SendWr, WcOpcode};
use polyrail_core::virtual_cq::{Event, VirtualWc};
use polyrail_core::virtual_qp::{Config, PassThroughOrder, QpState, RailChoice, RailId, Scheme};
use std::collections::BTreeMap;

/// Bytes of memory that one request has to itself.
const STRIDE: usize = 4096;
/// Requests whose memory is told apart; more than can be outstanding.
const PLACES: usize = 64;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    WriteWithImm,
    Read,
    FetchAdd,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    wr_id: u64,
    kind: Kind,
    length: u32,
}

impl Posted {
    const fn offset(&self) -> usize {
        self.wr_id as usize % PLACES * STRIDE
    }

    /// The bytes that it moves: a pattern that no other request of these places has.
    fn pattern(&self) -> Vec<u8> {
        let seed = self.wr_id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (0..self.length).map(|at| (seed as u32).wrapping_add(at * 7) as u8 | 1).collect()
    }
}

struct Pair {
    fabric: Fabric,
    sender: Side,
    receiver: Side,
    scheme: Scheme,
    /// Fragmented requests in posting order: reports come in this order.
    in_order: SeedTracker<Posted>,
    /// Requests that pass through: reported when they arrive.
    passing: BTreeMap<u64, Posted>,
    /// Requests with immediate, in posting order, and how many were notified.
    notifying: Vec<Posted>,
    notified: usize,
    /// Writes in posting order, for "a notify says that everything earlier is in place".
    writes: Vec<Posted>,
    receives: u64,
    reported_receives: u64,
    next_wr_id: u64,
    faults: bool,
}

/// Runs what `bytes` choose: shape, traffic, schedule and faults.
///
/// # Panics
///
/// If the engine disagrees with the oracle, or leaves a request unreported.
pub fn pair(bytes: &[u8]) {
    let mut bytes = Bytes::new(bytes);
    let mut pair = Pair::new(&mut bytes);
    while !bytes.is_empty() {
        match bytes.below(8) {
            0..=2 => pair.post(&mut bytes),
            3 => pair.post_receive(),
            4 => pair.poll_sender(1 + bytes.below(5) as usize),
            5 => pair.poll_receiver(1 + bytes.below(5) as usize),
            _ => {
                pair.fabric.run_until_idle(u64::from(bytes.below(12)));
            }
        }
        pair.sender.invariants();
        pair.receiver.invariants();
    }
    pair.finish();
}

impl Pair {
    fn new(bytes: &mut Bytes<'_>) -> Self {
        let fabric = Fabric::deterministic(u64::from(bytes.below(65_536)));
        let rails = 2 + bytes.below(3) as usize;
        let devices = 1 + bytes.below(rails as u32) as usize;
        let scheme = if bytes.one_in(2) { Scheme::Dqplb } else { Scheme::Spray };
        let rail_choice = if bytes.one_in(3) {
            RailChoice::LeastFinishTime { bandwidth_mbps: [100, 200, 300, 50, 1, 1, 1, 1] }
        } else {
            RailChoice::RoundRobin
        };
        let pass_through =
            [PassThroughOrder::Ordered, PassThroughOrder::Unordered][bytes.below(2) as usize];
        let config = Config {
            scheme,
            rail_choice,
            pass_through,
            max_msg_size: 128 * (1 + bytes.below(6)),
            max_msgs_per_qp: 1 + bytes.below(8),
            ..Config::default()
        };
        let (sender, receiver) = connect(&fabric, rails, devices, config, PLACES * STRIDE);
        let faults = bytes.one_in(3);
        if faults {
            plan_fault(&sender.devices, bytes);
        }
        Self {
            fabric,
            sender,
            receiver,
            scheme,
            in_order: SeedTracker::default(),
            passing: BTreeMap::new(),
            notifying: Vec::new(),
            notified: 0,
            writes: Vec::new(),
            receives: 0,
            reported_receives: 0,
            next_wr_id: 0,
            faults,
        }
    }

    fn post(&mut self, bytes: &mut Bytes<'_>) {
        let kind = [Kind::Write, Kind::Write, Kind::WriteWithImm, Kind::Read, Kind::FetchAdd]
            [bytes.below(5) as usize];
        let length = if kind == Kind::FetchAdd { 8 } else { 1 + bytes.below(STRIDE as u32) };
        let posted = Posted { wr_id: self.next_wr_id, kind, length };
        let (offset, pattern) = (posted.offset(), posted.pattern());
        let (near, far) = (&self.sender.memory, &self.receiver.memory);
        let local = near.local(offset, length).expect("within the buffer");
        let remote = far.addr() + offset as u64;
        let (source, target) = if kind == Kind::Read { (far, near) } else { (near, far) };
        target.fill(offset, STRIDE, 0).expect("within the buffer");
        source.write_at(offset, &pattern).expect("within the buffer");
        let keys = self.sender.keys_toward(&self.receiver);
        let (id, imm) = (posted.wr_id, posted.wr_id as u32);
        let wr = match kind {
            Kind::Write => SendWr::write(id, local, remote, &keys),
            Kind::WriteWithImm => SendWr::write_with_imm(id, local, remote, imm, &keys),
            Kind::Read => SendWr::read(id, local, remote, &keys),
            Kind::FetchAdd => SendWr::fetch_add(id, local, remote, 5, &keys),
        };
        let fence = if bytes.one_in(6) { SendFlags::FENCE } else { SendFlags::empty() };
        // With few requests outstanding no two share a place.
        let busy = self.in_order.active_count() + self.passing.len() >= PLACES / 2;
        if busy || self.sender.qp.post_send(&wr.with_flags(wr.flags | fence)).is_err() {
            return;
        }
        self.next_wr_id += 1;
        match kind {
            Kind::FetchAdd => {
                self.passing.insert(id, posted);
                return;
            }
            Kind::WriteWithImm => self.notifying.push(posted),
            Kind::Write | Kind::Read => {}
        }
        if kind != Kind::Read {
            self.writes.push(posted);
        }
        self.in_order.add(posted);
    }

    fn post_receive(&mut self) {
        if self.receiver.qp.post_recv(&RecvWr::notification(self.receives)).is_ok() {
            self.receives += 1;
        }
    }

    fn poll_sender(&mut self, budget: usize) {
        let mut events = Vec::new();
        let polled = self.sender.cq.poll(&mut *self.sender.qp, budget, |e| events.push(e));
        assert!(polled.events <= budget && polled.events == events.len());
        for wc in events.into_iter().map(completion) {
            self.reported(wc);
        }
    }

    fn reported(&mut self, wc: VirtualWc) {
        let posted = match self.passing.remove(&wc.wr_id) {
            Some(posted) => posted,
            None => self.in_order.pop_reported().expect("a request of ours"),
        };
        assert_eq!(wc.wr_id, posted.wr_id, "reports come in posting order, each once");
        let opcode = match posted.kind {
            Kind::Write | Kind::WriteWithImm => WcOpcode::RDMA_WRITE,
            Kind::Read => WcOpcode::RDMA_READ,
            Kind::FetchAdd => WcOpcode::FETCH_ADD,
        };
        assert_eq!((wc.opcode, wc.byte_len), (opcode, posted.length));
        assert!(wc.status.is_success() || self.faults, "{wc:?} without a fault");
        if wc.status.is_success() {
            self.in_place(&posted);
        }
    }

    /// What the request moved is where it was to go.
    fn in_place(&self, posted: &Posted) {
        let mut found = vec![0; posted.length as usize];
        let memory = match posted.kind {
            Kind::Read => &self.sender.memory,
            Kind::Write | Kind::WriteWithImm => &self.receiver.memory,
            Kind::FetchAdd => {
                self.receiver.memory.read_at(posted.offset(), &mut found).expect("within");
                assert_eq!(found, 5u64.to_le_bytes());
                self.sender.memory.read_at(posted.offset(), &mut found).expect("within");
                return assert_eq!(found, [0; 8]);
            }
        };
        memory.read_at(posted.offset(), &mut found).expect("within the buffer");
        assert!(found == posted.pattern(), "the bytes of {posted:?} are in place");
    }

    fn poll_receiver(&mut self, budget: usize) {
        let mut events = Vec::new();
        let polled = self.receiver.cq.poll(&mut *self.receiver.qp, budget, |e| events.push(e));
        assert!(polled.events <= budget);
        for wc in events.into_iter().map(completion) {
            assert_eq!(wc.wr_id, self.reported_receives, "receives are reported in order");
            self.reported_receives += 1;
            assert!(wc.status.is_success() || self.faults, "{wc:?} without a fault");
            if wc.status.is_success() {
                self.notification(wc);
            }
        }
    }

    fn notification(&mut self, wc: VirtualWc) {
        let request = self.notifying[self.notified];
        self.notified += 1;
        let imm = (self.scheme == Scheme::Spray).then_some(request.wr_id as u32);
        assert_eq!(wc.imm, imm, "the user's immediate, or none with DQPLB");
        // SPRAY promises that everything earlier is in place too.
        let earlier = |write: &&Posted| {
            write.wr_id == request.wr_id
                || (self.scheme == Scheme::Spray && write.wr_id < request.wr_id)
        };
        // Places are used again: look only at those that no later request has taken over.
        let current = |write: &&Posted| write.wr_id + PLACES as u64 > self.next_wr_id;
        for write in self.writes.iter().filter(earlier).filter(current) {
            self.in_place(write);
        }
    }

    /// Everything that was accepted is reported in the end; after a failure, once its owner has
    /// moved the queue pairs to the error state.
    fn finish(mut self) {
        while self.receives < self.notifying.len() as u64 && self.posts_receive() {}
        self.settle();
        if self.faults {
            self.sender.fail_all();
            self.receiver.fail_all();
            self.settle();
            assert_eq!(self.reported_receives, self.receives, "every receive is reported");
        } else {
            assert_eq!(self.sender.qp.state(), QpState::Ready);
            assert_eq!(self.notified, self.notifying.len(), "every notification arrived");
        }
        assert_eq!(self.in_order.active_count(), 0, "every request is reported");
        assert!(self.passing.is_empty(), "every request is reported: {:?}", self.passing);
        assert_eq!(self.sender.qp.outstanding_sends(), 0);
    }

    fn posts_receive(&mut self) -> bool {
        let before = self.receives;
        self.post_receive();
        if before == self.receives {
            self.settle();
            self.post_receive();
        }
        self.receives > before
    }

    /// Until nothing happens any more.
    fn settle(&mut self) {
        for _ in 0..400 {
            self.fabric.run_until_idle(1000);
            self.poll_sender(64);
            self.poll_receiver(64);
        }
    }
}

fn completion(event: Event) -> VirtualWc {
    event.completion().expect("every queue pair is attached")
}

fn plan_fault(devices: &[Device], bytes: &mut Bytes<'_>) {
    let device = &devices[bytes.below(devices.len() as u32) as usize];
    let when = When::AtStep(u64::from(bytes.below(300)));
    let fault = match bytes.below(5) {
        0 => Fault::LinkDown,
        1 => Fault::ForceRnr { requests: bytes.below(4) },
        2 => Fault::QueueFull { queue: polyrail::nic::WorkQueue::Send, commits: bytes.below(4) },
        3 => Fault::LoseAcks(true),
        _ => Fault::AcceptOnly {
            queue: polyrail::nic::WorkQueue::Send,
            nth_batch: bytes.below(6),
            requests: bytes.below(3),
            refusal: if bytes.one_in(2) { Refusal::QueueFull } else { Refusal::Driver(5) },
        },
    };
    device.inject(when, fault);
}

impl Side {
    fn fail_all(&mut self) {
        let rails = (0..self.rails).map(RailId::Data).chain([RailId::Notify]);
        for rail in rails {
            if let Some(qp) = self.qp.physical_mut(rail) {
                qp.to_error().expect("a connected queue pair");
            }
        }
    }
}
