//! Messages and receives that are taken back: one at a time on devices that are silent, by handles
//! of progress threads, and many while links fail, with every byte checked.

mod fixture;
mod messages;
mod threads;

use fixture::{ended, impatient, submit};
use messages::{Pair, Side};
use polyrail::nic::{Device, Fault, When};
use polyrail::p2p::{CallError, CancelError, End, NotNow, P2pBuilder, RecvHandle, SendHandle};
use polyrail::progress::messages::P2pError;
use polyrail::progress::{HandleCancelError, SubmitError};
use polyrail::virtual_qp::{QpState, RailFailure};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use threads::World;

const TARGET_POISON: u8 = 0xEE;
const SOURCE_POISON: u8 = 0xDD;
const LENGTH: u32 = 64 << 10;

fn builder() -> P2pBuilder {
    let reroutes = P2pBuilder::new().rail_failure(RailFailure::Reroute);
    reroutes.rails(4).split_threshold(1024).connect_options(impatient())
}

/// Nothing that is posted is executed, or it is again.
fn set_silent(devices: &[Device], is_silent: bool) {
    devices.iter().for_each(|device| device.inject(When::Now, Fault::Silent(is_silent)));
}

fn is_taken_back<T>(result: &Result<T, CallError>) -> bool {
    matches!(result, Err(CallError::TakenBack { .. }))
}

/// A message over four rails, posted and not executed.
fn under_way(builder: &P2pBuilder) -> (Pair, SendHandle, RecvHandle) {
    let mut pair = Pair::new([4, 4], 2 << 20, builder);
    pair.near.buffer.fill(0, 1 << 20, 7).unwrap();
    pair.far.buffer.fill(0, 1 << 20, TARGET_POISON).unwrap();
    let receive = pair.until(|pair| pair.far.offer(&[(0, 1 << 20, 1)])).unwrap();
    // The entry is there before the sender's devices fall silent: no other tag is.
    let has_come = |pair: &mut Pair| match pair.near.send(0, 1, 2) {
        Err(CallError::NotNow(NotNow::NoSuchTag)) => Ok(()),
        other => other.map(|_| ()),
    };
    pair.until(has_come).unwrap();
    set_silent(&pair.near.devices, true);
    let send = pair.until(|pair| pair.near.send(0, 1 << 20, 1)).unwrap();
    (pair, send, receive)
}

/// The connection is as good as before.
fn assert_as_new(pair: &mut Pair) {
    pair.wait_until_whole();
    for value in 1..20 {
        pair.near.buffer.fill(1 << 20, 5000, value).unwrap();
        let receive = pair.until(|pair| pair.far.offer(&[(1 << 20, 5000, 1)])).unwrap();
        let send = pair.until(|pair| pair.near.send(1 << 20, 5000, 1)).unwrap();
        pair.finish(send, receive, 5000);
        assert!(pair.far.bytes(1 << 20, 5000).iter().all(|byte| *byte == value));
    }
    assert_eq!(pair.near.endpoint.state(), QpState::Ready);
    assert_eq!(pair.far.endpoint.state(), QpState::Ready);
}

#[test]
fn a_message_under_way_is_taken_back() {
    for grace in [Duration::ZERO, Duration::from_micros(500), Duration::from_millis(20)] {
        let (mut pair, send, receive) = under_way(&builder().cancel_grace(grace));
        let begin = Instant::now();
        pair.near.endpoint.cancel_send(send).unwrap();
        let result = pair.sent(send);
        assert!(is_taken_back(&result), "{result:?}");
        assert!(begin.elapsed() >= grace);
        pair.near.buffer.fill(0, 1 << 20, SOURCE_POISON).unwrap();
        set_silent(&pair.near.devices, false);
        let result = pair.received(receive);
        assert!(is_taken_back(&result), "{result:?}");
        assert_as_new(&mut pair);
        assert!(pair.far.bytes(0, 1 << 20).iter().all(|byte| *byte == TARGET_POISON));
    }
}

/// The receiver has its answer while the sender's devices are silent still.
#[test]
fn a_receive_whose_message_is_under_way_is_taken_back() {
    let (mut pair, send, receive) = under_way(&builder());
    pair.far.endpoint.cancel_recv(receive).unwrap();
    let result = pair.received(receive);
    assert!(is_taken_back(&result), "{result:?}");
    pair.far.buffer.fill(0, 1 << 20, 0xCC).unwrap();
    let result = pair.sent(send);
    assert!(is_taken_back(&result), "{result:?}");
    set_silent(&pair.near.devices, false);
    assert_as_new(&mut pair);
    assert!(pair.far.bytes(0, 1 << 20).iter().all(|byte| *byte == 0xCC));
}

