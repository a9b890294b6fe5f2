//! Both ends of a link in memory and in virtual time, over a network that fails as drawn: streams
//! are cut at any byte, reset at both ends or given up at one, or fall silent; attempts to connect
//! are refused or swallowed, at one of the two addresses of the host that listens or at both; that
//! host stops for seconds; strangers guess, know another token, or repeat what they saw, and
//! listen at the other addresses that the two ends know. The two ends lose no message that the peer
//! must receive.

use super::given::hello;
use super::sky::{End, HOST, OTHER, Sky, Weather};
use crate::link::channel::Target;
use crate::link::end::Link;
use crate::link::resume::Sessions;
use crate::link::{Hello, HexBytes, LinkError, Message, NoOutcome, Reason, Timeouts, Token};
use quickcheck::Gen;
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sequences of faults that are tried.
const SEEDS: u64 = 400;

const STEPS: usize = 400;

/// Notes that each end sends between "ready" and "done".
const NOTES: u32 = 30;

/// How long a stream is silent before the system gives it up.
const SILENCE: Duration = Duration::from_secs(9);

/// Times between two calls of an owner.
const OFTEN: Duration = Duration::from_millis(10);
const SELDOM: Duration = Duration::from_secs(4);

#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }
}

/// A link's end and its owner.
struct Side {
    link: Link,
    sent: u32,
    received: Vec<Message>,
    resumed: usize,
}

impl Side {
    fn new(link: Link) -> Self {
        Self { link, sent: 0, received: Vec::new(), resumed: 0 }
    }

    /// Sends the next message of "ready", the notes, and "done".
    fn send(&mut self) {
        let number = self.sent;
        let message = match number {
            0 => Message::Ready {},
            1..=NOTES => Message::Note { bytes: HexBytes(number.to_be_bytes().repeat(9)) },
            _ if number == NOTES + 1 => Message::Done(NoOutcome {}),
            _ => return,
        };
        if self.link.go_on_sending() {
            self.link.offer(&message).unwrap();
            self.sent += 1;
        }
    }

    fn receive(&mut self, now: Instant) {
        while let Some(message) = self.link.receive(now).unwrap() {
            match message {
                Message::Resumed {} => self.resumed += 1,
                message => self.received.push(message),
            }
        }
    }

    /// Notes may be lost, and come in order. The others come once.
    fn check(&self) {
        let notes = self.received.iter().filter_map(|message| match message {
            Message::Note { bytes } => Some(bytes.0[3]),
            _ => None,
        });
        assert!(notes.is_sorted_by(|a, b| a < b), "{:?}", self.received);
        let count = |wanted| self.received.iter().filter(|message| **message == wanted).count();
        assert!(count(Message::Ready {}) <= 1 && count(Message::Done(NoOutcome {})) <= 1);
    }

    fn is_done(&self) -> bool {
        self.sent == NOTES + 2 && self.received.last() == Some(&Message::Done(NoOutcome {}))
    }
}

struct World {
    random: Random,
    sky: Sky,
    now: Instant,
    near: Side,
    far: Option<Side>,
    sessions: Sessions,
    guests: Vec<Link>,
    strangers: Vec<Stranger>,
    token: Option<Token>,
    timeouts: Timeouts,
    given: Message,
}

/// A connection whose bytes nobody reads.
struct Stranger {
    end: End,
    says: VecDeque<u8>,
}

impl World {
    fn new(seed: u64) -> Self {
        let resume = Duration::from_secs(100_000);
        // Hosts that stop are late with the rest of a message, too.
        let timeouts = Timeouts { resume, reset: resume, message: resume, ..Timeouts::default() };
        Self::with(seed, timeouts)
    }

    fn with(seed: u64, timeouts: Timeouts) -> Self {
        Self::with_token(seed, timeouts, Token::new([7; 32]).ok())
    }

    fn with_token(seed: u64, timeouts: Timeouts, token: Option<Token>) -> Self {
        let mut random = Random::new(seed);
        let sky = Sky::new([40, 300, 100_000][random.below(3)]);
        let target = Target {
            network: Arc::new(sky.clone()),
            name: "far".into(),
            addresses: [HOST[0], OTHER, HOST[1]].map(|at| at.parse().unwrap()).to_vec(),
            met: None,
            timeouts,
            token: token.clone(),
        };
        let now = Instant::now();
        let mut near = Side::new(Link::dial(target, now).unwrap());
        let session = near.link.session();
        let given = Message::Hello(Hello { session, ..hello(&mut Gen::from_size_and_seed(4, 1)) });
        near.link.offer(&given).unwrap();
        Self {
            random,
            sky,
            now,
            near,
            far: None,
            sessions: Sessions::default(),
            guests: Vec::new(),
            strangers: Vec::new(),
            token,
            timeouts,
            given,
        }
    }

