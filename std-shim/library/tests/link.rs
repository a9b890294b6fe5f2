//! Two sides that meet over TCP, and sides that meet somebody else.

mod fixture;

use polyrail::RemoteBuffer;
use polyrail::chain::Chain;
use polyrail::endpoint::{ConnectError, Endpoint, EndpointBuilder};
use polyrail::link::{
    Arrivals, HandshakeError, Hello, Link, LinkError, Listener, Message, NoPurpose, Purpose, Reach,
    Reason, Timeouts, bring_up, bring_up_p2p,
};
use polyrail::nic::{Fabric, ProtectionDomain, RegisteredBuffer};
use polyrail::p2p::{P2pBuilder, P2pConnectError, P2pEndpoint, RecvBuffer};
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{PostRecvError, RailFailure, Scheme};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for a loaded machine, short enough for a test.
const SOON: Duration = Duration::from_millis(200);

fn impatient() -> Timeouts {
    Timeouts { connect: SOON, accept: Some(SOON), message: SOON, ..Timeouts::default() }
}

fn listen() -> (Listener, SocketAddr) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Waits for the next connection, and returns its link and the peer's address.
fn next_link<P: Purpose>(listener: &Listener, timeouts: &Timeouts) -> (Link<P>, SocketAddr) {
    loop {
        match listener.try_accept(timeouts).unwrap() {
            Some(accepted) => return accepted,
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Waits for the next link, until it is open. Its peer may have sent nothing.
fn accepted<P: Purpose>(listener: &Listener, timeouts: &Timeouts) -> Link<P> {
    let (mut link, _) = next_link(listener, timeouts);
    while !link.is_open() {
        assert_eq!(link.try_recv().unwrap(), None);
        thread::sleep(Duration::from_millis(1));
    }
    link
}

/// A control connection to a peer that does not keep the rules.
fn control_to_stranger(timeouts: Timeouts) -> (Link, TcpStream) {
    let (listener, address) = listen();
    let stranger = TcpStream::connect(address).unwrap();
    (accepted(&listener, &timeouts), stranger)
}

/// The error of a side that gets these bytes, after which the stranger hangs up or keeps the
/// connection.
fn heard(bytes: &[u8], hang_up: bool, timeouts: Timeouts) -> LinkError {
    let (mut control, mut stranger) = control_to_stranger(timeouts);
    stranger.write_all(bytes).unwrap();
    let held = (!hang_up).then_some(stranger);
    let error = control.expect_hello().unwrap_err();
    drop(held);
    error
}

#[test]
fn rubbish_is_refused_at_once() {
    let begin = Instant::now();
    let patient = Timeouts::default();
    let error = heard(b"GET / HTTP/1.1\r\n\r\n", false, patient);
    assert_eq!(
        error.to_string(),
        "the peer does not run polyrail: its first bytes are \"GET / HTTP/1.1\\r\\n\""
    );
    let error = heard(b"PLYR\0\0\0\x09\0\0\0\x02{}", false, patient);
    assert!(matches!(error, LinkError::Handshake(HandshakeError::Version { peer: 9 })), "{error}");
    let error = heard(b"PLYR\0\0\0\x06\x7f\xff\xff\xff", false, patient);
    let length = 0x7fff_ffff;
    assert!(
        matches!(error, LinkError::Handshake(HandshakeError::TooLong { length: l }) if l == length),
        "{error}"
    );
    let error = heard(b"PLYR\0\0\0\x06\0\0\0\x02no", false, patient);
    assert!(matches!(error, LinkError::Handshake(HandshakeError::NotJson { .. })), "{error}");
    assert!(begin.elapsed() < patient.message, "nothing was waited for");
}

#[test]
fn a_peer_that_goes_away_is_told_from_one_that_stalls() {
    assert!(matches!(heard(b"", true, impatient()), LinkError::HungUp { pending: 0 }));
    let error = heard(b"PLYR\0\0", true, impatient());
    assert_eq!(error.to_string(), "the peer closed the link after 6 bytes of a message");
    let error = heard(b"", false, impatient());
    let text = "the peer did not answer within 200ms: it should have sent \"hello\"";
    assert_eq!(error.to_string(), text);
    assert!(matches!(
        heard(b"PLYR\0\0\0", false, impatient()),
        LinkError::Stalled { pending: 7, waited: SOON }
    ));
}

/// Returns whether the stream of a link has an error to report, and leaves it there.
fn has_error(link: &Link) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(link, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    fds[0].revents().contains(PollFlags::ERR)
}

/// Sends a byte now and then, as long as the other side is there.
fn trickle(mut stranger: TcpStream) {
    let bytes = Message::<NoPurpose>::Failed { reason: Reason::new("x".repeat(100)) }.encode();
    for byte in bytes.iter().take(bytes.len() - 1).cycle() {
        if stranger.write_all(&[*byte]).is_err() {
            return;
        }
        thread::sleep(SOON / 20);
    }
}

#[test]
fn a_peer_that_trickles_bytes_gains_no_time() {
    let (mut control, stranger) = control_to_stranger(impatient());
    let begin = Instant::now();
    let trickler = thread::spawn(|| trickle(stranger));
    let error = control.expect_hello().unwrap_err();
    assert!(matches!(error, LinkError::Stalled { pending, .. } if pending > 1), "{error}");
    assert!(begin.elapsed() >= SOON && begin.elapsed() < 5 * SOON, "{:?}", begin.elapsed());
    drop(control);
    trickler.join().unwrap();
}

#[test]
fn a_reader_that_polls_now_and_then_is_not_held_up_either() {
    let (mut control, stranger) = control_to_stranger(impatient());
    let begin = Instant::now();
    let trickler = thread::spawn(|| trickle(stranger));
    let error = loop {
        match control.try_recv() {
            Ok(None) => thread::sleep(Duration::from_millis(1)),
            Ok(Some(message)) => panic!("{message:?}"),
            Err(error) => break error,
        }
        assert!(begin.elapsed() < 5 * SOON);
    };
    assert!(matches!(error, LinkError::Stalled { .. }), "{error}");
    drop(control);
    trickler.join().unwrap();
}

#[test]
fn a_peer_that_does_not_listen_does_not_hold_the_sender() {
    let (mut control, stranger) = control_to_stranger(impatient());
    let failed = Message::Failed { reason: Reason::new("x".repeat(1000)) };
    let begin = Instant::now();
    let error = loop {
        // Until the buffers of both ends are full.
        if let Err(error) = control.send(&failed) {
            break error;
        }
        assert!(begin.elapsed() < Duration::from_secs(10));
    };
    assert!(matches!(error, LinkError::Deaf { waited: SOON }), "{error}");
    drop(stranger);
}

#[test]
fn the_last_message_arrives_though_its_sender_is_gone() {
    let (listener, address) = listen();
    let mut near = <Link>::connect(&address.to_string(), &impatient()).unwrap();
    let mut far = accepted::<NoPurpose>(&listener, &impatient());
    near.send(&Message::Failed { reason: Reason::new("no disk") }).unwrap();
    drop(near);
    thread::sleep(SOON / 10);
    far.send(&Message::Failed { reason: Reason::new("no answer") }).unwrap();
    let error = far.expect(SOON).unwrap_err();
    assert_eq!(error.to_string(), "the peer gave up: no disk");
    assert!(matches!(far.expect(SOON), Err(LinkError::HungUp { pending: 0 })));
}

/// What arrived before a reset is received, although a write was the first to find the reset.
#[test]
fn the_last_message_arrives_though_its_sender_reset_the_stream() {
    let (mut control, mut stranger) = control_to_stranger(Timeouts::default());
    control.send(&Message::Failed { reason: Reason::new("unread") }).unwrap();
    // The stranger closes while this message is unread, so its system answers with a reset.
    let mut first = [0];
    stranger.read_exact(&mut first).unwrap();
    let last = Message::<NoPurpose>::Failed { reason: Reason::new("no disk") };
    stranger.write_all(&last.encode()).unwrap();
    drop(stranger);
    // Until the reset has come.
    let begin = Instant::now();
    while !has_error(&control) {
        assert!(begin.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(1));
    }
    control.offer(&Message::Failed { reason: Reason::new("no answer") }).unwrap();
    let error = control.expect(Duration::from_secs(10)).unwrap_err();
    assert_eq!(error.to_string(), "the peer gave up: no disk");
    let error = control.expect(Duration::from_secs(10)).unwrap_err();
    assert!(matches!(error, LinkError::HungUp { pending: 0 }), "{error}");
}

/// Connections that send nothing, or rubbish, do not delay a peer.
#[test]
fn silent_strangers_do_not_delay_a_blocking_accept() {
    let (listener, address) = listen();
    let _silent: Vec<_> = (0..80).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut rubbish = TcpStream::connect(address).unwrap();
    rubbish.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let timeouts = Timeouts { message: Duration::from_secs(600), ..Timeouts::default() };
    let hosts = ["a", "b"].map(|name| {
        let host = Host::new(&Fabric::threaded(), name, &EndpointBuilder::new());
        host.hello()
    });
    let mut arrivals = Arrivals::<NoPurpose>::default();
    let accepted = thread::scope(|scope| {
        for hello in hosts.clone() {
            scope.spawn(move || {
                let mut link = Link::connect(&address.to_string(), &timeouts).unwrap();
                link.send(&Message::Hello(hello)).unwrap();
                // The listener closes the link.
                assert!(link.expect(timeouts.message).is_err());
            });
        }
        let patient = Timeouts { accept: Some(Duration::from_secs(60)), ..timeouts };
        // Two that come at the same time are both accepted.
        [(); 2].map(|()| arrivals.accept(&listener, &patient).unwrap().hello)
    });
    assert!(hosts.iter().all(|hello| accepted.contains(hello)));
    let error = arrivals.accept(&listener, &impatient()).unwrap_err();
    assert!(matches!(error, LinkError::NoPeer { .. }), "{error}");
}

#[test]
fn a_listener_reports_why_it_refused_the_last_peer() {
    let (listener, address) = listen();
    let mut rubbish = TcpStream::connect(address).unwrap();
    rubbish.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut arrivals = Arrivals::<NoPurpose>::default();
    let error = arrivals.accept(&listener, &impatient()).unwrap_err();
    assert_eq!(
        Chain(&error).to_string(),
        "no peer connected within 200ms and was accepted; the last one was refused: the peer does \
         not run polyrail: its first bytes are \"GET / HTTP/1.1\\r\\n\""
    );
}

#[test]
fn connecting_and_accepting_end_in_time() {
    let (listener, address) = listen();
    let begin = Instant::now();
    let error = Arrivals::<NoPurpose>::default().accept(&listener, &impatient()).unwrap_err();
    assert!(matches!(error, LinkError::NoPeer { waited: SOON, refused: None }), "{error}");
    assert!(begin.elapsed() >= SOON && begin.elapsed() < 5 * SOON);
    let error = Listener::bind(&address.to_string()).unwrap_err();
    assert!(
        Chain(&error).to_string().starts_with(&format!("cannot listen at {address}: ")),
        "{error}"
    );
    drop(listener);
    let error = <Link>::connect(&address.to_string(), &impatient()).unwrap_err();
    assert!(
        Chain(&error).to_string().starts_with(&format!("cannot connect to {address}: ")),
        "{error}"
    );
    let error = <Link>::connect("no address", &impatient()).unwrap_err();
    assert!(Chain(&error).to_string().starts_with("cannot connect to no address: "), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_listener_that_accepts_nobody_does_not_hold_those_who_connect() {
    // On Linux, connections beyond the backlog get no answer at all.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = full.local_addr().unwrap();
    let mut waiting = Vec::new();
    let begin = Instant::now();
    let error = loop {
        match <Link>::connect(&address.to_string(), &impatient()) {
            Ok(control) => waiting.push(control),
            Err(error) => break error,
        }
        assert!(waiting.len() < 10_000);
    };
    let LinkError::Connect { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
    assert!(begin.elapsed() < Duration::from_secs(10));
}

/// One side of a pair that is going to meet.
struct Host {
    endpoint: Endpoint,
    buffer: RegisteredBuffer,
    _domains: Vec<ProtectionDomain>,
}

impl Host {
    fn new(fabric: &Fabric, name: &str, builder: &EndpointBuilder) -> Self {
        let host = fixture::Host::new(fabric, name, 2, 1 << 20);
        let endpoint = builder.build(&host.all()).unwrap();
        Self { endpoint, buffer: host.buffer, _domains: host.domains }
    }

    fn hello(&self) -> Hello {
        let endpoint = self.endpoint.address();
        let buffer = self.buffer.remote();
        Hello { reach: endpoint.into(), buffer, purpose: None, session: None }
    }

    /// Says hello, connects to the peer that answers, and returns where its buffer is.
    fn meet(&mut self, control: &mut Link) -> Result<RemoteBuffer, MeetError> {
        control.send(&Message::Hello(self.hello()))?;
        let peer = control.expect_hello()?;
        let result = bring_up(&mut self.endpoint, control, &peer, |endpoint| {
            Ok::<(), MeetError>(endpoint.post_recv(&RecvWr::notification(1))?)
        });
        if let Err(error) = &result {
            control.send(&Message::Failed { reason: Reason::new(error) })?;
        }
        result.map(|()| peer.buffer)
    }
}

#[derive(Debug, thiserror::Error)]
enum MeetError {
    #[error(transparent)]
    Control(#[from] LinkError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Post(#[from] PostRecvError),
}

/// Two sides on one fabric that know each other only by what they send over TCP.
fn meet(
    here: EndpointBuilder,
    there: EndpointBuilder,
) -> [(Host, Result<RemoteBuffer, MeetError>); 2] {
    let fabric = Fabric::threaded();
    let mut here = Host::new(&fabric, "a", &here);
    let mut there = Host::new(&fabric, "b", &there);
    let (listener, address) = listen();
    // Endless timeouts must not confuse the system.
    let timeouts = Timeouts { accept: None, message: Duration::MAX, ..Timeouts::default() };
    let (connected, listened) = thread::scope(|scope| {
        let listening = scope.spawn(|| {
            let mut control = accepted(&listener, &timeouts);
            there.meet(&mut control)
        });
        let mut control = Link::connect(&address.to_string(), &timeouts).unwrap();
        (here.meet(&mut control), listening.join().unwrap())
    });
    [(here, connected), (there, listened)]
}

#[test]
fn two_sides_that_meet_over_tcp_move_data() {
    for (scheme, rails) in [(Scheme::Spray, 4), (Scheme::Dqplb, 4), (Scheme::Spray, 1)] {
        let builder = EndpointBuilder::new().scheme(scheme).rails(rails);
        let [(mut here, peer), (mut there, other)] = meet(builder, builder);
        let peer = peer.unwrap();
        other.unwrap();
        here.buffer.write_at(0, &[7; 1 << 20]).unwrap();
        let keys = here.buffer.toward(&peer).unwrap();
        let local = here.buffer.local(0, 1 << 20).unwrap();
        here.endpoint.post_send(&SendWr::write_with_imm(2, local, peer.addr, 3, &keys)).unwrap();
        let begin = Instant::now();
        let told = loop {
            _ = here.endpoint.poll(16);
            if let Some(told) = there.endpoint.poll(16).completions.pop() {
                break told;
            }
            assert!(begin.elapsed() < Duration::from_secs(10));
        };
        assert_eq!((told.wr_id, told.status), (1, WcStatus::SUCCESS));
        let mut bytes = vec![0; 1 << 20];
        there.buffer.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7), "{scheme:?} {rails}");
    }
}

#[test]
fn two_sides_that_meet_over_tcp_exchange_messages() {
    let fabric = Fabric::threaded();
    let host = |name| fixture::Host::new(&fabric, name, 2, 1 << 20);
    let hosts = [host("a"), host("b")];
    let [mut here, mut there] =
        hosts.each_ref().map(|host| P2pBuilder::new().build(&host.all()).unwrap());
    let (listener, address) = listen();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut control = accepted(&listener, &Timeouts::default());
            meet_for_messages(&mut there, &hosts[1], &mut control).unwrap();
        });
        let mut control = Link::connect(&address.to_string(), &Timeouts::default()).unwrap();
        meet_for_messages(&mut here, &hosts[0], &mut control).unwrap();
    });
    let keys = hosts[1].buffer.own_keys();
    let local = hosts[1].buffer.local(0, 1 << 20).unwrap();
    let receive = there.irecv(&[RecvBuffer { local, tag: 3, keys: &keys }]).unwrap();
    hosts[0].buffer.write_at(0, &[7; 100_000]).unwrap();
    let (keys, local) = (hosts[0].buffer.own_keys(), hosts[0].buffer.local(0, 100_000).unwrap());
    let begin = Instant::now();
    while let Err(refusal) = here.isend(local, 3, &keys) {
        assert!(refusal.is_not_now() && begin.elapsed() < Duration::from_secs(10), "{refusal}");
        here.poll(16).check().unwrap();
        there.poll(16).check().unwrap();
    }
    let received = loop {
        here.poll(16).check().unwrap();
        there.poll(16).check().unwrap();
        if let Some(received) = there.test_recv(receive).unwrap() {
            break received;
        }
        assert!(begin.elapsed() < Duration::from_secs(10));
    };
    assert_eq!(received.sizes(), [100_000]);
}

/// Says hello for an endpoint for messages, and connects it to the peer that answers.
fn meet_for_messages(
    endpoint: &mut P2pEndpoint,
    host: &fixture::Host,
    control: &mut Link,
) -> Result<(), P2pMeetError> {
    let reach = endpoint.address().into();
    let buffer = host.buffer.remote();
    control.send(&Message::Hello(Hello { reach, buffer, purpose: None, session: None }))?;
    let peer = control.expect_hello()?;
    bring_up_p2p(endpoint, control, &peer)
}

#[derive(Debug, thiserror::Error)]
enum P2pMeetError {
    #[error(transparent)]
    Control(#[from] LinkError),
    #[error(transparent)]
    Connect(#[from] P2pConnectError),
}

#[test]
fn endpoints_of_different_kinds_are_told_apart() {
    let fabric = Fabric::threaded();
    let mut requests = Host::new(&fabric, "a", &EndpointBuilder::new());
    let host = fixture::Host::new(&fabric, "b", 2, 1 << 20);
    let mut messages = P2pBuilder::new().build(&host.all()).unwrap();
    let (mut near, mut far) = Link::pair().unwrap();
    let (near_error, far_error) = thread::scope(|scope| {
        let met = scope.spawn(|| meet_for_messages(&mut messages, &host, &mut far).unwrap_err());
        (requests.meet(&mut near).unwrap_err(), met.join().unwrap())
    });
    assert_eq!(
        near_error.to_string(),
        "the peer has an endpoint for messages, and this side one for requests"
    );
    assert_eq!(
        far_error.to_string(),
        "the peer has an endpoint for requests, and this side one for messages"
    );
}

#[test]
fn every_disagreement_is_named_by_both_sides() {
    let new = EndpointBuilder::new;
    let cases = [
        (new().rails(2), ["4 rails here, 2 rails", "2 rails here, 4 rails"]),
        (
            new().scheme(Scheme::Dqplb),
            ["scheme Spray here, Dqplb at", "scheme Dqplb here, Spray at"],
        ),
        (
            new().rail_failure(RailFailure::Reroute),
            ["fatal here, re-routed at the peer", "re-routed here, fatal at the peer"],
        ),
    ];
    for (other, texts) in cases {
        let ends = meet(new(), other);
        for ((_, result), text) in ends.iter().zip(texts) {
            let error = result.as_ref().unwrap_err();
            assert!(matches!(error, MeetError::Connect(_)), "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
        // Nothing was posted.
        assert!(ends.iter().all(|(host, _)| host.endpoint.unreported() == 0));
    }
}

#[test]
fn devices_that_do_not_match_are_named() {
    let fabric = Fabric::threaded();
    let builder = EndpointBuilder::new();
    let mut here = Host::new(&fabric, "a", &builder);
    let there = Host::new(&fabric, "b", &builder);
    let (mut near, mut far) = Link::pair().unwrap();
    let mut hello = there.hello();
    let Reach::Requests(endpoint) = &mut hello.reach else { unreachable!() };
    endpoint.rails[1].device = 0;
    far.send(&Message::Hello(hello)).unwrap();
    let error = here.meet(&mut near).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rail 1 is on device 1 here and on device 0 at the peer, counted from 0"
    );
    // The other side hears of it.
    far.expect_hello().unwrap();
    let told = far.expect(SOON).unwrap_err();
    assert!(told.to_string().contains("gave up: rail 1 is on device 1"), "{told}");
}

#[test]
fn a_peer_that_is_never_ready_is_not_waited_for() {
    let fabric = Fabric::threaded();
    let builder = EndpointBuilder::new();
    let mut here = Host::new(&fabric, "a", &builder);
    let there = Host::new(&fabric, "b", &builder);
    let (mut control, mut stranger) = control_to_stranger(impatient());
    stranger.write_all(&Message::Hello(there.hello()).encode()).unwrap();
    let error = here.meet(&mut control).unwrap_err();
    assert!(
        matches!(
            error,
            MeetError::Control(LinkError::NoAnswer { expected: "\"ready\"", waited: SOON })
        ),
        "{error}"
    );
    drop(control);
    let mut said = Vec::new();
    stranger.read_to_end(&mut said).unwrap();
    let text = String::from_utf8_lossy(&said);
    assert!(text.contains(r#"{"failed":{"reason":"the peer did not answer"#), "{text}");
}

#[test]
fn a_peer_of_an_earlier_version_is_refused_with_words() {
    let (listener, address) = listen();
    let mut old = TcpStream::connect(address).unwrap();
    old.write_all(b"PLYR\0\0\0\x05\0\0\0\x0c{\"ready\":{}}").unwrap();
    let mut arrivals = Arrivals::<NoPurpose>::default();
    let mut refused = Vec::new();
    while refused.is_empty() {
        let arrived = arrivals.step(&listener, &impatient(), |_, why| refused.push(why));
        assert!(arrived.unwrap().is_empty());
    }
    let words = "the peer speaks version 5 of the protocol, this side version 6";
    assert_eq!(refused[0].to_string(), words);
    let mut answer = Vec::new();
    // A side that hangs up with unread bytes resets the connection.
    _ = old.read_to_end(&mut answer);
    assert!(String::from_utf8_lossy(&answer).contains(words));
}

/// On a host whose IPv6 is off, IPv4 is all there is.
#[test]
fn a_listener_on_all_addresses_has_both_versions_of_ip() {
    let listener = Listener::bind("*:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut hosts = vec!["127.0.0.1"];
    hosts.extend(TcpListener::bind("[::1]:0").is_ok().then_some("[::1]"));
    for host in hosts {
        let _near = <Link>::connect(&format!("{host}:{port}"), &Timeouts::default()).unwrap();
        let (_, peer) = next_link::<NoPurpose>(&listener, &Timeouts::default());
        assert!(peer.ip().is_loopback(), "IPv4 in its own form: {peer}");
        assert_eq!(peer.is_ipv6(), host != "127.0.0.1");
    }
    for bad in ["*", "*:x", "*:65536"] {
        let error = Listener::bind(bad).unwrap_err();
        assert!(matches!(error, LinkError::Listen { .. }), "{error}");
    }
}

/// Nothing waits, and messages that are offered too early are held back.
#[test]
fn a_link_begins_at_the_first_address_that_answers() {
    let (listener, address) = listen();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut near = Link::begin(&[gone, address], &Timeouts::default(), None).unwrap();
    let host = Host::new(&Fabric::threaded(), "near", &EndpointBuilder::new());
    let hello = Hello { session: near.session(), ..host.hello() };
    near.offer(&Message::Hello(hello.clone())).unwrap();
    let mut arrivals = Arrivals::<NoPurpose>::default();
    let begin = Instant::now();
    let arrival = loop {
        assert_eq!(near.try_recv().unwrap(), None);
        let arrived = arrivals.step(&listener, &Timeouts::default(), |_, why| panic!("{why}"));
        if let Some(arrival) = arrived.unwrap().pop() {
            break arrival;
        }
        assert!(begin.elapsed() < Duration::from_secs(5));
    };
    assert!(near.is_open() && arrival.hello == hello);
    let error = Link::<NoPurpose>::begin(&[gone], &Timeouts::default(), None)
        .and_then(|mut link| link.expect(Duration::from_secs(5)))
        .unwrap_err();
    assert!(matches!(error, LinkError::Connect { .. }), "{error}");
}

/// A stream that is still connecting, or that could not connect, looks writable to the system.
#[test]
fn a_message_is_sent_once_the_link_is_open() {
    let (listener, address) = listen();
    let failed = Message::Failed { reason: Reason::new("enough") };
    let mut near = Link::<NoPurpose>::begin(&[address], &Timeouts::default(), None).unwrap();
    near.send(&failed).unwrap();
    let mut far = accepted::<NoPurpose>(&listener, &Timeouts::default());
    let error = far.expect(Duration::from_secs(5)).unwrap_err();
    assert!(matches!(error, LinkError::GaveUp { .. }), "{error}");
    drop(listener);
    let mut near = Link::<NoPurpose>::begin(&[address], &Timeouts::default(), None).unwrap();
    let error = near.send(&failed).unwrap_err();
    assert!(matches!(error, LinkError::Connect { .. }), "{error}");
}
