//! How much of the data each rail carries on devices of different rates.

mod fixture;
mod recorded;

use fixture::{ALL_ACCESS, LONG};
use polyrail::backend::Domain;
use polyrail::endpoint::{BuildError, Endpoint, EndpointBuilder, RailWeights, connect_endpoints};
use polyrail::heal::Healing;
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, DeviceLimits, Fabric, Fault, ProtectionDomain, When};
use polyrail::p2p::{self, P2pBuilder, P2pEndpoint, RecvBuffer, SplitPolicy};
use polyrail::verbs::{SendWr, WcStatus};
use polyrail::virtual_qp::{Config, QpState, RailChoice, RailFailure, RailId, Scheme};
use recorded::Recorded;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// Length of a fragment, and the fragments of a request: fewer than a rail has credits for.
const FRAGMENT: u32 = 4096;
const FRAGMENTS: u32 = 80;
const LENGTH: u32 = FRAGMENTS * FRAGMENT;

/// Devices of the software NIC with these line rates in MB/s; 0: unlimited.
fn limited(fabric: &Fabric, name: &str, rates: &[u64]) -> Vec<ProtectionDomain> {
    let device = |(n, rate): (usize, &u64)| {
        let bytes_per_second = NonZeroU64::new(rate * 1_000_000);
        let config = DeviceConfig { bytes_per_second, ..DeviceConfig::named(format!("{name}{n}")) };
        fabric.create_device(config).alloc_pd().unwrap()
    };
    rates.iter().enumerate().map(device).collect()
}

/// Devices that report these rates in Mbit/s.
fn reporting(fabric: &Fabric, name: &str, rates: &[u32]) -> Vec<Recorded> {
    let device = |(n, rate): (usize, &u32)| {
        let device = Recorded::on(fabric, &format!("{name}{n}"), DeviceLimits::default());
        device.set_speed_silently(*rate);
        device
    };
    rates.iter().enumerate().map(device).collect()
}

fn healing() -> Healing {
    Healing {
        first_interval: Duration::ZERO,
        longest_interval: Duration::ZERO,
        ..Healing::default()
    }
}

fn endpoints(rails: usize) -> EndpointBuilder {
    EndpointBuilder::new().rails(rails).max_msg_size(FRAGMENT).healing(healing())
}

fn messages(rails: usize) -> P2pBuilder {
    P2pBuilder::new().rails(rails).split_threshold(FRAGMENT).healing(healing())
}

/// Two connected ends, and memory of both.
struct Pair<E, D: Domain> {
    near: E,
    far: E,
    source: RegisteredBuffer<D::Region>,
    target: RegisteredBuffer<D::Region>,
}

fn memory<D: Domain>(domains: &[D]) -> RegisteredBuffer<D::Region> {
    let all: Vec<&D> = domains.iter().collect();
    RegisteredBuffer::new(LENGTH as usize, ALL_ACCESS, &all).unwrap()
}

impl<D: Domain> Pair<Endpoint<D::Qp, D::Cq>, D> {
    fn requests(builder: EndpointBuilder, here: &[D], there: &[D]) -> Self {
        let mut near = builder.build(here).unwrap();
        let mut far = builder.build(there).unwrap();
        connect_endpoints(&mut near, &mut far).unwrap();
        Self { near, far, source: memory(here), target: memory(there) }
    }

