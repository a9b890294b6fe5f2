//! Messages between two endpoints whose rails fail and come back, where devices take their time:
//! both ways, and from one that only sends to one that only receives.

mod fixture;
mod recorded;

use fixture::{ALL_ACCESS, LONG, impatient};
use polyrail::heal::Healing;
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{Device, DeviceConfig, Fabric, Fault, When};
use polyrail::p2p::{
    CallError, End, Failure, HealingMessage, NotNow, P2pBuilder, P2pEndpoint, RecvBuffer,
    RecvHandle, SendHandle,
};
use polyrail::virtual_qp::{RailEvent, RailEventKind, RailFailure, RailState};
use recorded::{Log, Recorded};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const LENGTH: u32 = 1 << 16;

/// What the two have only, if they do.
type Way = [Option<End>; 2];

const WAYS: [Way; 2] = [[None; 2], [Some(End::Sender), Some(End::Receiver)]];

/// One end, of two rails on two devices.
struct Side {
    devices: [Device; 2],
    domains: [Recorded; 2],
    buffer: RegisteredBuffer<recorded::RecordedRegion>,
    endpoint: P2pEndpoint<Recorded>,
}

impl Side {
    fn new(fabric: &Fabric, names: [&str; 2], builder: &P2pBuilder) -> Self {
        let devices = names.map(|name| fabric.create_device(DeviceConfig::named(name)));
        let log = Log::default();
        let domains = devices.each_ref().map(|on| Recorded::new(on.alloc_pd().unwrap(), &log));
        let endpoint = builder.build(&domains.each_ref()).unwrap();
        let buffer =
            RegisteredBuffer::new(LENGTH as usize, ALL_ACCESS, &domains.each_ref()).unwrap();
        Self { devices, domains, buffer, endpoint }
    }

    /// The state of rail 1, of each end that is there.
    fn states(&self) -> Vec<RailState> {
        let state = |end| self.endpoint.queue_pair_state(end, 1);
        [End::Sender, End::Receiver].into_iter().filter_map(state).map(|(state, _)| state).collect()
    }

    fn sends(&self) -> bool {
        self.endpoint.sender().is_some()
    }

    fn failure_of(&self, end: End) -> Option<Failure> {
        match end {
            End::Sender => self.endpoint.sender()?.failure().copied(),
            End::Receiver => self.endpoint.receiver()?.failure().copied(),
        }
    }

    /// What is done on other threads goes on, or does not.
    fn hold(&self, holds: bool) {
        self.domains.iter().for_each(|domain| domain.holds.store(holds, SeqCst));
    }
}

/// Two ends, and what loses messages between them.
struct Pair {
    near: Side,
    far: Side,
    loses: fn(&HealingMessage) -> bool,
    lost: usize,
}

impl Pair {
    fn new(way: Way, healing: Healing) -> Self {
        Self::with(way, P2pBuilder::new().healing(healing))
    }

    fn with([near, far]: Way, builder: P2pBuilder) -> Self {
        let fabric = Fabric::threaded();
        let builder = builder
            .rails(2)
            .split_threshold(1024)
            .rail_failure(RailFailure::Reroute)
            .connect_options(impatient());
        let mut near = Side::new(&fabric, ["near0", "near1"], &builder.only(near));
        let mut far = Side::new(&fabric, ["far0", "far1"], &builder.only(far));
        // As if they were in two processes: their repair messages are carried.
        let [address_near, address_far] = [&near, &far].map(|side| side.endpoint.address());
        near.endpoint.connect(&address_far).unwrap();
        far.endpoint.connect(&address_near).unwrap();
        Self { near, far, loses: |_| false, lost: 0 }
    }

    fn sides(&self) -> [&Side; 2] {
        [&self.near, &self.far]
    }

    fn poll(&mut self) {
        let Self { near, far, loses, lost } = self;
        near.endpoint.poll(16).check().unwrap();
        far.endpoint.poll(16).check().unwrap();
        let [near, far] = [near, far].map(|side| side.endpoint.healing_link().unwrap());
        for (from, to) in [(&near, &far), (&far, &near)] {
            while let Some(message) = from.next_message() {
                if loses(&message) {
                    *lost += 1;
                } else {
                    to.handle(message).unwrap();
                }
            }
        }
    }

    fn poll_until(&mut self, is_there: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !is_there(self) {
            self.poll();
            assert!(begin.elapsed() < LONG, "{:?}", self.sides().map(Side::states));
        }
    }

