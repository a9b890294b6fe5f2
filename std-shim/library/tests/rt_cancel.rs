//! Requests that are taken back, one at a time.

mod fixture;
mod rerouted;

use fixture::pair::{BYTES, Host};
use fixture::{LONG, impatient};
use polyrail::endpoint::{EndpointBuilder, EndpointError, connect_endpoints};
use polyrail::heal::{Detected, FailureReason, Healing};
use polyrail::nic::{Fabric, Fault, When};
use polyrail::verbs::{LocalBuffer, Opcode, RecvWr, SendWr, WcOpcode, WcStatus};
use polyrail::virtual_cq::VirtualWc;
use polyrail::virtual_qp::{CancelError, QpState, RailFailure, RailId, RailState, Scheme};
use rerouted::healed;
use std::time::{Duration, Instant};

const SCHEMES: [Scheme; 2] = [Scheme::Spray, Scheme::Dqplb];
const KINDS: [Kind; 3] = [Kind::Write, Kind::Notify, Kind::Read];
/// A request of more fragments than all rails hold.
const LENGTH: usize = 768 << 10;
/// Where the load is, in parts of `PART` bytes.
const LOAD: usize = LENGTH;
const PART: usize = 16 << 10;
const TARGET_POISON: u8 = 0xEE;
const SOURCE_POISON: u8 = 0xDD;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    /// WRITE_WITH_IMM.
    Notify,
    Read,
}

/// Two hosts on a fabric that goes step by step.
struct Pair {
    fabric: Fabric,
    near: Host,
    far: Host,
    /// Reports of `near`, in their order.
    reports: Vec<VirtualWc>,
    /// What `far` was notified of: immediates, with DQPLB none.
    notified: Vec<Option<u32>>,
}

fn builder(scheme: Scheme) -> EndpointBuilder {
    healed(scheme).max_msg_size(1024).cancel_grace(Duration::ZERO)
}

fn byte(at: usize) -> u8 {
    (at % 199) as u8 + 1
}

impl Pair {
    fn new(builder: &EndpointBuilder) -> Self {
        let fabric = Fabric::deterministic(7);
        let host = |name| Host::new(&fabric, name, 4, builder);
        let [mut near, mut far] = ["near", "far"].map(host);
        connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
        for wr_id in 0..64 {
            far.endpoint.post_recv(&RecvWr::notification(wr_id)).unwrap();
        }
        Self { fabric, near, far, reports: Vec::new(), notified: Vec::new() }
    }

    /// Posts a request between the same parts of both buffers, of which the one that is written is
    /// empty.
    fn post(&mut self, kind: Kind, wr_id: u64, at: usize, length: usize) {
        let (from, to) = self.way(kind);
        let bytes: Vec<u8> = (at..at + length).map(byte).collect();
        from.buffer.write_at(at, &bytes).unwrap();
        to.buffer.fill(at, length, 0).unwrap();
        let Self { near, far, .. } = self;
        let keys = near.buffer.toward(&far.buffer.remote()).unwrap();
        let local = near.buffer.local(at, length as u32).unwrap();
        let remote = far.buffer.addr() + at as u64;
        let wr = match kind {
            Kind::Write => SendWr::write(wr_id, local, remote, &keys),
            Kind::Notify => SendWr::write_with_imm(wr_id, local, remote, wr_id as u32, &keys),
            Kind::Read => SendWr::read(wr_id, local, remote, &keys),
        };
        near.endpoint.post_send(&wr).unwrap();
    }

    /// The host whose bytes move, and the one whose memory is written.
    fn way(&self, kind: Kind) -> (&Host, &Host) {
        match kind {
            Kind::Read => (&self.far, &self.near),
            Kind::Write | Kind::Notify => (&self.near, &self.far),
        }
    }

    fn poll_near(&mut self) {
        let batch = self.near.endpoint.poll(16);
        assert_eq!(batch.error, None);
        self.reports.extend(batch.completions);
    }

    fn poll_far(&mut self) {
        let batch = self.far.endpoint.poll(16);
        assert_eq!(batch.error, None);
        let notified = batch.completions.iter().filter(|wc| wc.opcode != WcOpcode::RECV);
        self.notified.extend(notified.map(|wc| wc.imm));
    }

