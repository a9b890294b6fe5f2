//! Many requests that are taken back by both ends, while rails fail or not, with every byte
//! checked.

mod fixture;
mod rerouted;

use fixture::Host;
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{Device, Fabric};
use polyrail::verbs::{DeviceKeys, RecvWr, SendWr, WcOpcode, WcStatus};
use polyrail::virtual_cq::VirtualWc;
use polyrail::virtual_qp::{CancelError, QpState, Scheme};
use rerouted::fault_schedule::{FaultSchedule, Random, TwoEnds};
use rerouted::healed;
use std::sync::LazyLock;
use std::time::Duration;

/// Bytes that a request has at most: more fragments than a few rails hold.
const LENGTH: usize = 64 << 10;
/// Requests that an end has under way.
const SLOTS: usize = 8;
/// Receives that an end has posted.
const RECEIVES: usize = 64;
const FRAGMENT: u32 = 1024;
/// What a request has not written, or what was written over.
const TARGET_POISON: u8 = 0xEE;
const SOURCE_POISON: u8 = 0xDD;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    /// WRITE_WITH_IMM.
    Notify,
    Read,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Request {
    number: u64,
    kind: Kind,
    length: usize,
    /// It was taken back, and that was accepted.
    is_wanted_back: bool,
}

/// Parts of a buffer, of a slot's length each.
#[derive(Clone, Copy)]
enum Part {
    Source,
    Target,
    /// What the peer reads.
    Constant,
    Fetched,
}

fn place(part: Part, slot: usize) -> usize {
    (part as usize * SLOTS + slot) * LENGTH
}

/// What requests carry, each from another place on; never one of the poisons.
static BYTES: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..199 + LENGTH).map(|at| (at % 199) as u8 + 1).collect());

fn bytes_of(number: u64) -> &'static [u8] {
    &BYTES[number as usize * 31 % 199..]
}

fn are_all(bytes: &[u8], poison: u8) -> bool {
    bytes == &[poison; LENGTH][..bytes.len()]
}

struct End {
    devices: Vec<Device>,
    buffer: RegisteredBuffer,
    endpoint: Endpoint,
    keys: Vec<DeviceKeys>,
    target: u64,
    slots: [Option<Request>; SLOTS],
    posted: u64,
    /// Requests that notify the peer, in the order of posting, and whether they are delivered.
    notifying: Vec<(u64, bool)>,
    notified: Vec<Option<u32>>,
    cancelled: u64,
    delivered: u64,
}

struct Ends {
    fabric: Fabric,
    ends: [End; 2],
    random: Random,
}

impl TwoEnds for Ends {
    fn side(&mut self, is_near: bool) -> (&[Device], &mut Endpoint) {
        let end = &mut self.ends[usize::from(!is_near)];
        (&end.devices, &mut end.endpoint)
    }
}

impl End {
    fn new(fabric: &Fabric, name: &str, builder: &EndpointBuilder) -> Self {
        let host = Host::new(fabric, name, 4, 4 * SLOTS * LENGTH);
        let mut endpoint = builder.build(&host.all()).unwrap();
        for wr_id in 0..RECEIVES as u64 {
            endpoint.post_recv(&RecvWr::notification(wr_id)).unwrap();
        }
        let Host { devices, buffer, .. } = host;
        buffer.fill(place(Part::Source, 0), SLOTS * LENGTH, SOURCE_POISON).unwrap();
        buffer.fill(place(Part::Target, 0), SLOTS * LENGTH, TARGET_POISON).unwrap();
        buffer.fill(place(Part::Fetched, 0), SLOTS * LENGTH, TARGET_POISON).unwrap();
        for slot in 0..SLOTS {
            let constant = &bytes_of(slot as u64)[..LENGTH];
            buffer.write_at(place(Part::Constant, slot), constant).unwrap();
        }
        Self {
            devices,
            buffer,
            endpoint,
            keys: Vec::new(),
            target: 0,
            slots: [None; SLOTS],
            posted: 0,
            notifying: Vec::new(),
            notified: Vec::new(),
            cancelled: 0,
            delivered: 0,
        }
    }