    fn poll_for(&mut self, time: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.poll();
        }
    }

    fn is_whole(&self) -> bool {
        self.are_all(RailState::InService)
    }

    fn is_down(&self) -> bool {
        self.are_all(RailState::Down)
    }

    fn are_all(&self, state: RailState) -> bool {
        self.sides().iter().all(|side| side.states().iter().all(|each| *each == state))
    }

    /// Of ends that wait for rails however few there are, and soon take a silent one for dead.
    fn patient(way: Way, rail_timeout: Duration) -> Self {
        let healing = Healing {
            stall_timeout: Some(Duration::from_millis(40)),
            rail_timeout: Some(rail_timeout),
            longest_interval: Duration::from_millis(10),
            ..Healing::default()
        };
        Self::with(way, P2pBuilder::new().min_rails(0).healing(healing))
    }

    /// Both links of the near end swallow everything, or work.
    fn silence(&self, silent: bool) {
        for device in &self.near.devices {
            device.inject(When::Now, Fault::Silent(silent));
        }
    }

    /// Far offers a buffer, and near knows of it.
    fn offer(&mut self) -> RecvHandle {
        let keys = self.far.buffer.own_keys();
        let local = self.far.buffer.local(0, LENGTH).unwrap();
        let offer = [RecvBuffer { local, tag: 5, keys: &keys }];
        let begin = Instant::now();
        let receive = loop {
            match self.far.endpoint.irecv(&offer) {
                // Its rails are not back yet.
                Err(error) if error.is_not_now() => self.poll(),
                receive => break receive.unwrap(),
            }
            assert!(begin.elapsed() < LONG);
        };
        // No buffer has this tag, which is known only once the offer is there.
        while self.try_send(6) != Err(NotNow::NoSuchTag.into()) {
            self.poll();
            assert!(begin.elapsed() < LONG);
        }
        receive
    }

    fn try_send(&mut self, tag: u32) -> Result<SendHandle, CallError> {
        let keys = self.near.buffer.own_keys();
        let local = self.near.buffer.local(0, LENGTH).unwrap();
        self.near.endpoint.isend(local, tag, &keys)
    }

    /// Sends a message to a buffer that far has offered.
    fn send(&mut self) -> SendHandle {
        let begin = Instant::now();
        loop {
            match self.try_send(5) {
                Err(error) if error.is_not_now() => self.poll(),
                sent => return sent.unwrap(),
            }
            assert!(begin.elapsed() < LONG);
        }
    }

    /// Failures of near's rails, of the end that sends.
    fn failures(&mut self) -> usize {
        let events = std::iter::from_fn(|| self.near.endpoint.take_rail_event());
        let is_failure = |(end, _, event): &(End, usize, RailEvent)| {
            *end == End::Sender && matches!(event.kind, RailEventKind::Failed { .. })
        };
        events.filter(is_failure).count()
    }

    /// A message from near to far.
    fn exchange(&mut self) {
        let keys = self.far.buffer.own_keys();
        let local = self.far.buffer.local(0, LENGTH).unwrap();
        let receive =
            self.far.endpoint.irecv(&[RecvBuffer { local, tag: 5, keys: &keys }]).unwrap();
        let begin = Instant::now();
        let send = self.send();
        let mut received = None;
        while received.is_none() || !self.near.endpoint.test_send(send).unwrap() {
            self.poll();
            received = received.or_else(|| self.far.endpoint.test_recv(receive).unwrap());
            assert!(begin.elapsed() < LONG);
        }
        assert_eq!(received.unwrap().sizes(), [LENGTH]);
    }
}

/// Messages go on over the other rail for as long as it takes, and a queue pair that comes too late
/// is not used.
#[test]
fn queue_pairs_that_take_long_to_make_and_to_connect_hold_nobody_up() {
    let each = [[true, false], [false, true], [true, true]];
    for (way, slow) in WAYS.into_iter().flat_map(|way| each.map(|slow| (way, slow))) {
        let mut pair = Pair::new(way, Healing::default());
        pair.exchange();
        for (side, slow) in pair.sides().into_iter().zip(slow) {
            side.hold(slow);
        }
        let link = pair.far.devices[1].clone();
        for fault in [Fault::LinkDown, Fault::LinkUp, Fault::LinkDown, Fault::LinkUp] {
            link.inject(When::Now, fault);
            (0..20).for_each(|_| pair.exchange());
            assert!(!pair.is_whole(), "{slow:?}");
        }
        pair.sides().into_iter().for_each(|side| side.hold(false));
        pair.poll_until(Pair::is_whole);
        (0..20).for_each(|_| pair.exchange());
    }
}