    fn step(&mut self) {
        self.fabric.step();
        self.poll_near();
        self.poll_far();
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    #[track_caller]
    fn until(&mut self, is_there: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !is_there(self) {
            self.step();
            assert!(begin.elapsed() < LONG, "{:?} {:?}", self.reports, self.notified);
        }
    }

    fn report(&self, wr_id: u64) -> Option<&VirtualWc> {
        self.reports.iter().find(|wc| wc.wr_id == wr_id)
    }

    fn is_ready(&self) -> bool {
        [&self.near, &self.far].iter().all(|host| host.endpoint.state() == QpState::Ready)
    }

    /// How often rails of an end failed for this reason.
    fn failures(&self, near: bool, reason: FailureReason) -> u64 {
        let host = if near { &self.near } else { &self.far };
        host.endpoint.metrics().rails.iter().map(|rail| rail.failures.of(reason)).sum()
    }

    fn rail_state(&self, rail: u8) -> RailState {
        self.near.endpoint.virtual_qp().rail_state(RailId::Data(rail)).unwrap()
    }
}

/// Among others, which all arrive; and nothing of it is written after its report.
#[test]
fn a_long_request_is_taken_back_under_load() {
    for scheme in SCHEMES {
        for kind in KINDS {
            for steps in [0, 40, 300] {
                let mut pair = Pair::new(&builder(scheme));
                let load = |pair: &mut Pair, number: usize| {
                    pair.post(Kind::Notify, number as u64, LOAD + number * PART, PART);
                };
                (0..2).for_each(|number| load(&mut pair, number));
                pair.post(kind, 100, 0, LENGTH);
                (2..4).for_each(|number| load(&mut pair, number));
                pair.steps(steps);
                pair.near.endpoint.cancel(100).unwrap();
                pair.until(|pair| pair.report(100).is_some());
                let wc = *pair.report(100).unwrap();
                assert_eq!(wc.status, WcStatus::CANCELLED);
                let written = wc.byte_len as usize;
                assert!(
                    written > 0 && written < LENGTH && written.is_multiple_of(1024),
                    "{written}"
                );
                let (from, to) = pair.way(kind);
                let bytes = to.bytes();
                assert!((0..written).all(|at| [0, byte(at)].contains(&bytes[at])));
                assert!(bytes[written..LENGTH].iter().all(|byte| *byte == 0), "behind byte_len");
                to.buffer.fill(0, LENGTH, TARGET_POISON).unwrap();
                from.buffer.fill(0, LENGTH, SOURCE_POISON).unwrap();
                load(&mut pair, 4);
                pair.until(|pair| pair.reports.len() == 6 && pair.notified.len() == 5);
                pair.until(Pair::is_ready);
                pair.steps(500);
                let late = pair.way(kind).1.bytes()[..LENGTH]
                    .iter()
                    .position(|byte| *byte != TARGET_POISON);
                assert_eq!(late, None, "{scheme:?} {kind:?}: written after the report");
                let others = pair.reports.iter().filter(|wc| wc.wr_id != 100);
                assert!(others.clone().all(|wc| wc.status.is_success()));
                assert!(others.map(|wc| wc.wr_id).eq(0..5), "each once and in order");
                let imms = (0..5).map(|imm| (scheme == Scheme::Spray).then_some(imm));
                assert!(imms.eq(pair.notified.iter().copied()), "{:?}", pair.notified);
                let arrived = &pair.far.bytes()[LOAD..LOAD + 5 * PART];
                assert!((LOAD..).zip(arrived).all(|(at, there)| *there == byte(at)));
                let mine = pair.failures(true, FailureReason::OnPurpose);
                let others = pair.failures(false, FailureReason::PeerOnPurpose);
                assert!(mine > 0 && others > 0, "{mine} {others}");
                let told = pair.near.endpoint.take_rail_event().unwrap().to_string();
                assert!(told.ends_with(" is fenced to take requests back"), "{told}");
            }
        }
    }
}

/// What is acknowledged in its grace costs no rail anything.
#[test]
fn a_request_that_arrives_in_its_grace_is_delivered() {
    for scheme in SCHEMES {
        let mut pair = Pair::new(&builder(scheme).cancel_grace(Duration::from_secs(600)));
        pair.post(Kind::Write, 1, 0, PART);
        pair.near.endpoint.cancel(1).unwrap();
        assert!(pair.near.endpoint.needs_poll());
        pair.until(|pair| !pair.reports.is_empty());
        let wc = pair.reports[0];
        assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::SUCCESS, PART));
        pair.steps(100);
        assert!(pair.is_ready() && pair.near.endpoint.take_rail_event().is_none());
        assert!(!pair.near.endpoint.needs_poll());
    }
}

/// Each time at once: nothing is wrong with the rail.
#[test]
fn rails_that_are_fenced_on_purpose_return_without_a_pause() {
    let healing = Healing {
        first_interval: Duration::from_secs(3600),
        longest_interval: Duration::from_secs(3600),
        ..Healing::default()
    };
    for scheme in SCHEMES {
        let mut pair = Pair::new(&builder(scheme).healing(healing));
        for number in 0..5 {
            pair.post(Kind::Write, number, 0, LENGTH);
            pair.steps(20);
            pair.near.endpoint.cancel(number).unwrap();
            pair.until(|pair| pair.report(number).is_some() && pair.is_ready());
        }
        let generation = pair.near.endpoint.virtual_qp().rail_generation(RailId::Data(1));
        assert!(generation >= Some(3), "{generation:?}");
    }
}