    fn post(&mut self, random: &mut Random, slot: usize) {
        let kind = [Kind::Write, Kind::Notify, Kind::Read][random.below(3) as usize];
        let length = 1 + random.below(LENGTH as u64) as usize;
        let number = self.posted;
        let (part, far) = match kind {
            Kind::Read => (Part::Fetched, Part::Constant),
            Kind::Write | Kind::Notify => (Part::Source, Part::Target),
        };
        let local = self.buffer.local(place(part, slot), length as u32).unwrap();
        let remote = self.target + place(far, slot) as u64;
        let wr = match kind {
            Kind::Write => SendWr::write(number, local, remote, &self.keys),
            Kind::Notify => {
                SendWr::write_with_imm(number, local, remote, number as u32, &self.keys)
            }
            Kind::Read => SendWr::read(number, local, remote, &self.keys),
        };
        if kind != Kind::Read {
            let bytes = &bytes_of(number)[..length];
            self.buffer.write_at(place(Part::Source, slot), bytes).unwrap();
        }
        self.endpoint.post_send(&wr).unwrap();
        if kind == Kind::Notify {
            self.notifying.push((number, false));
        }
        self.slots[slot] = Some(Request { number, kind, length, is_wanted_back: false });
        self.posted += 1;
    }

    /// Takes a request back.
    fn cancel(&mut self, slot: usize) {
        let Some(request) = &mut self.slots[slot] else { return };
        match self.endpoint.cancel(request.number) {
            Ok(()) => {
                assert!(!request.is_wanted_back);
                request.is_wanted_back = true;
            }
            Err(CancelError::AlreadyCancelled) => assert!(request.is_wanted_back),
            // Done but for its report, which waits for its turn.
            Err(CancelError::TooLate | CancelError::Unknown { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn take(&mut self, wc: &VirtualWc, peer: &RegisteredBuffer) {
        if wc.opcode == WcOpcode::RECV_RDMA_WITH_IMM {
            assert!(wc.status.is_success(), "{wc:?}");
            self.notified.push(wc.imm);
            return self.endpoint.post_recv(&RecvWr::notification(wc.wr_id)).unwrap();
        }
        let is_it = |slot: &Option<Request>| slot.is_some_and(|it| it.number == wc.wr_id);
        let slot = self.slots.iter().position(is_it).expect("each request is reported once");
        let request = self.slots[slot].take().unwrap();
        let Request { number, kind, length, is_wanted_back } = request;
        let (memory, part) = match kind {
            Kind::Read => (&self.buffer, Part::Fetched),
            Kind::Write | Kind::Notify => (peer, Part::Target),
        };
        let expected = match kind {
            Kind::Read => bytes_of(slot as u64),
            Kind::Write | Kind::Notify => bytes_of(number),
        };
        let mut bytes = vec![0; LENGTH];
        memory.read_at(place(part, slot), &mut bytes).unwrap();
        let reached = match wc.status {
            WcStatus::SUCCESS => {
                self.delivered += 1;
                assert!(bytes[..length] == expected[..length], "{request:?}: not as it was sent");
                length
            }
            WcStatus::CANCELLED => {
                assert!(is_wanted_back, "{request:?}");
                self.cancelled += 1;
                let reached = wc.byte_len as usize;
                assert!(reached <= length, "{request:?} {wc:?}");
                let mut pairs = bytes[..reached].iter().zip(expected);
                assert!(pairs.all(|(is, sent)| is == sent || *is == TARGET_POISON), "{request:?}");
                reached
            }
            status => panic!("{request:?}: {status}: {}", self.endpoint.explain(status)),
        };
        assert!(are_all(&bytes[reached..], TARGET_POISON), "{request:?}: behind byte {reached}");
        if kind == Kind::Notify && wc.status.is_success() {
            let mut all = self.notifying.iter_mut();
            all.find(|(other, _)| *other == number).unwrap().1 = true;
        }
        // From here on all of this is the caller's.
        memory.fill(place(part, slot), LENGTH, TARGET_POISON).unwrap();
        self.buffer.fill(place(Part::Source, slot), LENGTH, SOURCE_POISON).unwrap();
    }

    /// Nothing was written after it was reported.
    fn check_slot(&self, slot: usize, peer: &RegisteredBuffer) {
        for (memory, part) in [(&self.buffer, Part::Fetched), (peer, Part::Target)] {
            let mut bytes = vec![0; LENGTH];
            memory.read_at(place(part, slot), &mut bytes).unwrap();
            let last = self.posted;
            assert!(are_all(&bytes, TARGET_POISON), "slot {slot}: written late, up to {last}");
        }
    }
}

/// One end, and the other one.
fn with_peer(ends: &mut [End; 2], at: usize) -> (&mut End, &End) {
    let [near, far] = ends;
    if at == 0 { (near, far) } else { (far, near) }
}

impl Ends {
    fn new(seed: u64, builder: &EndpointBuilder) -> Self {
        let fabric = Fabric::deterministic(seed);
        let end = |name| End::new(&fabric, name, builder);
        let mut ends = ["near", "far"].map(end);
        let [near, far] = &mut ends;
        connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
        for at in 0..2 {
            let (end, peer) = with_peer(&mut ends, at);
            end.keys = end.buffer.toward(&peer.buffer.remote()).unwrap();
            end.target = peer.buffer.addr();
        }
        Self { fabric, ends, random: Random(!seed) }
    }

    /// One step; posts as long as an end has posted fewer than `limit` requests.
    fn step(&mut self, limit: u64) {
        self.fabric.step();
        let Self { ends, random, .. } = self;
        for at in 0..2 {
            let (end, peer) = with_peer(ends, at);
            let slot = random.below(SLOTS as u64) as usize;
            if end.slots[slot].is_none() && end.posted < limit {
                if random.one_in(4) {
                    end.check_slot(slot, &peer.buffer);
                }
                end.post(random, slot);
            } else if random.one_in(60) {
                end.cancel(slot);
            }
            let batch = end.endpoint.poll(16);
            assert_eq!(batch.error, None);
            assert_eq!(batch.foreign, []);
            batch.completions.iter().for_each(|wc| end.take(wc, &peer.buffer));
        }
    }

    fn cancelled(&self) -> u64 {
        self.ends.iter().map(|end| end.cancelled).sum()
    }

    fn is_done(&self) -> bool {
        self.ends.iter().all(|end| end.slots.iter().all(Option::is_none))
    }

    fn is_ready(&self) -> bool {
        self.ends.iter().all(|end| end.endpoint.state() == QpState::Ready)
    }

    /// Steps until `is_there`.
    fn go_on(&mut self, limit: u64, is_there: impl Fn(&Self) -> bool) {
        let far_more = 2_000_000 + self.fabric.steps();
        while !is_there(self) {
            self.step(limit);
            assert!(
                self.fabric.steps() < far_more,
                "{:?}",
                self.ends.each_ref().map(|it| it.slots)
            );
        }
    }

    /// Nothing is under way any more, and all that was reported is as it was left.
    fn finish(&mut self) {
        self.go_on(0, |ends| ends.is_done() && ends.is_ready());
        (0..1000).for_each(|_| self.step(0));
        for (at, end) in self.ends.iter().enumerate() {
            let peer = &self.ends[1 - at];
            (0..SLOTS).for_each(|slot| end.check_slot(slot, &peer.buffer));
            let delivered = end.notifying.iter().filter(|(_, is_delivered)| *is_delivered);
            // With DQPLB there are no immediates.
            let has_imms = end.endpoint.virtual_qp().config().scheme == Scheme::Spray;
            let imms = delivered.map(|(number, _)| has_imms.then_some(*number as u32));
            assert!(peer.notified.iter().copied().eq(imms), "as delivered, in order, each once");
            assert_eq!(end.endpoint.virtual_qp().unreported_sends(), 0);
            assert_eq!(end.endpoint.virtual_qp().protocol_errors(), 0);
        }
    }
}

/// Takes back until so many requests were reported as cancelled, while rails fail or not.
fn storm(seed: u64, scheme: Scheme, cancels: u64, fails: bool) {
    let grace = [Duration::ZERO, Duration::from_micros(200)][seed as usize % 2];
    let builder = healed(scheme).max_msg_size(FRAGMENT).min_rails(0).cancel_grace(grace);
    let mut ends = Ends::new(seed, &builder);
    let mut schedule = FaultSchedule::new(seed);
    let far_more = 2000 * cancels + 1_000_000;
    while ends.cancelled() < cancels {
        ends.step(u64::MAX);
        if fails {
            schedule.step(&mut ends);
        }
        assert!(ends.fabric.steps() < far_more, "{} cancelled", ends.cancelled());
    }
    if fails {
        schedule.lift_all(&mut ends);
    }
    ends.finish();
    let delivered: u64 = ends.ends.iter().map(|end| end.delivered).sum();
    assert!(delivered > 0);
}

const SCHEMES: [Scheme; 2] = [Scheme::Spray, Scheme::Dqplb];

#[test]
fn nothing_is_written_after_many_reports() {
    for scheme in SCHEMES {
        (0..2).for_each(|seed| storm(seed, scheme, 50, false));
    }
}

#[test]
fn nothing_is_written_after_many_reports_while_rails_fail() {
    for scheme in SCHEMES {
        (2..4).for_each(|seed| storm(seed, scheme, 50, true));
    }
}

#[test]
#[ignore = "slow: 10,000 requests; tests/full.sh runs it"]
fn nothing_is_written_after_ten_thousand_reports() {
    for scheme in SCHEMES {
        (0..10).for_each(|seed| storm(seed, scheme, 500, seed % 4 > 0));
    }
}