    /// Writes once, and returns how many fragments each rail carried.
    fn write(&mut self) -> Vec<u64> {
        let rails = self.near.virtual_qp().rails().len() as u8;
        let bytes = |near: &Endpoint<D::Qp, D::Cq>| -> Vec<u64> {
            let counters = |rail| near.virtual_qp().counters(RailId::Data(rail)).unwrap();
            (0..rails).map(|rail| counters(rail).bytes).collect()
        };
        let before = bytes(&self.near);
        let keys = self.source.toward(&self.target.remote()).unwrap();
        let local = self.source.local(0, LENGTH).unwrap();
        self.near.post_send(&SendWr::write(1, local, self.target.addr(), &keys)).unwrap();
        let begin = Instant::now();
        let done = loop {
            assert!(begin.elapsed() < LONG);
            _ = self.far.poll(16);
            if let Some(done) = self.near.poll(16).completions.pop() {
                break done;
            }
        };
        assert_eq!(done.status, WcStatus::SUCCESS);
        let carried = bytes(&self.near).into_iter().zip(before).map(|(now, before)| now - before);
        carried.map(|bytes| bytes / u64::from(FRAGMENT)).collect()
    }

    fn poll_until(&mut self, mut is_over: impl FnMut(&Self) -> bool) {
        let begin = Instant::now();
        while !is_over(self) {
            assert!(begin.elapsed() < LONG);
            _ = self.near.poll(16);
            _ = self.far.poll(16);
        }
    }
}

impl<D: Domain> Pair<P2pEndpoint<D>, D> {
    fn messages(builder: P2pBuilder, here: &[D], there: &[D]) -> Self {
        let mut near = builder.build(here).unwrap();
        let mut far = builder.build(there).unwrap();
        p2p::connect_endpoints(&mut near, &mut far).unwrap();
        Self { near, far, source: memory(here), target: memory(there) }
    }

    fn poll(&mut self) {
        assert_eq!((self.near.poll(16).error, self.far.poll(16).error), (None, None));
    }

    fn poll_until(&mut self, mut is_over: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !is_over(self) {
            assert!(begin.elapsed() < LONG);
            self.poll();
        }
    }

    /// Sends a message, and returns how many parts of 80 each rail carried.
    fn send(&mut self) -> Vec<u64> {
        let bytes = |near: &P2pEndpoint<D>| -> Vec<u64> {
            let sender = near.sender().unwrap();
            (0..).map_while(|at| sender.counters(at)).map(|counters| counters.bytes).collect()
        };
        let before = bytes(&self.near);
        let keys = self.target.own_keys();
        let local = self.target.local(0, LENGTH).unwrap();
        let buffer = RecvBuffer { local, tag: 0, keys: &keys };
        let begin = Instant::now();
        let receive = self.far.irecv(&[buffer]).unwrap();
        let keys = self.source.own_keys();
        let send = loop {
            assert!(begin.elapsed() < LONG);
            self.poll();
            match self.near.isend(self.source.local(0, LENGTH).unwrap(), 0, &keys) {
                Ok(send) => break send,
                Err(polyrail::p2p::CallError::NotNow(_)) => {}
                Err(error) => panic!("{error}"),
            }
        };
        while !self.near.test_send(send).unwrap() {
            assert!(begin.elapsed() < LONG);
            self.poll();
        }
        while self.far.test_recv(receive).unwrap().is_none() {
            assert!(begin.elapsed() < LONG);
            self.poll();
        }
        let carried = bytes(&self.near).into_iter().zip(before).map(|(now, before)| now - before);
        carried.map(|bytes| bytes / u64::from(FRAGMENT)).collect()
    }
}

/// Four rails on two devices, of which one has a third of the other's rate.
#[test]
fn shares_follow_the_rates_of_devices() {
    let fabric = Fabric::threaded();
    let here = limited(&fabric, "here", &[3000, 1000]);
    let there = limited(&fabric, "there", &[0, 0]);
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let mut pair = Pair::requests(endpoints(4).scheme(scheme), &here, &there);
        assert_eq!(pair.write(), [30, 10, 30, 10], "{scheme:?}");
        // The rates of the far end are unknown, and it decides for what it sends.
        assert_eq!(pair.far.virtual_qp().config().rail_choice, RailChoice::RoundRobin);
        let equal = endpoints(4).scheme(scheme).rail_weights(RailWeights::Equal);
        assert_eq!(Pair::requests(equal, &here, &there).write(), [20; 4], "{scheme:?}");
    }
    let mut pair = Pair::messages(messages(4), &here, &there);
    assert_eq!(pair.send(), [30, 10, 30, 10]);
    assert_eq!(pair.far.sender().unwrap().config().split, SplitPolicy::Even);
    let equal = messages(4).rail_weights(RailWeights::Equal);
    assert_eq!(Pair::messages(equal, &here, &there).send(), [20; 4]);
}

