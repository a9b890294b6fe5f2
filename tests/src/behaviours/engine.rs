//! The engine over the backend: every byte arrives as it was written.

use super::pair::{DEPTH, pattern};
use super::{ALL_ACCESS, End, Fixture, LIMIT, Memory, Retries};
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::{DeviceKeys, RecvWr, SendWr, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::{Event, VirtualCq, VirtualWc};
use polyrail_core::virtual_qp::{Config, QpState, RailError, RailId, Scheme, VirtualQp};
use std::time::Instant;

/// Bytes of each side's memory.
const BYTES: usize = 1 << 20;

/// A virtual queue pair of up to four rails, small enough that credits run out.
pub(super) type Qp<F> = VirtualQp<<F as Fixture>::Qp, 4, { DEPTH as usize }, 16>;

/// One end.
pub(super) struct Side<F: Fixture> {
    pub(super) qp: Box<Qp<F>>,
    pub(super) cq: VirtualCq<F::Cq, 4, 16>,
    pub(super) memory: F::Memory,
    /// Keys of both memories on each device.
    pub(super) keys: Vec<DeviceKeys>,
}

impl<F: Fixture> Side<F> {
    fn new(fixture: &F, end: End, rails: usize, config: Config) -> Self {
        let devices = rails.min(fixture.rails());
        let cqs: Vec<_> =
            (0..devices).map(|at| fixture.create_cq(end, at, Qp::<F>::cq_entries())).collect();
        let qp = |rail: usize| {
            let at = rail % devices;
            fixture.create_qp(end, at, &cqs[at], None, DEPTH)
        };
        let data: Vec<_> = (0..rails).map(qp).collect();
        let notify = (rails > 1 && config.scheme == Scheme::Spray).then(|| qp(0));
        let mut qp = Box::new(VirtualQp::new(config, data, notify).expect("a sound configuration"));
        qp.prepare_receives().expect("room for receives");
        let mut cq = VirtualCq::new(cqs).expect("few completion queues");
        cq.attach(0, &*qp).expect("deep completion queues");
        let memory = fixture.memory(end, BYTES, ALL_ACCESS);
        Self { qp, cq, memory, keys: Vec::new() }
    }

    fn learn_keys(&mut self, peer: &F::Memory) {
        for (at, qp) in self.qp.rails().enumerate() {
            let device = qp.device();
            if self.keys.iter().all(|keys| keys.device != device) {
                let lkey = self.memory.lkey(at);
                let rkey = peer.rkey(at);
                self.keys.push(DeviceKeys { device, lkey, rkey });
            }
        }
    }

    pub(super) fn poll(&mut self, mut report: impl FnMut(VirtualWc)) {
        let sink = |event: Event| report(event.completion().expect("every queue pair is attached"));
        let polled = self.cq.poll(&mut *self.qp, 16, sink);
        assert_eq!(polled.error, None);
        assert_eq!(self.qp.take_protocol_error(), None);
    }
}

/// Two connected ends.
pub(super) struct Engines<F: Fixture> {
    pub(super) near: Side<F>,
    pub(super) far: Side<F>,
}

impl<F: Fixture> Engines<F> {
    pub(super) fn new(fixture: &F, rails: usize, scheme: Scheme, retries: Retries) -> Self {
        Self::of(fixture, rails, Config { scheme, ..Config::default() }, retries)
    }

    /// With fragments of 8 KiB, and otherwise as `config` has it.
    pub(super) fn of(fixture: &F, rails: usize, config: Config, retries: Retries) -> Self {
        let config = Config { max_msg_size: 8192, ..config };
        let mut near = Side::new(fixture, End::Near, rails, Config { virtual_qp_num: 1, ..config });
        let mut far = Side::new(fixture, End::Far, rails, Config { virtual_qp_num: 2, ..config });
        let ids = (0..rails as u8).map(RailId::Data).chain([RailId::Notify]);
        for (rail, id) in ids.enumerate() {
            let device = if id == RailId::Notify { 0 } else { rail % fixture.rails() };
            if let (Some(a), Some(b)) = (near.qp.physical(id), far.qp.physical(id)) {
                fixture.connect(device, a, b, retries);
            }
        }
        near.learn_keys(&far.memory);
        far.learn_keys(&near.memory);
        Self { near, far }
    }

    /// Polls both ends until each has reported this many requests.
    pub(super) fn reports(&mut self, near: usize, far: usize) -> [Vec<VirtualWc>; 2] {
        let mut seen = [Vec::new(), Vec::new()];
        let start = Instant::now();
        while seen[0].len() < near || seen[1].len() < far {
            self.near.poll(|wc| seen[0].push(wc));
            self.far.poll(|wc| seen[1].push(wc));
            assert!(start.elapsed() < LIMIT, "{near} and {far} reports, only {seen:?}");
        }
        seen
    }

    pub(super) fn write(&mut self, wr_id: u64, offset: usize, length: u32) {
        let local = self.near.memory.local(offset, length);
        let to = self.far.memory.addr() + offset as u64;
        let wr = SendWr::write_with_imm(wr_id, local, to, 100 + wr_id as u32, &self.near.keys);
        self.near.qp.post_send(&wr).expect("room");
    }
}

/// Eight writes of 100 kB that lie apart, with notifications, and a read of all of them back.
pub(super) fn delivers<F: Fixture>(fixture: &F, rails: usize, scheme: Scheme) {
    const LENGTH: usize = 100_000;
    let mut engines = Engines::new(fixture, rails, scheme, Retries::MANY);
    let data = pattern(BYTES, rails as u64);
    engines.near.memory.write(0, &data);
    let offset = |wr_id: u64| 17 + wr_id as usize * (LENGTH + 1000);
    for wr_id in 0..8 {
        engines.far.qp.post_recv(&RecvWr::notification(wr_id)).expect("room");
        engines.write(wr_id, offset(wr_id), LENGTH as u32);
    }
    let [sent, received] = engines.reports(8, 8);
    let names: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(names, (0..8).map(|wr_id| (wr_id, WcStatus::SUCCESS)).collect::<Vec<_>>());
    let carries_imm = rails == 1 || scheme == Scheme::Spray;
    let imms: Vec<_> = received.iter().map(|wc| (wc.wr_id, wc.imm)).collect();
    let imm = |wr_id| (wr_id, carries_imm.then_some(100 + wr_id as u32));
    assert_eq!(imms, (0..8).map(imm).collect::<Vec<_>>());
    let arrived = engines.far.memory.read(0, BYTES);
    let mut expected = vec![0; BYTES];
    for at in (0..8).map(offset) {
        expected[at..at + LENGTH].copy_from_slice(&data[at..at + LENGTH]);
    }
    assert!(arrived == expected, "what arrived differs from what was sent");
    reads_back(&mut engines, &expected);
}

fn reads_back<F: Fixture>(engines: &mut Engines<F>, expected: &[u8]) {
    engines.near.memory.write(0, &vec![0xff; BYTES]);
    let local = engines.near.memory.local(0, 300_000);
    let wr = SendWr::read(9, local, engines.far.memory.addr(), &engines.near.keys);
    engines.near.qp.post_send(&wr).expect("room");
    let [done, _] = engines.reports(1, 0);
    assert_eq!((done[0].wr_id, done[0].status), (9, WcStatus::SUCCESS));
    assert!(
        engines.near.memory.read(0, 300_000) == expected[..300_000],
        "READ brought other bytes"
    );
    assert_eq!(engines.near.memory.read(300_000, 8), [0xff; 8]);
}

pub(super) fn spray_over_two_rails_delivers_every_byte<F: Fixture>(fixture: &F) {
    delivers(fixture, 2, Scheme::Spray);
}

pub(super) fn dqplb_over_two_rails_delivers_every_byte<F: Fixture>(fixture: &F) {
    delivers(fixture, 2, Scheme::Dqplb);
}

pub(super) fn a_single_rail_delivers_every_byte<F: Fixture>(fixture: &F) {
    delivers(fixture, 1, Scheme::Spray);
}

pub(super) fn the_engine_passes_sends_and_atomics_through<F: Fixture>(fixture: &F) {
    let mut engines = Engines::new(fixture, 2, Scheme::Spray, Retries::MANY);
    let Engines { near, far } = &mut engines;
    near.memory.write(0, b"through rail 0");
    far.memory.write(512, &5_u64.to_ne_bytes());
    far.qp.post_recv(&RecvWr::data(1, far.memory.local(0, 64), &far.keys)).expect("room");
    near.qp.post_send(&SendWr::send(2, near.memory.local(0, 14), &near.keys)).expect("room");
    let word = far.memory.addr() + 512;
    let add = SendWr::fetch_add(3, near.memory.local(64, 8), word, 3, &near.keys);
    near.qp.post_send(&add).expect("room");
    let [sent, received] = engines.reports(2, 1);
    let seen: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.opcode)).collect();
    assert_eq!(seen, [(2, WcOpcode::SEND), (3, WcOpcode::FETCH_ADD)]);
    assert_eq!((received[0].wr_id, received[0].byte_len), (1, 14));
    assert_eq!(engines.far.memory.read(0, 14), b"through rail 0");
    assert_eq!(engines.near.memory.read(64, 8), 5_u64.to_ne_bytes());
    assert_eq!(engines.far.memory.read(512, 8), 8_u64.to_ne_bytes());
}