#[test]
fn receives_without_messages_are_taken_back() {
    let mut pair = Pair::new([4, 4], 2 << 20, &builder());
    for _ in 0..300 {
        let receive = pair.until(|pair| pair.far.offer(&[(0, 1 << 20, 1)])).unwrap();
        pair.far.endpoint.cancel_recv(receive).unwrap();
        let result = pair.received(receive);
        assert!(is_taken_back(&result), "{result:?}");
    }
    assert_as_new(&mut pair);
    assert_eq!(pair.far.endpoint.unfinished(), (0, 0));
}

/// A peer that does not poll fences nothing: the rails fail after `fence_timeout`, then the endpoint.
#[test]
fn a_peer_that_is_gone_is_not_waited_for_for_ever() {
    let healing = polyrail::heal::Healing {
        fence_timeout: Some(Duration::from_millis(100)),
        ..polyrail::heal::Healing::default()
    };
    let (mut pair, send, _) = under_way(&builder().healing(healing));
    pair.near.endpoint.cancel_send(send).unwrap();
    let begin = Instant::now();
    let result = loop {
        pair.near.endpoint.poll(16).check().unwrap();
        match pair.near.endpoint.test_send(send) {
            Ok(false) => assert!(begin.elapsed() < fixture::LONG, "no result"),
            result => break result,
        }
    };
    assert!(matches!(result, Err(CallError::Failed(_))), "{result:?}");
}

#[test]
fn an_end_that_is_not_there_takes_nothing_back() {
    let (mut pair, send, receive) = under_way(&P2pBuilder::new().rails(4).split_threshold(1024));
    let refused = pair.near.endpoint.cancel_send(send);
    assert_eq!(refused, Err(CancelError::NotRerouting));
    assert_eq!(pair.far.endpoint.cancel_recv(receive), Err(CancelError::NotRerouting));
    let (near, far) = (builder().only(End::Sender), builder().only(End::Receiver));
    let mut pair = Pair::of([4, 4], 2 << 20, [&near, &far]);
    assert_eq!(pair.far.endpoint.cancel_send(send), Err(CancelError::OneWay));
    assert_eq!(pair.near.endpoint.cancel_recv(receive), Err(CancelError::OneWay));
    assert_as_new(&mut pair);
}

/// Through handles of progress threads, which sleep.
#[test]
fn handles_take_back_what_waits_and_what_is_under_way() {
    let world = World::new(4, &builder());
    let [mut near, mut far] = [&world.near, &world.far].map(|side| side.handle());
    // No buffer is offered.
    let waiting = world.near.send(&mut near, (0, 100, 7)).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    near.cancel_send(&waiting).unwrap();
    assert!(matches!(ended(waiting), Err(P2pError::TakenBack)));
    let foreign = world.far.send(&mut far, (0, 100, 7)).unwrap();
    assert!(matches!(near.cancel_send(&foreign), Err(HandleCancelError::Foreign)));
    far.cancel_send(&foreign).unwrap();
    assert!(matches!(ended(foreign), Err(P2pError::TakenBack)));
    // Nothing is sent.
    let offered = world.far.offer(&mut far, &[(0, 100, 7)]).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    far.cancel_recv(&offered).unwrap();
    let result = ended(offered);
    assert!(matches!(result, Err(P2pError::Call(CallError::TakenBack { .. }))), "{result:?}");
    // Under way.
    world.far.host.buffer.fill(0, 100_000, TARGET_POISON).unwrap();
    let offered = world.far.offer(&mut far, &[(0, 100_000, 7)]).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    set_silent(&world.near.host.devices, true);
    let sent = world.near.send(&mut near, (0, 100_000, 7)).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    near.cancel_send(&sent).unwrap();
    let result = ended(sent);
    assert!(matches!(result, Err(P2pError::Call(CallError::TakenBack { .. }))), "{result:?}");
    set_silent(&world.near.host.devices, false);
    let result = ended(offered);
    assert!(matches!(result, Err(P2pError::Call(CallError::TakenBack { .. }))), "{result:?}");
    for number in 0..50 {
        world.near.host.buffer.fill(0, 3000, number).unwrap();
        let sent = submit(|| world.near.send(&mut near, (0, 3000, 7)));
        let offered = submit(|| world.far.offer(&mut far, &[(200_000, 3000, 7)]));
        assert_eq!(ended(offered).unwrap().sizes(), [3000]);
        ended(sent).unwrap();
        assert!(world.far.bytes(200_000, 3000).iter().all(|byte| *byte == number));
    }
    assert!(world.far.bytes(0, 100_000).iter().all(|byte| *byte == TARGET_POISON));
    let world = World::with_patience(2, &P2pBuilder::new(), Duration::ZERO);
    let mut handle = world.near.handle();
    let waiting = world.near.send(&mut handle, (0, 100, 7)).unwrap();
    assert!(matches!(handle.cancel_send(&waiting), Err(HandleCancelError::NotRerouting)));
    drop(world.near.thread.shutdown());
    let refused = handle.cancel_send(&waiting);
    assert!(matches!(refused, Err(HandleCancelError::Submit(SubmitError::ThreadGone))));
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Messages and receives under way at one time.
const SLOTS: usize = 8;

/// What a message carries; never a poison.
fn byte_of(number: u64, at: usize) -> u8 {
    ((number as usize * 31 + at) % 199) as u8 + 1
}

/// Messages of any length from one end to the other, of which many are taken back.
struct Traffic {
    pair: Pair,
    random: Random,
    /// By slot of the buffer.
    sends: [Option<(SendHandle, u32)>; SLOTS],
    receives: [Option<RecvHandle>; SLOTS],
    /// By number: whether it was delivered, as the first end to have a result says.
    results: BTreeMap<u64, bool>,
    offered: u64,
    delivered: u64,
    taken_back: u64,
}

impl std::fmt::Debug for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pair, sends, receives, offered, delivered, taken_back, .. } = self;
        let states = [&pair.near, &pair.far].map(|side| {
            let state = |end| (0..4).map(move |at| side.endpoint.queue_pair_state(end, at));
            state(End::Sender).chain(state(End::Receiver)).collect::<Vec<_>>()
        });
        write!(f, "{offered} offered, {delivered} delivered, {taken_back} taken back; ")?;
        write!(f, "{sends:?} {receives:?}; {states:?}")
    }
}