/// The default is as ever, so that it costs no instruction.
#[test]
fn rails_take_turns_if_rates_are_equal_or_unknown() {
    let fabric = Fabric::threaded();
    let there = limited(&fabric, "there", &[0, 0]);
    for rates in [[0, 0], [1000, 0], [0, 1000], [1000, 1000]] {
        let here = limited(&fabric, "here", &rates);
        let pair = Pair::requests(endpoints(2), &here, &there);
        assert_eq!(pair.near.virtual_qp().config().rail_choice, RailChoice::RoundRobin);
        let pair = Pair::messages(messages(2), &here, &there);
        assert_eq!(pair.near.sender().unwrap().config().split, SplitPolicy::Even);
        // Rails whose rates are unknown count as equal.
        let by_rates = endpoints(2).rail_weights(RailWeights::Rates);
        let mut pair = Pair::requests(by_rates, &here, &there);
        let choice = pair.near.virtual_qp().config().rail_choice;
        assert!(matches!(choice, RailChoice::LeastFinishTime { .. }), "{choice:?}");
        assert_eq!(pair.write(), [40, 40]);
    }
}

#[test]
fn rates_that_are_given_replace_those_of_devices() {
    let fabric = Fabric::threaded();
    let here = limited(&fabric, "here", &[3000, 1000]);
    let there = limited(&fabric, "there", &[0, 0]);
    for (given, expected) in [([0, 24_000], [40, 40]), ([1, 4], [16, 64]), ([8000, 0], [40, 40])] {
        let [first, second] = given;
        let builder = endpoints(2).device_mbps(&here[0], first).device_mbps(&here[1], second);
        assert_eq!(Pair::requests(builder, &here, &there).write(), expected, "{given:?}");
        let builder = messages(2).device_mbps(&here[1], second).device_mbps(&here[0], first);
        assert_eq!(Pair::messages(builder, &here, &there).send(), expected, "{given:?}");
        // The rate belongs to the device, in whatever order devices are given.
        let turned = [here[1].clone(), here[0].clone()];
        let [slow, fast] = expected;
        let mut pair = Pair::messages(builder, &turned, &there);
        assert_eq!(pair.send(), [fast, slow], "{given:?}");
    }
    let nine = limited(&fabric, "nine", &[0; 9]);
    let (mut requests, mut receives) = (endpoints(2), messages(2));
    for device in &nine {
        (requests, receives) = (requests.device_mbps(device, 1), receives.device_mbps(device, 1));
    }
    assert_eq!(requests.build(&here).map(|_| ()), Err(BuildError::DeviceRates));
    let words = receives.build(&here).map(|_| ()).unwrap_err().to_string();
    assert_eq!(words, "rates of more than 8 devices were given");
}

#[test]
fn the_users_own_choice_of_a_rail_stays() {
    let fabric = Fabric::threaded();
    let here = limited(&fabric, "here", &[3000, 1000]);
    let there = limited(&fabric, "there", &[0, 0]);
    let bandwidth_mbps = [1, 4, 1, 1, 1, 1, 1, 1];
    let rail_choice = RailChoice::LeastFinishTime { bandwidth_mbps };
    let config = Config { rail_choice, max_msg_size: FRAGMENT, ..Config::default() };
    assert_eq!(Pair::requests(endpoints(2).config(config), &here, &there).write(), [16, 64]);
    let split = SplitPolicy::LeastFinishTime { bandwidth_mbps };
    assert_eq!(Pair::messages(messages(2).split(split), &here, &there).send(), [16, 64]);
}