/// Its queue pairs carry on what is in flight.
#[test]
fn a_port_that_is_up_again_before_anyone_looked_costs_no_queue_pair() {
    for way in WAYS {
        let mut pair = Pair::new(way, Healing::default());
        pair.exchange();
        for fault in [Fault::LinkDown, Fault::LinkUp] {
            pair.near.devices[1].inject(When::Now, fault);
        }
        pair.poll_for(Duration::from_millis(20));
        assert!(pair.is_whole());
        assert_eq!(pair.failures(), 0);
        (0..20).for_each(|_| pair.exchange());
        assert_eq!(pair.failures(), 0);
    }
}

/// Both ends wait for long between two attempts, and the port's return ends that, at whichever end
/// it is.
#[test]
fn a_port_that_is_up_again_is_tried_at_once() {
    let forever = Duration::from_secs(3600);
    let healing =
        Healing { first_interval: forever, longest_interval: forever, ..Healing::default() };
    for (way, of_near) in WAYS.into_iter().flat_map(|way| [(way, true), (way, false)]) {
        let mut pair = Pair::new(way, healing);
        let side = if of_near { &pair.near } else { &pair.far };
        let link = side.devices[1].clone();
        link.inject(When::Now, Fault::LinkDown);
        // Each end that sends has made an attempt, in vain.
        let offers =
            |pair: &Pair| pair.sides().map(|side| side.domains[1].asked_for_ports.load(SeqCst));
        let before = offers(&pair);
        let has_tried = |pair: &Pair| {
            let tries = offers(pair).into_iter().zip(before).zip(pair.sides());
            tries.filter(|(_, side)| side.sends()).all(|((now, before), _)| now > before)
        };
        pair.poll_until(|pair| pair.is_down() && has_tried(pair));
        pair.poll_for(Duration::from_millis(50));
        assert!(pair.is_down());
        link.inject(When::Now, Fault::LinkUp);
        pair.poll_until(Pair::is_whole);
        pair.exchange();
    }
}

/// One end is slow: the other fails its rail again before the queue pair is connected, at every
/// place of the way.
#[test]
fn a_rail_that_fails_again_before_its_queue_pair_is_there_gets_another_one() {
    for (way, fails) in WAYS.into_iter().flat_map(|way| (0..30).map(move |fails| (way, fails))) {
        let mut pair = Pair::new(way, Healing::default());
        let [near, far] = [&pair.near, &pair.far].map(|side| side.devices[1].clone());
        near.inject(When::Now, Fault::LinkDown);
        pair.poll_until(Pair::is_down);
        near.inject(When::Now, Fault::LinkUp);
        pair.poll_for(Duration::from_millis(fails));
        far.inject(When::Now, Fault::LinkDown);
        (0..100).for_each(|_| pair.poll());
        far.inject(When::Now, Fault::LinkUp);
        pair.poll_until(Pair::is_whole);
        pair.exchange();
    }
}

/// What was said last of a queue pair that is in its place at one end only is lost, with the link.
#[test]
fn a_link_that_breaks_while_queue_pairs_join_is_no_loss() {
    let is_answer: fn(&HealingMessage) -> bool =
        |message| matches!(message, HealingMessage::Answer { .. });
    let is_offer: fn(&HealingMessage) -> bool =
        |message| matches!(message, HealingMessage::Offer { .. });
    for (way, loses) in WAYS.into_iter().flat_map(|way| [(way, is_answer), (way, is_offer)]) {
        let mut pair = Pair::new(way, Healing::default());
        pair.loses = loses;
        let link = pair.near.devices[1].clone();
        link.inject(When::Now, Fault::LinkDown);
        pair.poll_until(Pair::is_down);
        link.inject(When::Now, Fault::LinkUp);
        let ways = pair.sides().iter().filter(|side| side.sends()).count();
        pair.poll_until(|pair| pair.lost >= ways);
        pair.loses = |_| false;
        for side in pair.sides() {
            side.endpoint.healing_link().unwrap().restored();
        }
        pair.poll_until(Pair::is_whole);
        pair.exchange();
    }
}

