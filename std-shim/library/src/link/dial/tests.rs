use super::*;
use crate::link::channel::{Channel, Target};
use crate::link::{NoPurpose, Timeouts};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const MS: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(10);

/// What an address does with an attempt.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Connects,
    Silent,
    Refuses,
    /// The system has no route.
    Unreachable,
}

/// A network in which every address without an answer is silent.
#[derive(Debug)]
struct Net {
    answers: HashMap<SocketAddr, Answer>,
    /// The attempts for which the system has no file descriptor.
    lacks: Range<usize>,
    /// The streams for which it has one.
    descriptors: usize,
    tried: Mutex<Vec<SocketAddr>>,
    /// Held by each stream.
    open: Arc<()>,
    most_open: AtomicUsize,
}

#[derive(Debug)]
struct Fake {
    answer: Answer,
    socket: UnixStream,
    has_failed: Cell<bool>,
    #[expect(dead_code, reason = "counts the streams until it is dropped")]
    open: Arc<()>,
}

impl Net {
    fn new(answers: &[(SocketAddr, Answer)]) -> Self {
        Self {
            answers: answers.iter().copied().collect(),
            lacks: 0..0,
            descriptors: usize::MAX,
            tried: Mutex::default(),
            open: Arc::default(),
            most_open: AtomicUsize::new(0),
        }
    }
}

impl Network for Net {
    fn connect(&self, address: &SocketAddr) -> io::Result<Box<dyn Stream>> {
        let mut tried = self.tried.lock().unwrap();
        tried.push(*address);
        // The network itself has one more.
        let open = Arc::strong_count(&self.open) - 1;
        if self.lacks.contains(&(tried.len() - 1)) || open >= self.descriptors {
            return Err(Errno::MFILE.into());
        }
        match self.answers.get(address).copied().unwrap_or(Answer::Silent) {
            Answer::Unreachable => Err(ErrorKind::NetworkUnreachable.into()),
            answer => {
                self.most_open.fetch_max(open + 1, Ordering::Relaxed);
                let open = Arc::clone(&self.open);
                let (socket, has_failed) = (UnixStream::pair()?.0, Cell::new(false));
                Ok(Box::new(Fake { answer, socket, has_failed, open }))
            }
        }
    }
}

impl Stream for Fake {
    fn is_connected(&self) -> io::Result<bool> {
        match self.answer {
            Answer::Connects => Ok(true),
            // The system reports an error once (socket(7), SO_ERROR).
            Answer::Refuses if self.has_failed.replace(true) => Ok(true),
            Answer::Refuses => Err(ErrorKind::ConnectionRefused.into()),
            Answer::Silent | Answer::Unreachable => Ok(false),
        }
    }

    fn watch(&self, _: Duration) {}

    fn reset(&self) {}
}

impl Read for Fake {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.read(bytes)
    }
}

