//! Two virtual queue pairs, rail to rail, in random order: what one sends the other receives.
//!
//! The NICs here execute a WRITE_WITH_IMM or SEND only when the peer has a receive posted. So a
//! receiver that polls late, or forgets to post receives again, stalls the sender, and a sender
//! that runs too far ahead shows as a protocol error of the receiver.
//!
//! `RANDOM_SEED=n` repeats one seed.

use polyrail_core::sequence::SequenceImm;
use polyrail_core::verbs::{Opcode, RecvWr, SendRequest, SendWr, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::{Event, VirtualWc};
use polyrail_core::virtual_qp::QpState;
use polyrail_tests::rig::{self, KEYS, LOCAL, REMOTE, Rig, Setup, local};
use polyrail_tests::scripted::QpHandle;

/// Address space of one request.
const STRIDE: u64 = 1 << 32;

struct Pair {
    sender: Rig,
    receiver: Rig,
    spray: bool,
    seed: u64,
    /// Of each fragmented request: bytes to write, bytes written, and whether it notifies.
    requests: Vec<(u64, u64, bool)>,
    sent: u64,
    /// Receives posted, and reported: notifications, then SENDs.
    posted: [u64; 2],
    reported: [u64; 2],
}

impl Pair {
    fn new(seed: u64) -> Self {
        let spray = seed.is_multiple_of(2);
        let rails = 2 + (seed / 2 % 3) as usize;
        let mut setup = if spray { Setup::spray(rails) } else { Setup::dqplb(rails) };
        setup = setup.fragment(128).depth(1 + (seed / 6 % 9) as u32);
        setup.notify_limits.max_recv_wr = 3;
        let (mut sender, mut receiver) = (setup.rig(), setup.rig());
        receiver.qp.prepare_receives().unwrap();
        if !spray {
            sender.qp.set_peer_window(receiver.qp.window()).unwrap();
        }
        let (requests, posted, reported) = (Vec::new(), [0; 2], [0; 2]);
        Self { sender, receiver, spray, seed, requests, sent: 0, posted, reported }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        (self.seed >> 33) % limit
    }

    fn post(&mut self) {
        let id = self.requests.len() as u64;
        let length = 1 + self.below(2000);
        let notifies = self.below(3) > 0;
        // SAFETY: the scripted NIC never touches memory.
        let local =
            unsafe { polyrail_core::verbs::LocalBuffer::new(LOCAL + id * STRIDE, length as u32) };
        let opcode = if notifies { Opcode::RdmaWriteWithImm } else { Opcode::RdmaWrite };
        let wr = SendWr::write(id, local, REMOTE + id * STRIDE, &KEYS);
        let wr = SendWr { opcode, imm: id as u32, ..wr };
        if self.sender.qp.post_send(&wr).is_ok() {
            self.requests.push((length, 0, notifies));
        }
        // With DQPLB the peer's receives are for notifications, and SENDs have nowhere to go.
        if self.spray && self.below(8) == 0 && self.sender.qp.post_send(&rig::send(0, 16)).is_ok() {
            self.sent += 1;
        }
    }

    fn post_recv(&mut self) {
        let name = self.posted[0];
        if self.receiver.qp.post_recv(&RecvWr::notification(name)).is_ok() {
            self.posted[0] += 1;
        }
        let name = self.posted[1];
        let data = RecvWr::data(name, local(64), &KEYS);
        if self.spray && self.below(6) == 0 && self.receiver.qp.post_recv(&data).is_ok() {
            self.posted[1] += 1;
        }
    }

    /// Both ends of every rail, and of the notify queue pairs.
    fn wires(&self) -> Vec<(QpHandle, QpHandle)> {
        let ends = |rig: &Rig| rig.rails.iter().chain(&rig.notify).cloned().collect::<Vec<_>>();
        ends(&self.sender).into_iter().zip(ends(&self.receiver)).collect()
    }

    /// Executes at most `most` requests of one wire.
    fn execute(&mut self, wire: usize, most: u64) -> u64 {
        let (from, to) = self.wires()[wire].clone();
        let mut executed = 0;
        while executed < most {
            let Some(request) = from.sends().first().copied() else { break };
            let consumes = !matches!(request.opcode, Opcode::RdmaWrite);
            if consumes && to.recvs().is_empty() {
                break;
            }
            from.complete(1);
            self.arrive(&to, &request);
            executed += 1;
        }
        executed
    }

    fn arrive(&mut self, to: &QpHandle, request: &SendRequest) {
        if request.opcode == Opcode::Send {
            return to.deliver_send(request.sge.length(), None);
        }
        if request.sge.length() > 0 {
            let id = (request.sge.addr() - LOCAL) / STRIDE;
            self.requests[id as usize].1 += u64::from(request.sge.length());
        }
        if request.opcode == Opcode::RdmaWriteWithImm {
            to.deliver_imm(request.imm);
            assert!(self.spray || SequenceImm::decode(request.imm).is_some());
        }
    }

    fn poll_receiver(&mut self, budget: usize) -> usize {
        let (events, _) = self.receiver.poll_events(budget);
        let wcs: Vec<_> = events.into_iter().filter_map(Event::completion).collect();
        wcs.iter().for_each(|wc| self.received(wc));
        wcs.len()
    }

    fn received(&mut self, wc: &VirtualWc) {
        assert_eq!(wc.status, WcStatus::SUCCESS);
        let kind = usize::from(wc.opcode == WcOpcode::RECV);
        assert_eq!(wc.wr_id, self.reported[kind], "receives come in posting order");
        self.reported[kind] += 1;
        if kind == 1 {
            return assert_eq!(wc.byte_len, 16);
        }
        let notifying = self.requests.iter().enumerate().filter(|(_, request)| request.2);
        let (id, _) = notifying.clone().nth(wc.wr_id as usize).expect("something was sent");
        assert_eq!(wc.imm, self.spray.then_some(id as u32));
        let before = &self.requests[..=id];
        // DQPLB counts notifying requests only; SPRAY's notify stands for everything before it.
        let complete = |(length, written, notifies): &(u64, u64, bool)| {
            written == length || !(self.spray || *notifies)
        };
        assert!(before.iter().all(complete), "{id} is reported before its data is there");
    }

    fn step(&mut self) {
        match self.below(10) {
            0..2 => self.post(),
            2..4 => self.post_recv(),
            4..8 => {
                let wires = self.wires().len() as u64;
                let (wire, most) = (self.below(wires), self.below(9));
                self.execute(wire as usize, most);
            }
            8 => {
                let budget = 1 + self.below(5);
                self.poll_receiver(budget as usize);
            }
            _ => drop(self.sender.poll()),
        }
    }

    fn finish(&mut self) {
        let mut idle = 0;
        while idle < 4 {
            let mut moved = 0;
            for wire in 0..self.wires().len() {
                moved += self.execute(wire, u64::MAX);
            }
            moved += self.sender.poll().len() as u64;
            moved += self.poll_receiver(usize::MAX) as u64;
            let wanting = self.requests.iter().filter(|request| request.2).count() as u64;
            if self.posted[0] < wanting || (self.spray && self.posted[1] < self.sent) {
                self.post_recv();
                moved += 1;
            }
            idle = if moved == 0 { idle + 1 } else { 0 };
        }
        for rig in [&self.sender, &self.receiver] {
            assert_eq!((rig.qp.state(), rig.qp.protocol_errors()), (QpState::Ready, 0));
        }
        assert_eq!((self.sender.qp.outstanding_sends(), self.receiver.qp.duplicates()), (0, 0));
        assert!(self.requests.iter().all(|(length, written, _)| length == written));
        let wanting = self.requests.iter().filter(|request| request.2).count() as u64;
        assert_eq!(self.reported[0], wanting, "every notification was received");
        assert_eq!(self.reported[1], self.sent, "every SEND was received");
    }
}

fn run(seed: u64) {
    let mut pair = Pair::new(seed);
    for _ in 0..500 {
        pair.step();
    }
    pair.finish();
}

#[test]
fn what_one_side_sends_the_other_receives_in_order() {
    if let Some(seed) = std::env::var("RANDOM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run(seed);
    }
    let seeds = std::env::var("RANDOM_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(200) {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "repeat with RANDOM_SEED={seed} cargo test --test random_pair");
    }
}