    /// What the host that listens does.
    fn attend(&mut self) {
        while let Some(end) = self.sky.0.lock().unwrap().accepted.pop_front() {
            let sessions = self.sessions.clone();
            let stream = Box::new(end);
            self.guests.push(Link::accepted(stream, sessions, &self.timeouts, self.token.as_ref()));
        }
        for mut guest in std::mem::take(&mut self.guests) {
            match guest.receive(self.now) {
                Ok(None) => self.guests.push(guest),
                Ok(Some(message @ Message::Hello(_))) => {
                    assert!(self.far.is_none() && message == self.given, "a stranger came in");
                    guest.offer(&self.given).unwrap();
                    self.far = Some(Side::new(guest));
                }
                Ok(Some(Message::Resume { session })) => guest.join(session).unwrap(),
                Ok(Some(other)) => panic!("{other:?}"),
                Err(_) => {}
            }
        }
    }

    /// A link whose streams have just been reset, and the weather at the addresses since then: at
    /// the one that answered, at the other one of its host, and at the stranger's.
    fn broken(timeouts: Timeouts, weather: [Weather; 3]) -> Self {
        Self::with(1, timeouts).broken_in(weather)
    }

    fn broken_in(self, weather: [Weather; 3]) -> Self {
        let mut world = self;
        while !world.is_resumable() {
            world.poll();
        }
        assert_eq!(world.near.link.peer_addr(), HOST[0].parse().ok());
        world.sky.set(weather);
        world.sky.0.lock().unwrap().room = 100_000;
        world.sky.break_streams(ErrorKind::ConnectionReset);
        world
    }

    /// Calls the two owners at these intervals, until both have the link again or a time has
    /// passed. Returns the number of calls of the side that connects.
    fn call(&mut self, [near_every, far_every]: [Duration; 2], time: Duration) -> usize {
        let (mut near_at, mut far_at) = (self.now, self.now);
        let end = self.now + time;
        let mut calls = 0;
        while !self.is_resumed() && self.now < end {
            if self.now >= near_at {
                near_at += near_every;
                calls += 1;
                self.near.receive(self.now);
            }
            if self.now >= far_at {
                far_at += far_every;
                self.attend();
                self.far.iter_mut().for_each(|far| far.receive(self.now));
            }
            self.wait(OFTEN);
        }
        calls
    }

    fn is_resumed(&self) -> bool {
        self.near.resumed == 1 && self.far.as_ref().is_some_and(|far| far.resumed == 1)
    }

    fn is_resumable(&self) -> bool {
        let is_so = |side: &Side| side.link.resumption.is_some();
        is_so(&self.near) && self.far.as_ref().is_some_and(is_so)
    }