/// When the last result came. However slow a machine is, there is a next one.
struct Progress(usize, Instant);

impl Progress {
    fn new() -> Self {
        Self(0, Instant::now())
    }

    fn check(&mut self, traffic: &Traffic) {
        if traffic.results.len() > self.0 {
            *self = Self(traffic.results.len(), Instant::now());
        }
        assert!(self.1.elapsed() < fixture::LONG, "{traffic:?}");
    }
}

impl Traffic {
    fn new(seed: u64) -> Self {
        // The software NIC delivers most messages in less than any grace.
        let builder = builder().cancel_grace(Duration::ZERO);
        let pair = Pair::new([4, 4], SLOTS * LENGTH as usize, &builder);
        let bytes = SLOTS * LENGTH as usize;
        pair.near.buffer.fill(0, bytes, SOURCE_POISON).unwrap();
        pair.far.buffer.fill(0, bytes, TARGET_POISON).unwrap();
        Self {
            pair,
            random: Random(seed),
            sends: [None; SLOTS],
            receives: [None; SLOTS],
            results: BTreeMap::new(),
            offered: 0,
            delivered: 0,
            taken_back: 0,
        }
    }

    fn place(slot: usize) -> usize {
        slot * LENGTH as usize
    }

    /// Both ends have the same result.
    fn note(&mut self, number: u64, is_delivered: bool) {
        let first = *self.results.entry(number).or_insert(is_delivered);
        assert_eq!(first, is_delivered, "the ends disagree about message {number}");
        self.delivered += u64::from(is_delivered);
        self.taken_back += u64::from(!is_delivered);
    }

    fn offer(&mut self, slot: usize) {
        let place = Self::place(slot);
        // Since its last result nothing was written.
        let bytes = self.pair.far.bytes(place, LENGTH as usize);
        assert!(bytes.iter().all(|byte| *byte == TARGET_POISON), "written after its result");
        match self.pair.far.offer(&[(place, LENGTH, 1)]) {
            Ok(handle) => {
                self.receives[slot] = Some(handle);
                self.offered += 1;
            }
            Err(error) => assert!(error.is_not_now(), "{error}"),
        }
    }

    fn send(&mut self, slot: usize) {
        // The number is known afterwards only, and which bytes are sent before: so the slot decides.
        let length = 1 + self.random.below(LENGTH.into()) as u32;
        let bytes: Vec<_> = (0..length as usize).map(|at| byte_of(slot as u64, at)).collect();
        self.pair.near.buffer.write_at(Self::place(slot), &bytes).unwrap();
        match self.pair.near.send(Self::place(slot), length, 1) {
            Ok(handle) => self.sends[slot] = Some((handle, length)),
            Err(error) => {
                assert!(error.is_not_now(), "{error}");
                let Side { buffer, .. } = &self.pair.near;
                buffer.fill(Self::place(slot), LENGTH as usize, SOURCE_POISON).unwrap();
            }
        }
    }

