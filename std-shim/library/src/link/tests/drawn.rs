//! Both ends of a link in memory and in virtual time, over a network that fails as drawn: streams
//! are cut at any byte, reset at both ends or given up at one, or fall silent; attempts to connect
//! are refused or swallowed, at one of the two addresses of the host that listens or at both; that
//! host stops for seconds; strangers guess, know another token, or repeat what they saw, and
//! listen at the other addresses that the two ends know. The two ends lose no message that the peer
//! must receive.

use super::given::hello;
use crate::link::channel::Target;
use crate::link::end::Link;
use crate::link::resume::Sessions;
use crate::link::stream::{Network, Stream};
use crate::link::{Hello, HexBytes, LinkError, Message, NoOutcome, Reason, Timeouts, Token};
use quickcheck::Gen;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Sequences of faults that are tried.
const SEEDS: u64 = 400;

const STEPS: usize = 400;

/// Notes that each end sends between "ready" and "done".
const NOTES: u32 = 30;

/// How long a stream is silent before the system gives it up.
const SILENCE: Duration = Duration::from_secs(9);

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

/// A stream, seen from outside. End 0 connected, end 1 was accepted.
#[derive(Debug, Default)]
struct Wire {
    /// Bytes on their way to each end.
    bytes: [VecDeque<u8>; 2],
    /// All bytes that end 0 has sent.
    seen: Vec<u8>,
    /// The ends that are closed.
    closed: [bool; 2],
    /// What each end finds when it reads or writes.
    broken: [Option<ErrorKind>; 2],
    /// Since when nothing arrives.
    silent: Option<Instant>,
    is_pending: bool,
    /// Bytes that fit into each direction.
    room: usize,
}

#[derive(Debug)]
struct End {
    wire: Arc<Mutex<Wire>>,
    end: usize,
    fd: Arc<UnixStream>,
}

impl Stream for End {
    fn is_connected(&self) -> io::Result<bool> {
        Ok(!self.wire.lock().unwrap().is_pending)
    }

    fn watch(&self, _: Duration) {
        assert!(!self.wire.lock().unwrap().is_pending, "silence would limit the connect");
    }

    fn reset(&self) {
        let mut wire = self.wire.lock().unwrap();
        wire.bytes = Default::default();
        if wire.silent.is_none() {
            wire.broken = [Some(ErrorKind::ConnectionReset); 2];
        }
        wire.closed[self.end] = true;
    }
}

impl Read for End {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut wire = self.wire.lock().unwrap();
        if let Some(kind) = wire.broken[self.end] {
            return Err(kind.into());
        }
        match wire.bytes[self.end].read(bytes) {
            Ok(0) if wire.closed[1 - self.end] && wire.silent.is_none() => Ok(0),
            Ok(0) => Err(ErrorKind::WouldBlock.into()),
            read => read,
        }
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut wire = self.wire.lock().unwrap();
        if let Some(kind) = wire.broken[self.end] {
            return Err(kind.into());
        }
        if wire.silent.is_some() {
            return Ok(bytes.len());
        }
        if wire.closed[1 - self.end] {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let room = wire.room.saturating_sub(wire.bytes[1 - self.end].len());
        let written = &bytes[..bytes.len().min(room)];
        if written.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        wire.bytes[1 - self.end].extend(written);
        if self.end == 0 {
            wire.seen.extend(written);
        }
        Ok(written.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.wire.lock().unwrap().closed[self.end] = true;
    }
}

/// What becomes of an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Fair,
    /// Packets vanish.
    Swallows,
    /// A firewall answers.
    Unreachable,
    /// A process that reads nothing has the address now.
    Taken,
    /// No process listens there.
    Refuses,
}

/// The addresses of the host that listens, and of a stranger that does.
const HOST: [&str; 2] = ["10.0.0.1:1", "10.0.1.1:1"];
const OTHER: &str = "10.0.2.1:1";

#[derive(Debug)]
struct Air {
    /// At each address of the host.
    weather: [Weather; 2],
    room: usize,
    wires: Vec<Arc<Mutex<Wire>>>,
    /// Ends that were not accepted yet.
    accepted: VecDeque<End>,
    /// Ends that the stranger has accepted.
    strange: Vec<End>,
    /// Ends that nothing comes from.
    mute: Vec<End>,
    fd: Arc<UnixStream>,
}

#[derive(Clone, Debug)]
struct Sky(Arc<Mutex<Air>>);

impl Sky {
    fn connect(&self, address: &str) -> io::Result<End> {
        let mut air = self.0.lock().unwrap();
        let at_host = HOST.iter().position(|at| *at == address);
        let is_pending = match at_host.map(|at| air.weather[at]) {
            Some(Weather::Fair | Weather::Taken) => false,
            Some(Weather::Swallows) => true,
            Some(Weather::Unreachable) => return Err(ErrorKind::HostUnreachable.into()),
            None if address == OTHER => false,
            // The hello names many.
            None | Some(Weather::Refuses) => return Err(ErrorKind::ConnectionRefused.into()),
        };
        let wire = Arc::new(Mutex::new(Wire { is_pending, room: air.room, ..Wire::default() }));
        air.wires.push(Arc::clone(&wire));
        let [near, far] =
            [0, 1].map(|end| End { wire: Arc::clone(&wire), end, fd: Arc::clone(&air.fd) });
        match at_host.map(|at| air.weather[at]) {
            Some(Weather::Fair) => air.accepted.push_back(far),
            Some(_) => air.mute.push(far),
            None => air.strange.push(far),
        }
        Ok(near)
    }