/// A port loses half its rate, all of it for all that is known, and gets it back.
#[test]
fn weights_follow_a_rate_that_changes() {
    let fabric = Fabric::threaded();
    let changes =
        [(200, vec![40, 20]), (0, vec![30, 30]), (100, vec![48, 12]), (400, vec![30, 30])];
    let fragments = |shares: Vec<u64>| shares.into_iter().map(|each| each * 60 / 80).collect();

    let (here, there) =
        (reporting(&fabric, "here", &[400; 2]), reporting(&fabric, "there", &[400; 2]));
    let builder = endpoints(2).rail_failure(RailFailure::Reroute);
    let mut pair = Pair::requests(builder, &here, &there);
    assert_eq!(pair.write(), [40, 40]);
    for (mbps, expected) in changes.clone() {
        here[1].set_speed(mbps);
        pair.poll_until(|_| !here[1].has_unread_speed());
        let shares: Vec<u64> = fragments(pair.write());
        let is_close =
            shares.iter().zip(&expected).all(|(share, expected)| share.abs_diff(*expected) <= 1);
        assert!(is_close, "{mbps}: {shares:?}");
        assert_eq!(
            (pair.near.state(), pair.near.take_rail_event().is_none()),
            (QpState::Ready, true)
        );
    }

    let (here, there) =
        (reporting(&fabric, "here", &[400; 2]), reporting(&fabric, "there", &[400; 2]));
    let builder = messages(2).rail_failure(RailFailure::Reroute);
    let mut pair = Pair::messages(builder, &here, &there);
    assert_eq!(pair.send(), [40, 40]);
    for (mbps, expected) in changes {
        here[1].set_speed(mbps);
        pair.poll_until(|_| !here[1].has_unread_speed());
        let shares: Vec<u64> = fragments(pair.send());
        let is_close =
            shares.iter().zip(&expected).all(|(share, expected)| share.abs_diff(*expected) <= 1);
        assert!(is_close, "{mbps}: {shares:?}");
    }
}

/// A rate that the user gave does not follow what a device reports.
#[test]
fn a_rate_that_was_given_does_not_change() {
    let fabric = Fabric::threaded();
    let (here, there) =
        (reporting(&fabric, "here", &[400; 2]), reporting(&fabric, "there", &[400; 2]));
    let builder = endpoints(2).rail_failure(RailFailure::Reroute).device_mbps(&here[1], 100);
    let mut pair = Pair::requests(builder, &here, &there);
    assert_eq!(pair.write(), [64, 16]);
    here[1].set_speed(400);
    pair.poll_until(|_| !here[1].has_unread_speed());
    assert_eq!(pair.write(), [64, 16]);
}

/// The port of a rail comes up at another rate, and no event says so.
#[test]
fn a_rail_that_returns_has_the_present_rate() {
    let fabric = Fabric::threaded();
    let (here, there) =
        (reporting(&fabric, "here", &[400; 2]), reporting(&fabric, "there", &[400; 2]));
    let builder = endpoints(2).rail_failure(RailFailure::Reroute);
    let mut pair = Pair::requests(builder, &here, &there);
    assert_eq!(pair.write(), [40, 40]);
    here[1].set_speed_silently(100);
    assert!(pair.near.fail_rail(RailId::Data(1)));
    pair.poll_until(|pair| [&pair.near, &pair.far].iter().all(|end| end.state() == QpState::Ready));
    assert_eq!(pair.write(), [64, 16]);

    let (here, there) =
        (reporting(&fabric, "here", &[400; 2]), reporting(&fabric, "there", &[400; 2]));
    let builder = messages(2).rail_failure(RailFailure::Reroute);
    let mut pair = Pair::messages(builder, &here, &there);
    assert_eq!(pair.send(), [40, 40]);
    here[1].set_speed_silently(100);
    let link = |up: bool| {
        let fault = if up { Fault::LinkUp } else { Fault::LinkDown };
        here[1].domain.device().inject(When::Now, fault);
    };
    link(false);
    pair.poll_until(|pair| pair.near.take_rail_event().is_some());
    link(true);
    let begin = Instant::now();
    while pair.send() != [64, 16] {
        assert!(begin.elapsed() < LONG);
    }
}