/// Posts a write that uses both rails, and a second behind it. Returns the failure that the sender
/// reports.
pub(super) fn fails<F: Fixture>(engines: &mut Engines<F>, status: WcStatus) -> RailError {
    engines.write(1, 0, 100_000);
    engines.write(2, 100_000, 100_000);
    let [ends, _] = engines.reports(2, 0);
    let seen: Vec<_> = ends.iter().map(|wc| (wc.wr_id, wc.status.is_success())).collect();
    assert_eq!(seen, [(1, false), (2, false)]);
    assert_eq!(ends[0].status, status);
    assert_eq!(engines.near.qp.state(), QpState::Error);
    engines.near.qp.first_error().expect("an error was reported")
}

pub(super) fn the_engine_names_the_rail_that_failed<F: Fixture>(fixture: &F) {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let mut engines = Engines::new(fixture, 2, scheme, Retries::FEW);
        engines.near.keys[1].rkey ^= 0x0055_5500;
        let error = fails(&mut engines, WcStatus::REM_ACCESS_ERR);
        assert_eq!((error.rail, error.status), (RailId::Data(1), WcStatus::REM_ACCESS_ERR));
        assert_eq!(error.device, engines.near.keys[1].device);
    }
}

pub(super) fn the_engine_names_the_rail_of_a_bad_lkey<F: Fixture>(fixture: &F) {
    let status = fixture.statuses().write_with_bad_lkey;
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let mut engines = Engines::new(fixture, 2, scheme, Retries::FEW);
        engines.near.keys[1].lkey ^= 0x0055_5500;
        let error = fails(&mut engines, status);
        assert_eq!((error.rail, error.status), (RailId::Data(1), status));
    }
}

