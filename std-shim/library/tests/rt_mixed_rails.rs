//! Endpoints with rails of the software NIC and of TCP, both ends in this process.

mod fixture;
mod messages;

use fixture::{ALL_ACCESS, LONG};
use messages::{Pair, Side};
use polyrail::any::{
    AnyCompletionQueue, AnyDomain, AnyQueuePair, AnyRegion, OpenOptions, open_devices,
};
use polyrail::backend::{DeviceError, Domain, QpCap};
use polyrail::endpoint::{
    ConnectError, Endpoint, EndpointBuilder, RailMismatch, connect_endpoints,
};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceLimits, Fault, When};
use polyrail::p2p::P2pBuilder;
use polyrail::tcp;
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{QpState, RailFailure, RailId, RailState, Scheme};
use std::collections::BTreeSet;
use std::mem::swap;
use std::time::Instant;

const SCHEMES: [Scheme; 2] = [Scheme::Spray, Scheme::Dqplb];

const RAILS: u8 = 4;

/// Places of the devices of [`devices`].
const SOFTWARE: usize = 0;
const TCP: usize = 1;

/// Opens a device of each backend, for one end of a test.
fn devices(test: u8, end: u8) -> Vec<AnyDomain> {
    let names = [format!("software:{test}.{end}"), format!("tcp:127.4.{test}.{end}")];
    open_devices(&names, &OpenOptions::default()).unwrap()
}

fn set_link(domain: &AnyDomain, up: bool) {
    match domain {
        AnyDomain::Software(domain) => {
            let fault = if up { Fault::LinkUp } else { Fault::LinkDown };
            domain.device().inject(When::Now, fault);
        }
        AnyDomain::Tcp(domain) => domain.device().set_link(up),
        other => panic!("{other:?}"),
    }
}

/// Bytes of the WRITEs of a round, and of its READ.
const LENGTH: usize = 1 << 20;
/// Number of WRITEs.
const WRITES: usize = 4;
/// Bytes of a SEND, and the number of SENDs.
const SEND: usize = 5000;
const SENDS: usize = 4;

/// Parts of each end's memory.
const SOURCE: usize = 0;
const TARGET: usize = LENGTH;
/// The peer reads it.
const CONSTANT: usize = 2 * LENGTH;
const FETCHED: usize = 3 * LENGTH;
const SENT: usize = 4 * LENGTH;
const RECEIVED: usize = SENT + SENDS * SEND;
const WORD: usize = RECEIVED + SENDS * SEND;
const OLD_WORD: usize = WORD + 8;
const BYTES: usize = OLD_WORD + 8;

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let byte = |at: u64| ((at ^ seed).wrapping_mul(0x9e37_79b9) >> 24) as u8;
    (0..length as u64).map(byte).collect()
}

/// One end: four rails, of the software NIC and of TCP in turn.
struct End {
    domains: Vec<AnyDomain>,
    endpoint: Endpoint<AnyQueuePair, AnyCompletionQueue>,
    buffer: RegisteredBuffer<AnyRegion>,
    /// Requests and receives that were reported in this round.
    reported: BTreeSet<u64>,
}

impl End {
    fn new(builder: &EndpointBuilder, domains: Vec<AnyDomain>) -> Self {
        let all: Vec<&AnyDomain> = domains.iter().collect();
        let endpoint = builder.build(&all).unwrap();
        let buffer = RegisteredBuffer::new(BYTES, ALL_ACCESS, &all).unwrap();
        Self { endpoint, buffer, domains, reported: BTreeSet::new() }
    }