/// A port is down for too short a time to fail its rail, and comes up at another rate.
#[test]
fn a_port_that_comes_up_has_the_present_rate() {
    let fabric = Fabric::threaded();
    let (here, there) =
        (reporting(&fabric, "here", &[400; 2]), reporting(&fabric, "there", &[400; 2]));
    let flap = || {
        here[1].set_speed_silently(100);
        for fault in [Fault::LinkDown, Fault::LinkUp] {
            here[1].domain.device().inject(When::Now, fault);
        }
    };
    let builder = endpoints(2).rail_failure(RailFailure::Reroute);
    let mut pair = Pair::requests(builder, &here, &there);
    assert_eq!(pair.write(), [40, 40]);
    flap();
    let takes_turns = |choice: RailChoice| choice == RailChoice::RoundRobin;
    pair.poll_until(|pair| !takes_turns(pair.near.virtual_qp().config().rail_choice));
    assert_eq!(pair.write(), [64, 16]);
    assert_eq!(pair.near.take_rail_event(), None, "no rail has failed");

    here[1].set_speed_silently(400);
    let builder = messages(2).rail_failure(RailFailure::Reroute);
    let mut pair = Pair::messages(builder, &here, &there);
    assert_eq!(pair.send(), [40, 40]);
    flap();
    pair.poll_until(|pair| pair.near.sender().unwrap().config().split != SplitPolicy::Even);
    assert_eq!(pair.send(), [64, 16]);
    assert!(pair.near.take_rail_event().is_none(), "no rail has failed");
}

/// Nothing is known about the rates of four devices, and one has a quarter of the others'. It is
/// found out, and found out again after it has changed places with another one.
#[test]
fn measured_weights_find_the_slow_device() {
    const FAST: u64 = 40;
    let fabric = Fabric::threaded();
    let rate = |megabytes: u64| NonZeroU64::new(megabytes * 1_000_000).unwrap();
    let here = limited(&fabric, "here", &[FAST, FAST, FAST, FAST / 4]);
    let there = limited(&fabric, "there", &[0; 4]);
    let builder = endpoints(4).rail_failure(RailFailure::Reroute);
    let builder = builder.rail_weights(RailWeights::Measured);
    let builder = here.iter().fold(builder, |builder, device| builder.device_mbps(device, 1));
    let mut requests = Pair::requests(builder, &here, &there);
    let builder = messages(4).rail_failure(RailFailure::Reroute);
    let builder = builder.rail_weights(RailWeights::Measured);
    let builder = here.iter().fold(builder, |builder, device| builder.device_mbps(device, 1));
    let mut others = Pair::messages(builder, &here, &there);
    for slow in [3, 0] {
        for (at, device) in here.iter().enumerate() {
            let megabytes = if at == slow { FAST / 4 } else { FAST };
            assert!(device.device().set_bytes_per_second(rate(megabytes)));
        }
        let is_found = |shares: &[u64]| {
            let others = (0..4).filter(|rail| *rail != slow).map(|rail| shares[rail]);
            others.into_iter().all(|share| share > 2 * shares[slow])
        };
        let begin = Instant::now();
        while !is_found(&requests.write()) {
            assert!(begin.elapsed() < LONG, "{:?}", requests.write());
        }
        let begin = Instant::now();
        while !is_found(&others.send()) {
            assert!(begin.elapsed() < LONG, "{:?}", others.send());
        }
    }
}