fn limits(fence: Duration, rails: Duration) -> Healing {
    let (fence_timeout, rail_timeout) = (Some(fence), Some(rails));
    Healing { fence_timeout, rail_timeout, ..Healing::default() }
}

/// The peer does not poll, and nothing that is in flight arrives: its rails fail, and then the
/// endpoint, which says through which rails the peer's memory may still be written.
#[test]
fn a_peer_that_does_not_answer_ends_a_write() {
    let limit = Duration::from_millis(40);
    let mut pair = Pair::new(&builder(Scheme::Spray).healing(limits(limit, LONG)));
    pair.post(Kind::Write, 1, 0, LENGTH);
    let begin = Instant::now();
    pair.near.endpoint.cancel(1).unwrap();
    while pair.rail_state(0) == RailState::InService {
        pair.poll_near();
        assert!(begin.elapsed() < LONG);
    }
    assert!(begin.elapsed() >= limit);
    let event = pair.near.endpoint.take_rail_event().unwrap();
    assert_eq!(event.detected, Some(Detected::NotFenced(limit)));
    assert!(event.to_string().contains("the peer was asked to fence it, and did not for 40ms"));
    assert_eq!(pair.near.endpoint.failure(), None);
    while pair.reports.is_empty() {
        pair.fabric.step();
        pair.poll_near();
        assert!(begin.elapsed() < LONG);
    }
    assert!(begin.elapsed() >= 2 * limit);
    assert_eq!(pair.reports[0].status, WcStatus::WR_FLUSH_ERR);
    let Some(EndpointError::NoFence { waited, unfenced, .. }) = pair.near.endpoint.failure() else {
        panic!("{:?}", pair.near.endpoint.failure())
    };
    assert_eq!((waited, unfenced.is_empty()), (limit, false));
    assert_eq!(pair.near.endpoint.cancel(1), Err(CancelError::InErrorState));
}

/// Only this end's own queue pairs write what it reads.
#[test]
fn a_peer_that_does_not_answer_does_not_hold_a_read() {
    let limit = Duration::from_millis(400);
    let mut pair = Pair::new(&builder(Scheme::Spray).healing(limits(limit, LONG)));
    pair.post(Kind::Read, 1, 0, LENGTH);
    let begin = Instant::now();
    pair.near.endpoint.cancel(1).unwrap();
    while pair.rail_state(0) == RailState::InService {
        pair.poll_near();
        assert!(begin.elapsed() < LONG);
    }
    while pair.reports.is_empty() {
        pair.fabric.step();
        pair.poll_near();
        assert!(begin.elapsed() < LONG);
    }
    assert_eq!(pair.reports[0].status, WcStatus::CANCELLED);
    assert_eq!(pair.near.endpoint.failure(), None);
    pair.near.buffer.fill(0, LENGTH, TARGET_POISON).unwrap();
    // The peer was only late.
    pair.until(Pair::is_ready);
    pair.steps(500);
    assert!(pair.near.bytes()[..LENGTH].iter().all(|byte| *byte == TARGET_POISON));
}

/// For rails that are out on purpose, only the limit of the fence counts.
#[test]
fn a_fence_on_purpose_is_no_absence_of_rails() {
    let rails = Duration::from_millis(10);
    // With DQPLB there are receives to drain, which takes polls.
    let mut pair = Pair::new(&builder(Scheme::Dqplb).min_rails(4).healing(limits(LONG, rails)));
    pair.post(Kind::Write, 1, 0, LENGTH);
    pair.near.endpoint.cancel(1).unwrap();
    let begin = Instant::now();
    // The peer stops its queue pairs, and then does not poll for long.
    while pair.rail_state(0) == RailState::InService {
        pair.poll_near();
        pair.far.endpoint.heal();
        assert!(begin.elapsed() < LONG);
    }
    let begin = Instant::now();
    while begin.elapsed() < 20 * rails {
        pair.fabric.step();
        pair.poll_near();
    }
    let state = pair.rail_state(0);
    assert!(matches!(state, RailState::Draining | RailState::Fenced), "{state:?}");
    assert_eq!(pair.near.endpoint.failure(), None);
    pair.until(|pair| !pair.reports.is_empty() && pair.is_ready());
    assert_eq!(pair.reports[0].status, WcStatus::CANCELLED);
}