    fn poll(&mut self) {
        match self.random.below(3) {
            0 => self.near.receive(self.now),
            1 => self.far.iter_mut().for_each(|far| far.receive(self.now)),
            _ => self.attend(),
        }
        // The stranger that listens hangs up, refuses, or says nothing.
        if self.random.below(30) == 0 {
            for mut end in std::mem::take(&mut self.sky.0.lock().unwrap().strange) {
                let refused = Message::Refused { reason: Reason::new("who are you?") };
                if self.random.below(2) == 0 {
                    _ = end.write(&<Message>::encode(&refused));
                }
            }
        }
        for Stranger { end, says } in &mut self.strangers {
            let (bytes, _) = says.as_slices();
            if let Ok(written) = end.write(bytes) {
                says.drain(..written);
            }
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        for wire in &self.sky.0.lock().unwrap().wires {
            let mut wire = wire.lock().unwrap();
            if wire.silent.is_some_and(|since| self.now.duration_since(since) >= SILENCE) {
                wire.broken = wire.broken.map(|kind| kind.or(Some(ErrorKind::TimedOut)));
            }
        }
    }

    fn harm(&mut self) {
        let now = self.now;
        let wires = self.sky.wires();
        let wire = (!wires.is_empty()).then(|| wires[self.random.below(wires.len())].clone());
        let what = self.random.below(9);
        let wire = wire.as_ref().filter(|_| what < 4).map(|wire| wire.lock().unwrap());
        match (what, wire) {
            (0, Some(mut wire)) => wire.broken = [Some(ErrorKind::ConnectionReset); 2],
            // One end gives it up, and the other one does not notice.
            (1, Some(mut wire)) => {
                wire.broken[self.random.below(2)] = Some(ErrorKind::TimedOut);
                wire.silent = Some(now);
            }
            (2, Some(mut wire)) => wire.silent = Some(now),
            // What is on its way is lost behind some byte.
            (3, Some(mut wire)) => {
                let to = self.random.below(2);
                let length = wire.bytes[to].len();
                wire.bytes[to].truncate(self.random.below(length + 1));
                wire.silent = Some(now);
            }
            (4, _) => {
                let weather = [0; 2].map(|_| match self.random.below(6) {
                    0 => Weather::Swallows,
                    1 => Weather::Unreachable,
                    2 => Weather::Taken,
                    _ => Weather::Fair,
                });
                self.sky.0.lock().unwrap().weather[..2].copy_from_slice(&weather);
            }
            // Longer than an attempt: the side that listens finds attempts that were given up.
            (5, _) => self.pause(),
            (6, _) => self.stranger(),
            _ => {}
        }
    }

    /// The host that listens is stopped.
    fn pause(&mut self) {
        for _ in 0..self.random.below(400) {
            self.wait(Duration::from_millis(20));
            self.near.receive(self.now);
        }
    }

    fn stranger(&mut self) {
        if self.strangers.len() > 3 {
            self.strangers.remove(0);
        }
        let Ok(end) = self.sky.connect(HOST[0]) else { return };
        let says = match self.random.below(3) {
            0 => Vec::new(),
            1 => (0..50).map(|_| self.random.below(256) as u8).collect(),
            _ => {
                let wires = self.sky.0.lock().unwrap().wires.clone();
                wires[self.random.below(wires.len())].lock().unwrap().seen.clone()
            }
        };
        self.strangers.push(Stranger { end, says: says.into() });
    }

    fn run(&mut self) {
        while !self.is_resumable() {
            self.poll();
        }
        for _ in 0..STEPS {
            match self.random.below(8) {
                0 => self.near.send(),
                1 => self.far.iter_mut().for_each(Side::send),
                2 => self.harm(),
                3 => {
                    let ms = self.random.below(300) as u64;
                    self.wait(Duration::from_millis(ms));
                }
                _ => self.poll(),
            }
        }
        // One of the two addresses may be gone for good.
        let good = self.random.below(3);
        let lost = [Weather::Swallows, Weather::Unreachable, Weather::Taken][self.random.below(3)];
        self.sky.set([0, 1, 2].map(|at| match (good, at) {
            (2, _) | (_, 2) => Weather::Fair,
            _ if good == at => Weather::Fair,
            _ => lost,
        }));
        let end = self.now + Duration::from_secs(60);
        let is_done = |side: &Side| side.is_done();
        while !(is_done(&self.near) && self.far.as_ref().is_some_and(is_done)) {
            self.near.send();
            self.far.iter_mut().for_each(Side::send);
            self.poll();
            self.wait(Duration::from_millis(5));
            let (near, far) = (&self.near.received, self.far.as_ref().map(|far| &far.received));
            assert!(self.now < end, "{near:?} {far:?}");
        }
        self.near.check();
        self.far.iter().for_each(Side::check);
    }
}

#[test]
fn no_sequence_of_faults_loses_a_message_that_the_peer_must_receive() {
    let mut resumed = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        assert!(run.is_ok(), "seed {seed}");
        resumed += world.near.resumed;
    }
    // The faults reach the links.
    assert!(resumed > SEEDS as usize, "{resumed}");
}

#[test]
fn a_link_that_is_not_resumed_is_an_error_with_its_cause() {
    let mut world = World::with(1, Timeouts::default());
    while !world.is_resumable() {
        world.poll();
    }
    world.sky.set([Weather::Swallows, Weather::Swallows, Weather::Fair]);
    world.sky.break_streams(ErrorKind::TimedOut);
    let (begin, step) = (world.now, Duration::from_millis(400));
    assert!(matches!(world.near.link.receive(world.now), Ok(None)));
    assert!(world.near.link.is_broken());
    let error = loop {
        world.now += step;
        match world.near.link.receive(world.now) {
            Ok(message) => assert_eq!(message, None),
            Err(error) => break error,
        }
    };
    assert_eq!(world.now - begin, world.timeouts.resume);
    let LinkError::NotResumed { waited, source } = error else { panic!("{error}") };
    assert!(waited == world.timeouts.resume && source.kind() == ErrorKind::TimedOut, "{source}");
    // And stays so.
    assert!(matches!(world.near.link.receive(world.now), Err(LinkError::HungUp { .. })));
}