impl Write for Fake {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Fake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

/// What became of an attempt to reach addresses, after how long, and which were tried.
struct Outcome {
    result: Result<SocketAddr, ErrorKind>,
    waited: Duration,
    tried: Vec<SocketAddr>,
    most_open: usize,
}

/// Connects in steps of a millisecond.
fn dial(addresses: &[SocketAddr], answers: &[(SocketAddr, Answer)]) -> Outcome {
    dial_with_lack(&alternate(addresses), answers, (0..0, usize::MAX))
}

/// Connects, while the system has no file descriptor for some of the attempts, and for no more than
/// a number of streams.
fn dial_with_lack(
    addresses: &[SocketAddr],
    answers: &[(SocketAddr, Answer)],
    (lacks, descriptors): (Range<usize>, usize),
) -> Outcome {
    let net = Arc::new(Net { lacks, descriptors, ..Net::new(answers) });
    let begin = Instant::now();
    let mut waited = Duration::ZERO;
    let made = Dial::begin(net.clone(), "far".into(), addresses, (TIMEOUT, begin));
    let result = made.and_then(|(mut dial, stream)| {
        let mut stream = Some(stream);
        loop {
            if let Some(address) = dial.step(&mut stream, begin + waited)? {
                assert!(stream.unwrap().is_connected().unwrap());
                return Ok(address);
            }
            waited += MS;
            assert!(waited < 2 * TIMEOUT);
        }
    });
    let kind = |error| match error {
        LinkError::Connect { source, .. } => source.kind(),
        other => panic!("{other}"),
    };
    let tried = net.tried.lock().unwrap().clone();
    let most_open = net.most_open.load(Ordering::Relaxed);
    Outcome { result: result.map_err(kind), waited, tried, most_open }
}

#[test]
fn a_dead_address_delays_the_next_one_by_a_quarter_of_a_second() {
    let (dead, alive) = (at("[2001:db8::1]:1"), at("10.0.0.1:1"));
    let outcome = dial(&[dead, alive], &[(alive, Answer::Connects)]);
    assert_eq!(outcome.result, Ok(alive));
    assert!((STAGGER..STAGGER + 5 * MS).contains(&outcome.waited), "{:?}", outcome.waited);
}

#[test]
fn addresses_that_are_added_later_have_all_of_the_time() {
    let (dead, alive) = (at("10.0.0.1:1"), at("10.0.0.2:1"));
    let net = Arc::new(Net::new(&[(alive, Answer::Connects)]));
    let begin = Instant::now();
    let (mut dial, stream) = Dial::begin(net, "far".into(), &[dead], (TIMEOUT, begin)).unwrap();
    let mut stream = Some(stream);
    assert_eq!(dial.step(&mut stream, begin + TIMEOUT - MS).unwrap(), None);
    dial.also(&[alive], (TIMEOUT, begin + TIMEOUT - MS));
    assert_eq!(dial.name, "far, 10.0.0.2:1");
    // It begins to connect, and is connected.
    assert_eq!(dial.step(&mut stream, begin + TIMEOUT).unwrap(), None);
    assert_eq!(dial.step(&mut stream, begin + TIMEOUT).unwrap(), Some(alive));
}

#[test]
fn an_address_that_refuses_delays_nothing() {
    let (refuses, unreachable, alive) = (at("10.0.0.1:1"), at("10.0.0.2:1"), at("10.0.0.3:1"));
    let answers =
        [(refuses, Answer::Refuses), (unreachable, Answer::Unreachable), (alive, Answer::Connects)];
    let outcome = dial(&[unreachable, refuses, alive], &answers);
    assert_eq!(outcome.result, Ok(alive));
    assert!(outcome.waited < 5 * MS, "{:?}", outcome.waited);
}

#[test]
fn the_last_of_many_addresses_has_half_of_the_time() {
    let mut addresses: Vec<_> = (0..200).map(|n| at(&format!("10.0.0.{n}:1"))).collect();
    let last = at("[2001:db8::1]:1");
    addresses.push(last);
    let outcome = dial(&addresses, &[(last, Answer::Connects)]);
    assert_eq!(outcome.result, Ok(last));
    assert!(outcome.waited < 100 * MS, "the versions alternate: {:?}", outcome.waited);
    let last = addresses[199];
    let outcome = dial(&addresses, &[(last, Answer::Connects)]);
    assert_eq!(outcome.result, Ok(last));
    assert!(outcome.waited <= TIMEOUT / 2 + 5 * MS, "{:?}", outcome.waited);
}

#[test]
fn all_addresses_have_one_timeout() {
    let addresses = [at("10.0.0.1:1"), at("10.0.0.2:1"), at("10.0.0.3:1")];
    let outcome = dial(&addresses, &[(addresses[1], Answer::Refuses)]);
    assert_eq!(outcome.result, Err(ErrorKind::TimedOut));
    assert_eq!((outcome.waited, outcome.tried), (TIMEOUT, addresses.to_vec()));
    let refused = addresses.map(|address| (address, Answer::Refuses));
    let outcome = dial(&addresses, &refused);
    assert_eq!(outcome.result, Err(ErrorKind::ConnectionRefused));
    assert!(outcome.waited < 5 * MS);
    let unreachable = addresses.map(|address| (address, Answer::Unreachable));
    assert_eq!(dial(&addresses, &unreachable).result, Err(ErrorKind::NetworkUnreachable));
    assert_eq!(dial(&[], &[]).result, Err(ErrorKind::NotFound));
}

#[test]
fn an_attempt_that_fails_late_leaves_the_earlier_ones() {
    let (dead, refuses) = (at("10.0.0.1:1"), at("10.0.0.2:1"));
    let outcome = dial(&[dead, refuses], &[(refuses, Answer::Refuses)]);
    assert_eq!((outcome.result, outcome.waited), (Err(ErrorKind::TimedOut), TIMEOUT));
}

#[test]
fn an_address_is_tried_again_when_the_system_lacked_a_descriptor() {
    let (refuses, dead, alive) = (at("10.0.0.1:1"), at("10.0.0.2:1"), at("10.0.0.3:1"));
    let answers = [(refuses, Answer::Refuses), (alive, Answer::Connects)];
    // No other attempt is under way.
    let lacks = |attempts| (attempts, usize::MAX);
    let outcome = dial_with_lack(&[refuses, alive], &answers, lacks(1..20));
    assert_eq!(outcome.result, Ok(alive));
    assert_eq!(outcome.tried, [&[refuses][..], &[alive; 20]].concat());
    assert!(outcome.waited < 30 * MS, "{:?}", outcome.waited);
    // One is, which does not answer.
    let outcome = dial_with_lack(&[dead, alive], &answers, lacks(1..20));
    assert_eq!(outcome.result, Ok(alive));
    assert_eq!(outcome.tried, [&[dead][..], &[alive; 20]].concat());
    assert!(outcome.waited < STAGGER + 30 * MS, "{:?}", outcome.waited);
    // One is, and the one that began after it fails.
    let addresses = [dead, refuses, alive];
    let outcome = dial_with_lack(&addresses, &answers, lacks(2..20));
    assert_eq!(outcome.result, Ok(alive));
    assert!(outcome.waited < STAGGER + 30 * MS, "{:?}", outcome.waited);
}

#[test]
fn an_attempt_that_failed_leaves_its_descriptor_to_the_next_one() {
    let addresses = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(at);
    let [refuses, too, alive] = addresses;
    let answers = [(refuses, Answer::Refuses), (too, Answer::Refuses), (alive, Answer::Connects)];
    let outcome = dial_with_lack(&addresses, &answers, (0..0, 1));
    assert_eq!((outcome.result, outcome.most_open), (Ok(alive), 1));
    assert_eq!(outcome.tried, addresses);
}

#[test]
fn a_lack_of_descriptors_that_lasts_is_the_error() {
    let lack = io::Error::from(Errno::MFILE).kind();
    let (refuses, dead, alive) = (at("10.0.0.1:1"), at("10.0.0.2:1"), at("10.0.0.3:1"));
    let answers = [(refuses, Answer::Refuses), (alive, Answer::Connects)];
    for first in [refuses, dead] {
        let lacks = (1..usize::MAX, usize::MAX);
        let outcome = dial_with_lack(&[first, alive], &answers, lacks);
        assert_eq!((outcome.result, outcome.waited), (Err(lack), TIMEOUT));
    }
    // Without a first attempt there is nothing to wait for, and the caller may begin again.
    let outcome = dial_with_lack(&[dead, alive], &answers, (0..1, usize::MAX));
    assert_eq!((outcome.result, outcome.waited), (Err(lack), Duration::ZERO));
    assert_eq!(outcome.tried, [dead]);
}

#[test]
fn a_link_that_is_resumed_takes_few_descriptors() {
    let addresses: Vec<_> = (0..20).map(|n| at(&format!("10.0.0.{n}:1"))).collect();
    for (met, most) in [(None, MAX_ATTEMPTS), (Some(addresses[0]), FEW_ATTEMPTS)] {
        let net = Arc::new(Net::new(&[(addresses[19], Answer::Connects)]));
        let target = Target {
            network: net.clone(),
            name: "far".into(),
            addresses: addresses.clone(),
            met,
            timeouts: Timeouts::default(),
            token: None,
        };
        let mut now = Instant::now();
        let mut channel = Channel::<NoPurpose>::dial(target, now).unwrap();
        while channel.answered().is_none() {
            channel.open(now).unwrap();
            now += MS;
        }
        assert_eq!(channel.answered(), Some(addresses[19]));
        assert_eq!(net.most_open.load(Ordering::Relaxed), most);
    }
}

#[test]
fn a_refusal_that_is_found_late_is_the_error() {
    let [refuses, dead] = ["10.0.0.1:1", "10.0.0.2:1"].map(at);
    let late = |addresses: &[SocketAddr]| {
        let net = Arc::new(Net::new(&[(refuses, Answer::Refuses)]));
        let begin = Instant::now();
        let (mut dial, stream) =
            Dial::begin(net, "far".into(), addresses, (TIMEOUT, begin)).unwrap();
        match dial.step(&mut Some(stream), begin + TIMEOUT) {
            Err(LinkError::Connect { source, .. }) => source.kind(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(late(&[refuses]), ErrorKind::ConnectionRefused);
    // The other one was not tried.
    assert_eq!(late(&[refuses, dead]), ErrorKind::TimedOut);
}

#[test]
fn attempts_are_limited_and_no_address_is_lost() {
    let addresses: Vec<_> = (0..100).map(|n| at(&format!("10.0.0.{n}:1"))).collect();
    let outcome = dial(&addresses, &[]);
    assert_eq!((outcome.result, outcome.most_open), (Err(ErrorKind::TimedOut), MAX_ATTEMPTS));
    assert_eq!(outcome.tried[..100], addresses, "each is tried before one is tried again");
    let again = &outcome.tried[100..];
    assert!(!again.is_empty() && addresses.starts_with(&again[..again.len().min(100)]));
    // While the system has no descriptor, one attempt gives way, and not more.
    let outcome = dial_with_lack(&addresses, &[], (16..200, usize::MAX));
    assert_eq!(outcome.tried[16..201], [addresses[16]; 185]);
    assert_eq!(outcome.tried[201..284], addresses[17..]);
    assert_eq!(outcome.tried[284], addresses[0]);
    // If there are few addresses, each has all of the time.
    let outcome = dial(&addresses[..MAX_ATTEMPTS], &[]);
    assert_eq!((outcome.result, outcome.most_open), (Err(ErrorKind::TimedOut), MAX_ATTEMPTS));
    assert_eq!(outcome.tried, addresses[..MAX_ATTEMPTS]);
}

#[test]
fn an_error_names_few_of_many_addresses() {
    let addresses: Vec<_> = (0..128).map(|n| at(&format!("10.0.0.{n}:1"))).collect();
    let first = "10.0.0.0:1, 10.0.0.1:1, 10.0.0.2:1";
    assert_eq!(names(&[]), "no address");
    assert_eq!(names(&addresses[..1]), "10.0.0.0:1");
    assert_eq!(names(&addresses[..3]), first);
    assert_eq!(names(&addresses[..4]), format!("{first} and 1 other"));
    assert_eq!(names(&addresses), format!("{first} and 125 others"));
}

#[test]
fn the_two_versions_of_ip_alternate() {
    let [a, b, c, d] = ["10.0.0.1:1", "10.0.0.2:1", "[::2]:1", "[::3]:1"].map(at);
    assert_eq!(alternate(&[a, b, c, d]), [a, c, b, d]);
    assert_eq!(alternate(&[c, a, b]), [c, a, b]);
    assert_eq!(alternate(&[a, b]), [a, b]);
    assert!(alternate(&[]).is_empty());
}

#[test]
fn addresses_in_brackets_may_have_a_scope() {
    assert_eq!(resolve("10.0.0.1:7471").unwrap(), [at("10.0.0.1:7471")]);
    assert_eq!(resolve("[::1]:7471").unwrap(), [at("[::1]:7471")]);
    let scoped = resolve("[fe80::1%lo]:7471").unwrap();
    assert_eq!(scoped, resolve("[fe80::1%1]:7471").unwrap(), "the first interface is lo");
    for bad in ["::1", "[::1]", "[::1]:x", "10.0.0.1", "", "[]:1"] {
        assert!(resolve(bad).is_err(), "{bad}");
    }
}