pub(super) fn the_engine_names_the_rail_that_left_the_region<F: Fixture>(fixture: &F) {
    const LENGTH: u32 = 100_000;
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let mut engines = Engines::new(fixture, 2, scheme, Retries::FEW);
        // The first rail gets the first half and a bit; the region ends in the second's share.
        let to = engines.far.memory.addr() + (BYTES - 60_000) as u64;
        let local = engines.near.memory.local(0, LENGTH);
        let keys = &engines.near.keys;
        let wr = SendWr::write_with_imm(1, local, to, 0, keys);
        engines.near.qp.post_send(&wr).expect("room");
        let [ends, _] = engines.reports(1, 0);
        let error = engines.near.qp.first_error().expect("an error was reported");
        assert_eq!((ends[0].status, error.status), (error.status, WcStatus::REM_ACCESS_ERR));
        assert_eq!((error.rail, error.device), (RailId::Data(1), engines.near.keys[1].device));
        assert!(error.offset > 0, "{error:?}");
    }
}

pub(super) fn the_engine_names_the_notify_queue_pair_that_meets_no_receive<F: Fixture>(
    fixture: &F,
) {
    let mut engines = Engines::new(fixture, 2, Scheme::Spray, Retries::FEW);
    engines.write(1, 0, 100_000);
    let [ends, _] = engines.reports(1, 0);
    let error = engines.near.qp.first_error().expect("an error was reported");
    assert_eq!((ends[0].status, error.status), (error.status, WcStatus::RNR_RETRY_EXC_ERR));
    assert_eq!(error.rail, RailId::Notify);
}