    /// The streams that carry bytes.
    fn wires(&self) -> Vec<Arc<Mutex<Wire>>> {
        let wires = &self.0.lock().unwrap().wires;
        let is_whole = |wire: &&Arc<Mutex<Wire>>| {
            let wire = wire.lock().unwrap();
            wire.closed == [false; 2] && wire.broken == [None; 2]
        };
        wires.iter().filter(is_whole).cloned().collect()
    }
}

impl Network for Sky {
    fn connect(&self, address: &SocketAddr) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(Self::connect(self, &address.to_string())?))
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
    token: Token,
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
        let mut random = Random::new(seed);
        let fd = Arc::new(UnixStream::pair().unwrap().0);
        let room = [40, 300, 100_000][random.below(3)];
        let accepted = VecDeque::new();
        let weather = [Weather::Fair; 2];
        let air = Air { weather, room, wires: vec![], accepted, strange: vec![], mute: vec![], fd };
        let sky = Sky(Arc::new(Mutex::new(air)));
        let token = Token::new([7; 32]).unwrap();
        let target = Target {
            network: Arc::new(sky.clone()),
            name: "far".into(),
            addresses: [HOST[0], OTHER, HOST[1]].map(|at| at.parse().unwrap()).to_vec(),
            met: None,
            timeouts,
            token: Some(token.clone()),
        };
        let now = Instant::now();
        let mut near = Side::new(Link::dial(target, now).unwrap());
        let session = near.link.session();
        let given = Message::Hello(Hello { session, ..hello(&mut Gen::new(4)) });
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
            self.guests.push(Link::accepted(stream, sessions, &self.timeouts, Some(&self.token)));
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
                self.sky.0.lock().unwrap().weather = weather;
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
        self.sky.0.lock().unwrap().weather = [0, 1].map(|at| match good {
            2 => Weather::Fair,
            good if good == at => Weather::Fair,
            _ => lost,
        });
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
    world.sky.0.lock().unwrap().weather = [Weather::Swallows; 2];
    for wire in world.sky.wires() {
        wire.lock().unwrap().broken = [Some(ErrorKind::TimedOut); 2];
    }
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

/// Its other addresses may not answer at all, or say nothing.
#[test]
fn a_peer_that_has_ended_is_noticed_soon() {
    let mut world = World::with(1, Timeouts::default());
    while !world.is_resumable() {
        world.poll();
    }
    let Some(met) = world.near.link.peer_addr() else { panic!("it is not connected") };
    let weather = HOST.map(|at| match at.parse() {
        Ok(at) if met == at => Weather::Refuses,
        _ => Weather::Swallows,
    });
    assert!(weather.iter().any(|weather| matches!(weather, Weather::Refuses)), "{met}");
    world.sky.0.lock().unwrap().weather = weather;
    for wire in world.sky.wires() {
        wire.lock().unwrap().broken = [Some(ErrorKind::ConnectionReset); 2];
    }
    let begin = world.now;
    while world.near.link.receive(world.now).is_ok() {
        world.now += Duration::from_millis(10);
        assert!(world.now - begin < Duration::from_secs(2), "it is still resumed");
    }
}

/// Limits count what the owners' calls can do, and an attempt goes on while it makes progress.
#[test]
fn a_side_whose_owner_calls_seldom_resumes_a_link_after_a_reset() {
    let often = Duration::from_millis(10);
    let seldom = Duration::from_secs(4);
    let patient = Timeouts { reset: Duration::from_secs(60), ..Timeouts::default() };
    for (near_every, far_every, timeouts) in [
        (often, seldom, Timeouts::default()),
        // A link is given up when its peer has not come back for as long as `reset`.
        (seldom, often, patient),
        (seldom, seldom, patient),
    ] {
        let mut world = World::with(1, timeouts);
        world.sky.0.lock().unwrap().room = 100_000;
        while !world.is_resumable() {
            world.poll();
        }
        for wire in world.sky.wires() {
            wire.lock().unwrap().broken = [Some(ErrorKind::ConnectionReset); 2];
        }
        let begin = world.now;
        let (mut near_at, mut far_at) = (begin, begin);
        let far_resumed = |world: &World| world.far.as_ref().is_some_and(|far| far.resumed == 1);
        while world.near.resumed == 0 || !far_resumed(&world) {
            if world.now >= near_at {
                near_at += near_every;
                world.near.receive(world.now);
            }
            if world.now >= far_at {
                far_at += far_every;
                world.attend();
                world.far.iter_mut().for_each(|far| far.receive(world.now));
            }
            world.wait(often);
            assert!(world.now - begin < Duration::from_secs(600), "{near_every:?} {far_every:?}");
        }
    }
}