/// Its other addresses may not answer at all, or another process has them.
#[test]
fn a_peer_that_has_ended_is_noticed_soon() {
    for other in [Weather::Taken, Weather::Swallows, Weather::Refuses] {
        let weather = [Weather::Refuses, Weather::Swallows, other];
        let mut world = World::broken(Timeouts::default(), weather);
        let begin = world.now;
        while world.near.link.receive(world.now).is_ok() {
            world.now += OFTEN;
            assert!(world.now - begin < Duration::from_secs(3), "it is still resumed: {other:?}");
        }
    }
}

/// The side that listens waits for a side that calls seldom.
fn patient() -> Timeouts {
    let long = Duration::from_secs(300);
    Timeouts { resume: long, reset: long, ..Timeouts::default() }
}

/// A relay to it is gone, for example.
#[test]
fn a_peer_that_lives_is_found_at_each_address_though_the_one_that_answered_refuses() {
    for other in [Weather::Fair, Weather::Taken, Weather::Swallows, Weather::Refuses] {
        for near_every in [OFTEN, SELDOM] {
            let weather = [Weather::Refuses, Weather::Fair, other];
            let mut world = World::broken(patient(), weather);
            let calls = world.call([near_every, OFTEN], Duration::from_secs(300));
            assert!(world.is_resumed(), "{other:?} {near_every:?}");
            // As the docs of `Timeouts::resume` have it, with one address before the one that
            // answers.
            assert!(near_every == OFTEN || calls <= 7 + 3 + 3, "{other:?} {calls}");
        }
    }
}

/// A rail that failed for good, for example.
#[test]
fn an_address_that_does_not_answer_any_more_delays_the_others_for_less_than_a_second() {
    for other in [Weather::Swallows, Weather::Refuses, Weather::Unreachable] {
        let weather = [Weather::Swallows, Weather::Fair, other];
        let mut world = World::broken(Timeouts::default(), weather);
        world.call([OFTEN; 2], Duration::from_secs(1));
        assert!(world.is_resumed(), "{other:?}");
    }
}

#[test]
fn an_address_counts_as_tried_only_if_there_was_a_descriptor_for_the_attempt() {
    for met in [Weather::Refuses, Weather::Lacks] {
        let weather = [met, Weather::Lacks, Weather::Refuses];
        let mut world = World::broken(patient(), weather);
        world.call([OFTEN; 2], Duration::from_secs(10));
        world.sky.set([Weather::Refuses, Weather::Fair, Weather::Refuses]);
        world.call([OFTEN; 2], Duration::from_secs(10));
        assert!(world.is_resumed(), "{met:?}");
    }
}

#[test]
fn an_address_that_connects_late_has_all_of_the_time_to_answer() {
    let mut world = World::with_token(1, patient(), None).broken_in([
        Weather::Refuses,
        Weather::Swallows,
        Weather::Refuses,
    ]);
    world.call([OFTEN; 2], Duration::from_millis(950));
    world.sky.connect_late();
    for _ in 0..50 {
        world.near.receive(world.now);
        world.wait(OFTEN);
    }
    world.call([OFTEN; 2], Duration::from_millis(100));
    assert!(world.is_resumed());
}

/// Limits count what the owners' calls can do, and an attempt goes on while it makes progress.
#[test]
fn a_side_whose_owner_calls_seldom_resumes_a_link_after_a_reset() {
    let patient = Timeouts { reset: Duration::from_secs(60), ..Timeouts::default() };
    for (every, timeouts) in [
        ([OFTEN, SELDOM], Timeouts::default()),
        // A link is given up when its peer has not come back for as long as `reset`.
        ([SELDOM, OFTEN], patient),
        ([SELDOM, SELDOM], patient),
    ] {
        let mut world = World::broken(timeouts, [Weather::Fair; 3]);
        world.call(every, Duration::from_secs(600));
        assert!(world.is_resumed(), "{every:?}");
    }
}