    fn poll(&mut self) {
        let batch = self.endpoint.poll(16);
        for wc in &batch.completions {
            let status = wc.status;
            assert_eq!(status, WcStatus::SUCCESS, "{wc:?}: {}", self.endpoint.explain(status));
            assert!(self.reported.insert(wc.wr_id), "{wc:?} was reported twice");
        }
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    /// Returns whether every rail is in service, on the device where it began.
    fn is_whole(&self) -> bool {
        let qp = self.endpoint.virtual_qp();
        let notify = qp.notify_qp().map(|_| (RailId::Notify, SOFTWARE));
        let rails = (0..RAILS).map(|rail| (RailId::Data(rail), usize::from(rail % 2)));
        rails.chain(notify).all(|(rail, home)| {
            qp.rail_state(rail) == Some(RailState::InService)
                && self.endpoint.device_of(rail) == self.domains[home].device_name()
        })
    }

    /// Returns the rails that are always on a device: all but rail 0 and the notify queue pair.
    fn rails_of(device: usize) -> impl Iterator<Item = u8> {
        (1..RAILS).filter(move |rail| usize::from(rail % 2) == device)
    }

    /// Returns the bytes that these rails have carried.
    fn carried(&self, device: usize) -> u64 {
        let counters = |rail| self.endpoint.virtual_qp().counters(RailId::Data(rail)).unwrap();
        Self::rails_of(device).map(|rail| counters(rail).bytes).sum()
    }

    /// Returns whether rail 0 is in service over TCP.
    fn has_moved(&self) -> bool {
        let rail = RailId::Data(0);
        self.endpoint.virtual_qp().rail_state(rail) == Some(RailState::InService)
            && self.endpoint.device_of(rail) == self.domains[TCP].device_name()
    }

    fn is_without(&self, device: usize) -> bool {
        let state = |rail| self.endpoint.virtual_qp().rail_state(RailId::Data(rail));
        Self::rails_of(device).all(|rail| state(rail) != Some(RailState::InService))
    }
}

struct Ends {
    near: End,
    far: End,
    scheme: Scheme,
    round: u64,
}

fn builder(scheme: Scheme) -> EndpointBuilder {
    EndpointBuilder::new().rails(RAILS.into()).scheme(scheme).rail_failure(RailFailure::Reroute)
}

impl Ends {
    fn new(test: u8, builder: EndpointBuilder, scheme: Scheme) -> Self {
        Self::on([1, 2].map(|end| devices(test, end)), builder, scheme)
    }

    fn on(domains: [Vec<AnyDomain>; 2], builder: EndpointBuilder, scheme: Scheme) -> Self {
        let [mut near, mut far] = domains.map(|domains| End::new(&builder, domains));
        connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
        Self { near, far, scheme, round: 0 }
    }

    fn poll(&mut self) {
        self.near.poll();
        self.far.poll();
    }