/// The peer answers, so rails come back; but nothing gets through on any of them, whether drivers
/// give up or not.
#[test]
fn rails_that_come_back_and_carry_nothing_end_the_connection_in_time() {
    for way in WAYS {
        carry_nothing(way, Fault::Silent(true));
        carry_nothing(way, Fault::DropArriving(true));
    }
}

fn carry_nothing(way: Way, fault: Fault) {
    let limit = Duration::from_millis(400);
    let mut pair = Pair::patient(way, limit);
    pair.exchange();
    let receive = pair.offer();
    for device in pair.near.devices.iter().chain(&pair.far.devices) {
        device.inject(When::Now, fault);
    }
    let begin = Instant::now();
    let send = pair.send();
    let why = |pair: &Pair| [pair.near.failure_of(End::Sender), pair.far.failure_of(End::Receiver)];
    pair.poll_until(|pair| why(pair).iter().all(Option::is_some));
    assert!(begin.elapsed() >= limit, "{:?}", begin.elapsed());
    // The far end offers its buffer again, in vain too: either may be the first.
    let why = why(&pair).map(Option::unwrap);
    assert!(why.contains(&Failure::NotHealed), "{why:?}");
    assert!(why.iter().all(|why| matches!(why, Failure::NotHealed | Failure::Peer)), "{why:?}");
    assert!(pair.failures() > 2, "rails came back");
    let failed = |error| matches!(error, CallError::Failed(_));
    while !pair.near.endpoint.test_send(send).is_err_and(failed) {
        pair.poll();
        assert!(begin.elapsed() < LONG);
    }
    while !pair.far.endpoint.test_recv(receive).is_err_and(failed) {
        pair.poll();
        assert!(begin.elapsed() < LONG);
    }
}

/// A message is under way, and no rail comes back.
#[test]
fn messages_do_not_wait_for_rails_without_end() {
    for way in WAYS {
        let limit = Duration::from_millis(300);
        let mut pair = Pair::patient(way, limit);
        pair.exchange();
        _ = pair.offer();
        pair.silence(true);
        _ = pair.send();
        let begin = Instant::now();
        for device in &pair.near.devices {
            device.inject(When::Now, Fault::LinkDown);
        }
        pair.poll_until(|pair| pair.near.failure_of(End::Sender).is_some());
        assert!(begin.elapsed() >= limit, "{:?}", begin.elapsed());
        assert_eq!(pair.near.failure_of(End::Sender), Some(Failure::NotHealed));
        pair.poll_until(|pair| pair.far.failure_of(End::Receiver).is_some());
        assert_eq!(pair.far.failure_of(End::Receiver), Some(Failure::Peer));
    }
}

/// A message is handed over while no rail is in service, whether the peer has offered a buffer or
/// not, and no rail comes back.
#[test]
fn messages_that_no_rail_takes_do_not_wait_without_end() {
    for (way, is_offered) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let limit = Duration::from_millis(300);
        let mut pair = Pair::patient(way, limit);
        pair.exchange();
        if is_offered {
            _ = pair.offer();
        }
        for device in &pair.near.devices {
            device.inject(When::Now, Fault::LinkDown);
        }
        let is_out = |pair: &Pair, index| {
            let state = pair.near.endpoint.queue_pair_state(End::Sender, index);
            state.is_some_and(|(state, _)| state != RailState::InService)
        };
        pair.poll_until(|pair| is_out(pair, 0) && is_out(pair, 1));
        let begin = Instant::now();
        let why = loop {
            pair.poll();
            match pair.try_send(5) {
                Err(error) if error.is_not_now() => assert!(begin.elapsed() < LONG),
                other => break other,
            }
        };
        assert_eq!(why, Err(CallError::Failed(Failure::NotHealed)));
        assert!(begin.elapsed() >= limit, "{:?}", begin.elapsed());
        pair.poll_until(|pair| pair.far.failure_of(End::Receiver).is_some());
        assert_eq!(pair.far.failure_of(End::Receiver), Some(Failure::Peer));
    }
}

