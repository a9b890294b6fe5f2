//! Peers that send more than is read at once, or longer messages than an event holds.

use super::*;
use crate::events::tests::take;
use crate::link::handle::{Chosen, Unused};
use crate::link::meeting::{Meeting, OurHello};
use crate::link::peer::NotConnected;
use crate::types::POLYRAIL_MESSAGE_BYTES;
use polyrail::endpoint::{Endpoint, EndpointBuilder};
use polyrail::link::{Arrivals, HexBytes, Listener, Reach, Timeouts};
use polyrail::nic::{DeviceConfig, Fabric};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

/// Counts the messages of the other side.
#[derive(Default)]
struct Counts {
    heard: usize,
    /// Calls that connect, of which none succeeds.
    tried: usize,
    reach: Option<Reach>,
}

impl Meets for Counts {
    fn reach(&mut self) -> Result<Reach, Failure> {
        Ok(self.reach.clone().unwrap())
    }

    fn devices(&self) -> &[u8] {
        &[]
    }

    fn connect(&mut self, _: &Reach, _: &[u8]) -> Result<bool, NotConnected> {
        self.tried += 1;
        let failure = Failure::new(Code::Device, "no path to the peer");
        Err(NotConnected { failure, may_pass: true })
    }

    fn next_control(&mut self) -> Option<Message> {
        None
    }

    fn hear(&mut self, _: &Message) -> Result<(), Refusal> {
        self.heard += 1;
        Ok(())
    }

    fn control_lost(&mut self) {}
}

fn reach() -> Reach {
    let device = Fabric::threaded().create_device(DeviceConfig::named("a"));
    let domain = device.alloc_pd().unwrap();
    let endpoint: Endpoint = EndpointBuilder::new().build(&[&domain]).unwrap();
    endpoint.address().into()
}

pub(in crate::link) fn hello() -> OurHello {
    let purpose = Meeting { hello: HexBytes(Vec::new()), devices: Vec::new() };
    OurHello::without_memory(reach(), Some(purpose), None)
}

/// Two sides that have met: the link of this side, and the other side.
fn met() -> (PeerLink, OurLink) {
    let (mut met, mut other) = OurLink::pair().unwrap();
    let hello = hello();
    for message in [Message::Hello(hello), Message::Ready {}] {
        other.send(&message).unwrap();
    }
    assert!(matches!(met.try_recv(), Ok(Some(Message::Hello(_)))));
    assert!(matches!(met.try_recv(), Ok(Some(Message::Ready {}))));
    let since = Instant::now();
    (PeerLink { stage: Stage::Met(met), hello: Vec::new(), since, unhandled: None }, other)
}

#[test]
fn a_peer_that_floods_its_link_is_read_a_limited_number_of_messages_at_once() {
    const SENT: usize = 3 * AT_ONCE;
    let (link, mut flooding) = met();
    for message in std::iter::repeat_n(Message::Alive {}, SENT) {
        flooding.send(&message).unwrap();
    }
    let (mut link, mut peer, mut events) = (Some(link), Counts::default(), EventQueue::default());
    for calls in 1..=SENT / AT_ONCE {
        drive(&mut link, (1, &mut peer), &mut events);
        assert!(link.is_some());
        assert_eq!(peer.heard, calls * AT_ONCE);
    }
}

/// The first address answers, and sends nothing; the second is the peer's.
#[test]
fn a_silent_listener_is_left_for_the_next_address() {
    let minute = Duration::from_secs(60);
    // Half of the time to connect comes first, or most of the time of a message.
    left_for_the_next(Timeouts { message: minute, ..Timeouts::default() });
    left_for_the_next(Timeouts {
        connect: 4 * minute,
        message: minute / 10,
        ..Timeouts::default()
    });
}

fn left_for_the_next(timeouts: Timeouts) {
    const LONG: Duration = Duration::from_secs(600);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let list = format!("{},{}", silent.local_addr().unwrap(), listener.local_addr().unwrap());
    let connecting = Connecting::begin(&list, Chosen { timeouts, token: None });
    let mut peer = Counts { reach: Some(reach()), ..Counts::default() };
    let mut link = PeerLink::begin(Unused::Connecting(connecting), b"", &mut peer).ok();
    let (mut events, mut arrivals) = (EventQueue::default(), Arrivals::<Meeting>::default());
    let (begin, mut answered) = (Instant::now(), Vec::new());
    while peer.tried == 0 {
        drive(&mut link, (1, &mut peer), &mut events);
        let words =
            take(&mut events).map(|(_, words)| String::from_utf8_lossy(&words).into_owned());
        assert!(link.is_some() && begin.elapsed() < LONG, "{:?}", words.ok());
        for mut arrival in arrivals.step(&listener, &timeouts, |_, _| ()).unwrap() {
            arrival.link.offer(&Message::Hello(hello())).unwrap();
            answered.push(arrival);
        }
    }
}