    fn poll_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            self.poll();
            let reports = || [&self.near, &self.far].map(|end| end.endpoint.rail_reports());
            assert!(begin.elapsed() < LONG, "{what}: {:?}", reports());
        }
    }

    fn wait_until_whole(&mut self) {
        self.poll_until("whole", |ends| ends.near.is_whole() && ends.far.is_whole());
    }

    /// Runs requests of each kind that may be posted again, in the other direction than before.
    /// `during` is called while they are in flight. Each is reported once, and every byte is
    /// checked.
    fn round(&mut self, during: impl FnOnce(&mut Self)) {
        swap(&mut self.near, &mut self.far);
        self.round += 1;
        let seed = self.round;
        let sends = if self.scheme == Scheme::Spray { SENDS } else { 0 };
        let Self { near, far, .. } = self;
        near.reported.clear();
        far.reported.clear();
        near.buffer.write_at(SOURCE, &pattern(seed, LENGTH)).unwrap();
        far.buffer.write_at(CONSTANT, &pattern(!seed, LENGTH)).unwrap();
        near.buffer.write_at(SENT, &pattern(seed << 32, SENDS * SEND)).unwrap();
        let keys = near.buffer.toward(&far.buffer.remote()).unwrap();
        let own_keys = far.buffer.local_keys();
        let local = |end: &End, at, length| end.buffer.local(at, length as u32).unwrap();

        for send in 0..sends {
            let to = local(far, RECEIVED + send * SEND, SEND);
            far.endpoint.post_recv(&RecvWr::data(send as u64, to, &own_keys)).unwrap();
        }
        far.endpoint.post_recv(&RecvWr::notification(sends as u64)).unwrap();

        let mut posted = 0;
        let mut post = |wr: SendWr<'_>, near: &mut End| {
            near.endpoint.post_send(&wr).unwrap();
            posted += 1;
        };
        let read = local(near, FETCHED, LENGTH);
        post(SendWr::read(0, read, far.buffer.addr() + CONSTANT as u64, &keys), near);
        for send in 0..sends {
            let from = local(near, SENT + send * SEND, SEND);
            post(SendWr::send(1 + send as u64, from, &keys), near);
        }
        const PART: usize = LENGTH / WRITES;
        for part in 0..WRITES {
            let wr_id = (1 + sends + part) as u64;
            let from = local(near, SOURCE + part * PART, PART);
            let to = far.buffer.addr() + (TARGET + part * PART) as u64;
            let wr = match part + 1 {
                WRITES => SendWr::write_with_imm(wr_id, from, to, 7, &keys),
                _ => SendWr::write(wr_id, from, to, &keys),
            };
            post(wr, near);
        }
        during(self);
        let received = sends + 1;
        self.poll_until("requests", |ends| {
            ends.near.reported.len() == posted && ends.far.reported.len() == received
        });
        // Nothing is reported again.
        (0..20).for_each(|_| self.poll());
        assert_eq!((self.near.reported.len(), self.far.reported.len()), (posted, received));
        assert!(self.far.read(TARGET, LENGTH) == pattern(seed, LENGTH), "WRITEs of round {seed}");
        assert!(self.near.read(FETCHED, LENGTH) == pattern(!seed, LENGTH), "READ of round {seed}");
        let bytes = sends * SEND;
        let sent = pattern(seed << 32, bytes);
        assert!(self.far.read(RECEIVED, bytes) == sent, "SENDs of round {seed}");
    }

    /// Takes the link of a device down at one end in the middle of a round, runs another round
    /// without it, and brings the link up again. Then the device carries data as before.
    fn lose_and_regain(&mut self, device: usize) {
        let other = 1 - device;
        self.round(|ends| set_link(&ends.near.domains[device], false));
        self.poll_until("failed", |ends| {
            ends.near.is_without(device) && ends.far.is_without(device)
        });
        if device == SOFTWARE {
            self.poll_until("moved", |ends| ends.near.has_moved() && ends.far.has_moved());
        }
        let [before, before_elsewhere] = [device, other].map(|at| self.far.carried(at));
        self.round(|_| ());
        // The round's sender was the receiver before.
        assert!(self.near.carried(other) > before_elsewhere + LENGTH as u64 / 2);
        assert_eq!(self.near.carried(device), before, "a device whose link is down");
        set_link(&self.far.domains[device], true);
        self.wait_until_whole();
        for _ in 0..2 {
            let before = [SOFTWARE, TCP].map(|at| self.far.carried(at));
            self.round(|_| ());
            let after = [SOFTWARE, TCP].map(|at| self.near.carried(at));
            assert!(before[0] < after[0] && before[1] < after[1], "{before:?} {after:?}");
        }
    }
}

#[test]
fn requests_use_rails_of_both_backends() {
    for scheme in SCHEMES {
        let mut ends = Ends::new(1, builder(scheme), scheme);
        for _ in 0..4 {
            ends.round(|_| ());
        }
        for end in [&ends.near, &ends.far] {
            assert!(end.carried(SOFTWARE) > 0 && end.carried(TCP) > 0);
        }
        if scheme == Scheme::Spray {
            add(&mut ends);
        }
    }
}

/// Adds to a word of the peer's.
fn add(ends: &mut Ends) {
    ends.near.reported.clear();
    ends.far.buffer.write_at(WORD, &5_u64.to_ne_bytes()).unwrap();
    let keys = ends.near.buffer.toward(&ends.far.buffer.remote()).unwrap();
    let old = ends.near.buffer.local(OLD_WORD, 8).unwrap();
    let word = ends.far.buffer.addr() + WORD as u64;
    ends.near.endpoint.post_send(&SendWr::fetch_add(1, old, word, 3, &keys)).unwrap();
    ends.poll_until("an atomic", |ends| ends.near.reported.contains(&1));
    assert_eq!(ends.near.read(OLD_WORD, 8), 5_u64.to_ne_bytes());
    assert_eq!(ends.far.read(WORD, 8), 8_u64.to_ne_bytes());
}