/// A message that arrived waits for nothing, even if its caller has not tested it yet.
#[test]
fn a_message_that_arrived_does_not_end_a_connection_without_rails() {
    for way in WAYS {
        let limit = Duration::from_millis(100);
        let mut pair = Pair::patient(way, limit);
        let receive = pair.offer();
        let send = pair.send();
        let begin = Instant::now();
        while pair.far.endpoint.test_recv(receive).unwrap().is_none() {
            pair.poll();
            assert!(begin.elapsed() < LONG);
        }
        // The sender knows, too.
        pair.poll_until(|pair| pair.near.endpoint.sender().unwrap().under_way() == 0);
        for device in &pair.near.devices {
            device.inject(When::Now, Fault::LinkDown);
        }
        pair.poll_for(4 * limit);
        assert_eq!(pair.near.failure_of(End::Sender), None);
        for device in &pair.near.devices {
            device.inject(When::Now, Fault::LinkUp);
        }
        pair.poll_until(Pair::is_whole);
        assert_eq!(pair.near.endpoint.test_send(send), Ok(true));
        pair.exchange();
    }
}

/// The peer does not report what arrived on rails that failed.
#[test]
fn messages_do_not_wait_without_end_for_what_the_peer_does_not_report() {
    for way in WAYS {
        let limit = Duration::from_millis(300);
        let healing = Healing {
            stall_timeout: Some(Duration::from_millis(40)),
            fence_timeout: Some(limit),
            ..Healing::default()
        };
        let mut pair = Pair::with(way, P2pBuilder::new().min_rails(0).healing(healing));
        pair.exchange();
        _ = pair.offer();
        pair.loses = |message| matches!(message, HealingMessage::Control { .. });
        pair.silence(true);
        _ = pair.send();
        let begin = Instant::now();
        pair.poll_until(|pair| pair.near.failure_of(End::Sender).is_some());
        assert!(begin.elapsed() >= limit, "{:?}", begin.elapsed());
        assert_eq!(pair.near.failure_of(End::Sender), Some(Failure::NotFenced));
    }
}

/// What gets through in between is headway, however often rails fail; and with nothing to send none
/// is needed.
#[test]
fn rails_that_carry_something_now_and_then_end_nothing() {
    WAYS.into_iter().for_each(carry_something);
}

fn carry_something(way: Way) {
    let limit = Duration::from_secs(1);
    let mut pair = Pair::patient(way, limit);
    let begin = Instant::now();
    while begin.elapsed() < 3 * limit {
        let receive = pair.offer();
        pair.silence(true);
        let send = pair.send();
        while pair.failures() == 0 {
            pair.poll();
        }
        pair.silence(false);
        while !pair.near.endpoint.test_send(send).unwrap() {
            pair.poll();
        }
        while pair.far.endpoint.test_recv(receive).unwrap().is_none() {
            pair.poll();
        }
    }
    for _ in 0..6 {
        for fault in [Fault::LinkDown, Fault::LinkUp] {
            pair.near.devices[1].inject(When::Now, fault);
            pair.poll_for(Duration::from_millis(50));
        }
    }
    pair.poll_until(Pair::is_whole);
    pair.exchange();
}

/// The rail of the second device stands by, at both ends: while the first device is away it carries
/// everything, and nothing before and afterwards.
#[test]
fn rails_of_a_standby_device_take_over_and_stand_back() {
    let standby = |pair: &Pair| -> Vec<u64> {
        let requests = |side: &Side| {
            let sender = side.endpoint.sender().and_then(|sender| sender.counters(1));
            let receiver = side.endpoint.receiver().and_then(|receiver| receiver.counters(1));
            [sender, receiver].map(|counters| counters.map_or(0, |all| all.send_requests))
        };
        pair.sides().into_iter().flat_map(requests).collect()
    };
    for way in WAYS {
        let mut pair = Pair::with(way, P2pBuilder::new().standby_devices([1]));
        (0..3).for_each(|_| pair.exchange());
        assert_eq!(standby(&pair), [0; 4]);
        let device = pair.near.devices[0].clone();
        device.inject(When::Now, Fault::LinkDown);
        (0..3).for_each(|_| pair.exchange());
        let [sent, .., offered] = standby(&pair)[..] else { panic!("two ends") };
        assert!(sent > 0 && offered > 0, "{sent} {offered}");
        device.inject(When::Now, Fault::LinkUp);
        pair.poll_until(|pair| {
            pair.sides().iter().all(|side| {
                let state = |end| side.endpoint.queue_pair_state(end, 0);
                let states = [End::Sender, End::Receiver].into_iter().filter_map(state);
                states.into_iter().all(|(state, _)| state == RailState::InService)
            })
        });
        let before = standby(&pair);
        (0..3).for_each(|_| pair.exchange());
        assert_eq!(standby(&pair), before);
    }
}