#[test]
fn what_cannot_be_taken_back_is_refused_in_words() {
    let mut pair = Pair::new(&builder(Scheme::Spray).cancel_grace(LONG));
    let unknown = CancelError::Unknown { wr_id: 9 };
    assert_eq!(pair.near.endpoint.cancel(9), Err(unknown));
    let mut other = Pair::new(&builder(Scheme::Spray));
    other.near.endpoint.post_send(&SendWr::send(3, LocalBuffer::EMPTY, &[])).unwrap();
    let send = CancelError::Opcode(Opcode::Send);
    assert_eq!(other.near.endpoint.cancel(3), Err(send));
    pair.post(Kind::Write, 1, 0, PART);
    pair.post(Kind::Write, 2, PART, PART);
    pair.post(Kind::Write, 2, 2 * PART, PART);
    let twice = CancelError::NotUnique { wr_id: 2, count: 2 };
    assert_eq!(pair.near.endpoint.cancel(2), Err(twice));
    pair.near.endpoint.cancel(1).unwrap();
    assert_eq!(pair.near.endpoint.cancel(1), Err(CancelError::AlreadyCancelled));
    let keys = pair.near.buffer.toward(&pair.far.buffer.remote()).unwrap();
    let (local, remote) = (pair.near.buffer.local(0, 64).unwrap(), pair.far.buffer.addr());
    let notify = SendWr::write_with_imm(4, local, remote, 4, &keys);
    pair.near.endpoint.post_send(&notify).unwrap();
    pair.until(|pair| pair.reports.iter().any(|wc| wc.wr_id == 4));
    let unknown = CancelError::Unknown { wr_id: 4 };
    assert_eq!(pair.near.endpoint.cancel(4), Err(unknown));
    pair.until(|pair| pair.reports.len() == 4);
    assert!(pair.reports.iter().all(|wc| wc.status.is_success()));
}

#[test]
fn only_requests_with_re_routing_can_be_taken_back() {
    let fatal = builder(Scheme::Spray).rail_failure(RailFailure::Fatal);
    for builder in [fatal, fatal.rails(1)] {
        let mut pair = Pair::new(&builder);
        pair.post(Kind::Write, 1, 0, PART);
        assert_eq!(pair.near.endpoint.cancel(1), Err(CancelError::NotRerouting));
        pair.until(|pair| !pair.reports.is_empty());
        assert!(pair.reports[0].status.is_success());
    }
}

/// Its last fragment waits for its turn, so it is not reported although it arrived.
#[test]
fn a_request_that_is_done_but_for_its_report_is_too_late() {
    let mut pair = Pair::new(&builder(Scheme::Spray));
    for device in &pair.near.devices[1..] {
        device.inject(When::Now, Fault::Silent(true));
    }
    pair.post(Kind::Write, 1, 0, 2 * 1024);
    // Over rails in turn: the second half of the first request is on a silent rail, and the second
    // request, of 3 parts, ends at rail 0.
    for wr_id in 2..6 {
        pair.post(Kind::Write, wr_id, wr_id as usize * PART, 1024);
    }
    pair.steps(300);
    assert_eq!(pair.reports, []);
    let refused: Vec<_> =
        (2..6).map(|wr_id| pair.near.endpoint.cancel(wr_id)).filter(Result::is_err).collect();
    assert_eq!(refused, [Err(CancelError::TooLate)], "one of four is on rail 0");
}

/// Also while no completion comes.
#[test]
fn a_wait_ends_with_the_grace() {
    let grace = Duration::from_millis(20);
    let fabric = Fabric::threaded();
    let builder = EndpointBuilder::new()
        .rail_failure(RailFailure::Reroute)
        .connect_options(impatient())
        .completion_channel(0)
        .cancel_grace(grace);
    let host = |name| Host::new(&fabric, name, 4, &builder);
    let [mut near, mut far] = ["near", "far"].map(host);
    connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
    for device in &near.devices {
        device.inject(When::Now, Fault::Silent(true));
    }
    near.write_to(&far, 1, 64 << 10);
    std::thread::scope(|scope| {
        let (sender, ends) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            while ends.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                _ = far.endpoint.wait(Some(Duration::from_millis(1)), |_| ()).unwrap();
            }
        });
        let begin = Instant::now();
        near.endpoint.cancel(1).unwrap();
        let mut reports = Vec::new();
        while reports.is_empty() {
            let sink = |event: polyrail::virtual_cq::Event| reports.extend(event.completion());
            _ = near.endpoint.wait(Some(LONG), sink).unwrap();
        }
        let after = begin.elapsed();
        drop(sender);
        assert_eq!(reports[0].status, WcStatus::CANCELLED);
        assert!(after >= grace && after < LONG / 4, "{after:?}");
    });
}

const _: () = assert!(LOAD + 6 * PART <= BYTES);