#[test]
fn tcp_carries_on_while_links_of_the_software_nic_are_down() {
    for scheme in SCHEMES {
        let mut ends = Ends::new(2, builder(scheme), scheme);
        for _ in 0..4 {
            ends.lose_and_regain(SOFTWARE);
        }
    }
}

#[test]
fn the_software_nic_carries_on_while_links_over_tcp_are_down() {
    for scheme in SCHEMES {
        let mut ends = Ends::new(3, builder(scheme), scheme);
        for _ in 0..4 {
            ends.lose_and_regain(TCP);
        }
    }
}

#[test]
fn rails_over_tcp_stand_by_and_carry_everything_while_the_software_nic_is_away() {
    for scheme in SCHEMES {
        let mut ends = Ends::new(11, builder(scheme).standby_devices([TCP]), scheme);
        let carried = |ends: &Ends| ends.near.carried(TCP) + ends.far.carried(TCP);
        for _ in 0..2 {
            ends.round(|_| ());
        }
        assert_eq!(carried(&ends), 0);
        ends.round(|ends| set_link(&ends.near.domains[SOFTWARE], false));
        ends.poll_until("moved", |ends| {
            [&ends.near, &ends.far].iter().all(|end| end.is_without(SOFTWARE) && end.has_moved())
        });
        let before = carried(&ends);
        ends.round(|_| ());
        assert!(carried(&ends) >= before + LENGTH as u64);
        set_link(&ends.far.domains[SOFTWARE], true);
        ends.wait_until_whole();
        let before = carried(&ends);
        for _ in 0..2 {
            ends.round(|_| ());
        }
        assert_eq!(carried(&ends), before);
    }
}

#[test]
fn requests_wait_while_devices_of_both_backends_are_away() {
    for scheme in SCHEMES {
        let mut ends = Ends::new(4, builder(scheme).min_rails(0), scheme);
        for first in [SOFTWARE, TCP] {
            ends.round(|ends| {
                set_link(&ends.near.domains[SOFTWARE], false);
                set_link(&ends.near.domains[TCP], false);
                let is_away = |end: &End| end.endpoint.virtual_qp().rails_in_service().count() == 0;
                ends.poll_until("away", |ends| is_away(&ends.near) && is_away(&ends.far));
                set_link(&ends.near.domains[first], true);
            });
            set_link(&ends.near.domains[1 - first], true);
            ends.wait_until_whole();
            ends.round(|_| ());
        }
    }
}

/// Requests wait for rail 0, which moves to the device of the other backend.
#[test]
fn a_device_that_is_removed_leaves_its_rails_to_the_other_backend() {
    for scheme in SCHEMES {
        let mut ends = Ends::new(5, builder(scheme), scheme);
        ends.round(|_| ());
        let AnyDomain::Software(gone) = &ends.near.domains[SOFTWARE] else { panic!() };
        gone.device().inject(When::Now, Fault::DeviceGone);
        ends.poll_until("rail 0", |ends| ends.near.has_moved() && ends.far.has_moved());
        for _ in 0..3 {
            ends.round(|_| ());
        }
        assert!([&ends.near, &ends.far].iter().all(|end| end.endpoint.state() != QpState::Error));
    }
}

/// Rail 0 moves to a device that supports less than its own, so all queue pairs are as small.
#[test]
fn the_least_capable_device_limits_rails_that_may_move() {
    let less = DeviceLimits { max_sge: 2, max_qp_wr: 64, ..DeviceLimits::default() };
    let devices = |end: u8| {
        let tcp = tcp::DeviceOptions { limits: less, ..tcp::DeviceOptions::default() };
        let options = OpenOptions { tcp, ..OpenOptions::default() };
        let names = [format!("software:10.{end}"), format!("tcp:127.4.10.{end}")];
        open_devices(&names, &options).unwrap()
    };
    for scheme in SCHEMES {
        let mut ends = Ends::on([devices(1), devices(2)], builder(scheme), scheme);
        ends.lose_and_regain(SOFTWARE);
    }
}