    fn test_send(&mut self, slot: usize) {
        let Some((handle, _)) = self.sends[slot] else { return };
        let is_delivered = match self.pair.near.endpoint.test_send(handle) {
            Ok(false) => return,
            Ok(true) => true,
            Err(CallError::TakenBack { .. }) => false,
            Err(error) => panic!("{error}"),
        };
        self.note(handle.number(), is_delivered);
        self.sends[slot] = None;
        let Side { buffer, .. } = &self.pair.near;
        buffer.fill(Self::place(slot), LENGTH as usize, SOURCE_POISON).unwrap();
    }

    fn test_receive(&mut self, slot: usize) {
        let Some(handle) = self.receives[slot] else { return };
        let size = match self.pair.far.endpoint.test_recv(handle) {
            Ok(None) => return,
            Ok(Some(received)) => Some(received.sizes()[0] as usize),
            Err(CallError::TakenBack { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        self.note(handle.number(), size.is_some());
        let bytes = self.pair.far.bytes(Self::place(slot), LENGTH as usize);
        let (message, rest) = bytes.split_at(size.unwrap_or(0));
        let is_of = |from: usize| {
            message.iter().enumerate().all(|(at, byte)| *byte == byte_of(from as u64, at))
        };
        assert!(message.is_empty() || (0..SLOTS).any(is_of), "not as it was sent");
        // Of a message that was taken back, any part may be there, and never what came later.
        let is_clean =
            |byte: &u8| *byte == TARGET_POISON || size.is_none() && *byte != SOURCE_POISON;
        assert!(rest.iter().all(is_clean), "message {}: {size:?}", handle.number());
        self.receives[slot] = None;
        let Side { buffer, .. } = &self.pair.far;
        buffer.fill(Self::place(slot), LENGTH as usize, TARGET_POISON).unwrap();
    }

    fn cancel(&mut self, slot: usize) {
        let cancelled = match (self.random.one_in(2), self.sends[slot], self.receives[slot]) {
            (true, Some((handle, _)), _) => self.pair.near.endpoint.cancel_send(handle),
            (_, _, Some(handle)) => self.pair.far.endpoint.cancel_recv(handle),
            _ => return,
        };
        match cancelled {
            Ok(()) | Err(CancelError::TooLate { .. } | CancelError::AlreadyCancelled { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self, is_over: bool) {
        for slot in 0..SLOTS {
            self.test_send(slot);
            self.test_receive(slot);
            match self.random.below(16) {
                0..4 if self.receives[slot].is_none() && !is_over => self.offer(slot),
                4 if self.sends[slot].is_none() => {
                    // In the end, what is offered is sent to.
                    let awaited = self.receives.iter().flatten().count();
                    if !is_over || awaited > 0 {
                        self.send(slot);
                    }
                }
                5 => self.cancel(slot),
                _ => {}
            }
        }
        self.pair.poll();
    }

    fn inject(&self, (is_near, device): (bool, usize), fault: Fault) {
        let side = if is_near { &self.pair.near } else { &self.pair.far };
        side.devices[device].inject(When::Now, fault);
    }

    /// Until so many results say that something was taken back.
    fn run(&mut self, taken_back: u64, flaps: bool) {
        let mut down: Option<(bool, usize)> = None;
        let mut progress = Progress::new();
        while self.taken_back < taken_back {
            self.step(false);
            if flaps && self.random.one_in(400) {
                let (at, fault) = match down.take() {
                    Some(at) => (at, Fault::LinkUp),
                    None => {
                        let at = (self.random.one_in(2), self.random.below(4) as usize);
                        (*down.insert(at), Fault::LinkDown)
                    }
                };
                self.inject(at, fault);
            }
            progress.check(self);
        }
        down.into_iter().for_each(|at| self.inject(at, Fault::LinkUp));
        while self.sends.iter().any(Option::is_some) || self.receives.iter().any(Option::is_some) {
            self.step(true);
            progress.check(self);
        }
        self.pair.wait_until_whole();
    }
}

#[test]
fn many_are_taken_back_by_both_ends() {
    for flaps in [false, true] {
        let mut traffic = Traffic::new(1 + u64::from(flaps));
        traffic.run(500, flaps);
        assert!(traffic.delivered > 100, "{}", traffic.delivered);
    }
}

/// With links that fail; many times more than the test above.
#[test]
#[ignore = "takes a minute"]
fn thousands_of_results_say_that_something_was_taken_back() {
    let mut traffic = Traffic::new(7);
    traffic.run(2_500, true);
    println!(
        "{} delivered, {} taken back, {} offered",
        traffic.delivered, traffic.taken_back, traffic.offered
    );
}