/// The first address is the peer's, whose program accepts connections only after its address was
/// left for the second.
#[test]
fn a_busy_peer_is_tried_again_after_an_address_that_does_not_answer() {
    let full = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = full.local_addr().unwrap();
    // SAFETY: a socket that listens.
    assert_eq!(unsafe { libc::listen(full.as_raw_fd(), 0) }, 0);
    // On Linux, connections beyond the backlog get no answer at all.
    let limit = Duration::from_millis(200);
    let waiting = std::iter::from_fn(|| TcpStream::connect_timeout(&address, limit).ok());
    let _waiting: Vec<_> = waiting.collect();
    reached_once_it_accepts(address);
}

#[test]
fn a_busy_peer_is_tried_again_after_a_silent_listener() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    reached_once_it_accepts(silent.local_addr().unwrap());
}

fn reached_once_it_accepts(second: SocketAddr) {
    const LONG: Duration = Duration::from_secs(600);
    let timeouts = Timeouts::default();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let first = listener.local_addr().unwrap();
    let connecting =
        Connecting::begin(&format!("{first},{second}"), Chosen { timeouts, token: None });
    let mut peer = Counts { reach: Some(reach()), ..Counts::default() };
    let mut link = PeerLink::begin(Unused::Connecting(connecting), b"", &mut peer).ok();
    let (mut events, mut arrivals) = (EventQueue::default(), Arrivals::<Meeting>::default());
    let (begin, mut answered) = (Instant::now(), Vec::new());
    let (mut was_reached, mut was_left) = (false, false);
    while peer.tried == 0 {
        drive(&mut link, (1, &mut peer), &mut events);
        let words =
            take(&mut events).map(|(_, words)| String::from_utf8_lossy(&words).into_owned());
        let link = link.as_ref().unwrap_or_else(|| panic!("{:?}", words.ok()));
        assert!(begin.elapsed() < LONG);
        if let Stage::Greeted(control, _) = &link.stage {
            let is_reached = control.peer_addr() == Some(first);
            was_reached |= is_reached;
            was_left |= was_reached && !is_reached;
        }
        if was_left {
            for mut arrival in arrivals.step(&listener, &timeouts, |_, _| ()).unwrap() {
                arrival.link.offer(&Message::Hello(hello())).unwrap();
                answered.push(arrival);
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert!(was_left);
}

/// The link is driven without a pause.
#[test]
fn an_attempt_to_connect_is_followed_by_a_pause() {
    const ATTEMPTS: u32 = 4;
    let (link, _other) = OurLink::pair().unwrap();
    let begin = Instant::now();
    let mut peer = Counts { reach: Some(reach()), ..Counts::default() };
    let address = SocketAddr::from(([127, 0, 0, 1], 7471));
    let accepted = Unused::Accepted(Box::new((link, hello(), address)));
    let mut link = PeerLink::begin(accepted, b"", &mut peer).ok();
    let mut events = EventQueue::default();
    while peer.tried < ATTEMPTS as usize {
        drive(&mut link, (1, &mut peer), &mut events);
        assert!(link.is_some() && events.is_empty(), "after {:?}", begin.elapsed());
    }
    assert!(begin.elapsed() >= (ATTEMPTS - 1) * Duration::from_millis(100));
}

#[test]
fn a_message_of_a_program_that_is_longer_than_an_event_ends_the_link() {
    for (length, is_refused) in
        [(POLYRAIL_MESSAGE_BYTES, false), (POLYRAIL_MESSAGE_BYTES + 1, true)]
    {
        let (link, mut other) = met();
        other.send(&Message::Note { bytes: HexBytes(vec![PROGRAM; 1 + length]) }).unwrap();
        let (mut link, mut peer) = (Some(link), Counts::default());
        let mut events = EventQueue::default();
        drive(&mut link, (1, &mut peer), &mut events);
        assert_eq!(link.is_none(), is_refused);
        let (event, bytes) = take(&mut events).unwrap();
        if is_refused {
            let words = String::from_utf8(bytes).unwrap();
            assert_eq!((event.kind, event.code), (EventKind::LinkLost as u32, Code::Link as i32));
            assert_eq!(words, "the peer sent a message of 4097 bytes, but the limit is 4096");
        } else {
            assert_eq!((event.kind, bytes), (EventKind::Message as u32, vec![PROGRAM; length]));
        }
    }
}