fn message_pair(test: u8, builder: &P2pBuilder) -> Pair<AnyDomain, AnyDomain> {
    let side = |end| {
        let domains = devices(test, end);
        let all: Vec<&AnyDomain> = domains.iter().collect();
        let buffer = RegisteredBuffer::new(1 << 20, ALL_ACCESS, &all).unwrap();
        Side::with((domains.clone(), domains, buffer), builder)
    };
    Pair::connected(side(1), side(2))
}

#[test]
fn messages_use_rails_of_both_backends_and_survive_each() {
    let builder = P2pBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
    let mut pair = message_pair(6, &builder);
    for length in [0, 1, 8, 128, 65_537, 300_001, 1 << 20] {
        pair.exchange(length, 1 << 20);
    }
    for round in 0..6 {
        let device = round % 2;
        let (send, receive) = pair.start(1 << 20);
        set_link(&pair.near.devices[device], false);
        pair.finish(send, receive, 1 << 20);
        pair.exchange(200_000, 1 << 20);
        set_link(&pair.near.devices[device], true);
        pair.wait_until_whole();
        pair.exchange(200_000, 1 << 20);
        if round % 3 == 2 {
            pair = pair.turned();
        }
    }
}

#[test]
fn received_messages_can_be_flushed_on_both_backends() {
    let mut pair = message_pair(7, &P2pBuilder::new().rails(2).flushes(true));
    let (send, receive) = pair.start(1 << 20);
    let received = pair.received(receive).unwrap();
    pair.sent(send).unwrap();
    let flush = pair.until(|pair| pair.far.endpoint.flush(&received)).unwrap();
    pair.flushed(&flush).unwrap();
}

#[test]
fn ends_whose_backends_are_in_another_order_are_refused() {
    let near = devices(8, 1);
    let far = devices(8, 2);
    let builder = EndpointBuilder::new().rails(2);
    let mut near = builder.build(&near.iter().collect::<Vec<_>>()).unwrap();
    let mut far = builder.build(&far.iter().rev().collect::<Vec<_>>()).unwrap();
    let refused = connect_endpoints(&mut near, &mut far).unwrap_err();
    let device = "software:8.1".to_owned();
    let mismatch = RailMismatch::Backends { rail: RailId::Data(0), device, here_is_tcp: false };
    assert_eq!(refused, ConnectError::Ends(mismatch));
}

#[test]
fn queues_of_another_backend_are_refused() {
    let domains = devices(9, 1);
    let cqs: Vec<_> = domains.iter().map(|domain| domain.create_cq(8).unwrap()).collect();
    let srqs: Vec<_> = domains.iter().map(|domain| domain.create_srq(8).unwrap()).collect();
    for (at, domain) in domains.iter().enumerate() {
        let refused = |object| {
            let device = domain.device_name().into();
            Some(DeviceError::OtherBackend { device, object })
        };
        let (cq, srq, cap) = (&cqs[at], &srqs[at], QpCap::default());
        let (other_cq, other_srq) = (&cqs[1 - at], &srqs[1 - at]);
        let steps = |_, _| Ok(());
        assert_eq!(domain.create_qp(other_cq, cap).err(), refused("completion queue"));
        assert_eq!(
            domain.create_qp_with_srq(other_cq, srq, cap).err(),
            refused("completion queue")
        );
        assert_eq!(
            domain.create_qp_with_srq(cq, other_srq, cap).err(),
            refused("shared receive queue")
        );
        let made = |cq, srq| domain.make_aside((cq, Some(srq)), cap, 1, steps).take().unwrap();
        assert_eq!(made(other_cq, srq).err(), refused("completion queue"));
        assert_eq!(made(cq, other_srq).err(), refused("shared receive queue"));
        assert_eq!(made(cq, srq), Ok(()));
    }
    let [software, tcp] = &domains[..] else { panic!() };
    let mut cq = tcp.create_cq(8).unwrap();
    let text = "device software:9.1 cannot use a completion queue of another backend";
    assert_eq!(software.resize_cq(&mut cq, 16).unwrap_err().to_string(), text);
    tcp.resize_cq(&mut cq, 16).unwrap();
}
