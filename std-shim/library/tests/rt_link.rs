//! Links over TCP: what arrives, what is refused, and what ends in time.

mod fixture;

use fixture::link::{SOON, accepted, control_to_stranger, impatient, listen, next_link};
use fixture::{LONG, holds_with};
use polyrail::chain::Chain;
use polyrail::endpoint::EndpointBuilder;
use polyrail::link::{
    Arrivals, HandshakeError, Hello, Link, LinkError, Listener, Message, NoPurpose, Offer, Reason,
    Timeouts, Token,
};
use polyrail::nic::Fabric;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// The hello of a host that is there no more.
fn hello(name: &str) -> Hello {
    let host = fixture::Host::new(&Fabric::threaded(), name, 2, 1 << 20);
    let endpoint = EndpointBuilder::new().build(&host.all()).unwrap();
    let buffer = host.buffer.remote();
    Hello { reach: endpoint.address().into(), buffer, purpose: None, session: None }
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
    let error = heard(b"PLYR\0\0\0\x08\x7f\xff\xff\xff", false, patient);
    let length = 0x7fff_ffff;
    assert!(
        matches!(error, LinkError::Handshake(HandshakeError::TooLong { length: l }) if l == length),
        "{error}"
    );
    let error = heard(b"PLYR\0\0\0\x08\0\0\0\x02no", false, patient);
    assert!(matches!(error, LinkError::Handshake(HandshakeError::NotJson { .. })), "{error}");
    assert!(begin.elapsed() < patient.message, "nothing was waited for");
}

#[test]
fn a_peer_that_goes_away_is_told_from_one_that_stalls() {
    let patient = Timeouts::default();
    assert!(matches!(heard(b"", true, patient), LinkError::HungUp { pending: 0 }));
    let error = heard(b"PLYR\0\0", true, patient);
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
    let stream = link.fd().expect("it has a stream");
    let mut fds = [PollFd::from_borrowed_fd(stream, PollFlags::empty())];
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
    assert!(begin.elapsed() >= SOON && begin.elapsed() < LONG, "{:?}", begin.elapsed());
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
        assert!(begin.elapsed() < LONG);
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
        assert!(begin.elapsed() < LONG);
    };
    assert!(matches!(error, LinkError::Deaf { waited: SOON }), "{error}");
    drop(stranger);
}

#[test]
fn the_last_message_arrives_though_its_sender_is_gone() {
    let (listener, address) = listen();
    let patient = Timeouts::default();
    let mut near = <Link>::connect(&address.to_string(), &patient).unwrap();
    let mut far = accepted::<NoPurpose>(&listener, &patient);
    near.send(&Message::Failed { reason: Reason::new("no disk") }).unwrap();
    drop(near);
    thread::sleep(SOON / 10);
    far.send(&Message::Failed { reason: Reason::new("no answer") }).unwrap();
    let error = far.expect(LONG).unwrap_err();
    assert_eq!(error.to_string(), "the peer gave up: no disk");
    assert!(matches!(far.expect(LONG), Err(LinkError::HungUp { pending: 0 })));
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
        assert!(begin.elapsed() < LONG);
        thread::sleep(Duration::from_millis(1));
    }
    control.offer(&Message::Failed { reason: Reason::new("no answer") }).unwrap();
    let error = control.expect(LONG).unwrap_err();
    assert_eq!(error.to_string(), "the peer gave up: no disk");
    let error = control.expect(LONG).unwrap_err();
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
    let hosts = ["a", "b"].map(hello);
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
        let patient = Timeouts { accept: Some(LONG), ..timeouts };
        // Two that come at the same time are both accepted.
        [(); 2].map(|()| arrivals.accept(&listener, &patient).unwrap().hello)
    });
    assert!(hosts.iter().all(|hello| accepted.contains(hello)));
    let error = arrivals.accept(&listener, &impatient()).unwrap_err();
    assert!(matches!(error, LinkError::NoPeer { .. }), "{error}");
}

#[test]
fn a_listener_reports_why_it_refused_the_last_peer() {
    let mut told = String::new();
    // A short time may be over before the peer is refused.
    let is_told = holds_with(SOON, |time| {
        let (listener, address) = listen();
        let mut rubbish = TcpStream::connect(address).unwrap();
        rubbish.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut arrivals = Arrivals::<NoPurpose>::default();
        let timeouts = Timeouts { accept: Some(time), ..Timeouts::default() };
        told = Chain(&arrivals.accept(&listener, &timeouts).unwrap_err()).to_string();
        let expected = format!(
            "no peer connected within {time:?} and was accepted; the last one was refused: the peer does \
             not run polyrail: its first bytes are \"GET / HTTP/1.1\\r\\n\""
        );
        told == expected
    });
    assert!(is_told, "{told}");
}

#[test]
fn connecting_and_accepting_end_in_time() {
    let (listener, address) = listen();
    let begin = Instant::now();
    let error = Arrivals::<NoPurpose>::default().accept(&listener, &impatient()).unwrap_err();
    assert!(matches!(error, LinkError::NoPeer { waited: SOON, refused: None }), "{error}");
    assert!(begin.elapsed() >= SOON && begin.elapsed() < LONG);
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
    // The system's own timeout is two minutes.
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_peer_of_an_earlier_version_is_refused_with_words() {
    let (listener, address) = listen();
    let mut old = TcpStream::connect(address).unwrap();
    old.write_all(b"PLYR\0\0\0\x07\0\0\0\x0c{\"ready\":{}}").unwrap();
    let mut arrivals = Arrivals::<NoPurpose>::default();
    let mut refused = Vec::new();
    while refused.is_empty() {
        let arrived = arrivals.step(&listener, &impatient(), |_, why| refused.push(why));
        assert!(arrived.unwrap().is_empty());
    }
    let words = "the peer speaks version 7 of the protocol, this side version 8";
    assert_eq!(refused[0].to_string(), words);
    let mut answer = Vec::new();
    // A side that hangs up with unread bytes resets the connection.
    _ = old.read_to_end(&mut answer);
    assert!(String::from_utf8_lossy(&answer).contains(words));
}

/// The offer of a host with two interfaces.
fn offer() -> Offer {
    let eth0 = vec!["10.0.0.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()];
    Offer { verbs: true, tcp: vec![eth0, vec!["10.0.1.2/24".parse().unwrap()]] }
}

/// Steps until a peer has arrived or was refused. Returns the number of hellos, and the reasons.
fn step_until_news(
    arrivals: &mut Arrivals<NoPurpose>,
    listener: &Listener,
) -> (usize, Vec<LinkError>) {
    let begin = Instant::now();
    let mut refused = Vec::new();
    loop {
        let arrived = arrivals.step(listener, &Timeouts::default(), |_, why| refused.push(why));
        let arrived = arrived.unwrap().len();
        if arrived > 0 || !refused.is_empty() {
            return (arrived, refused);
        }
        assert!(begin.elapsed() < LONG);
    }
}

#[test]
fn a_peer_may_ask_for_the_offer_and_then_say_hello_or_leave() {
    let (listener, address) = listen();
    let mut arrivals = Arrivals::<NoPurpose>::default().with_offer(|peer| {
        assert!(peer.ip().is_loopback());
        offer()
    });
    let peer = thread::spawn(move || {
        let mut leaves = <Link>::connect(&address.to_string(), &Timeouts::default()).unwrap();
        assert_eq!(leaves.ask().unwrap(), offer());
        drop(leaves);
        let mut stays = <Link>::connect(&address.to_string(), &Timeouts::default()).unwrap();
        assert_eq!(stays.ask().unwrap(), offer());
        stays.send(&Message::Hello(hello("stays"))).unwrap();
        stays
    });
    let (arrived, refused) = step_until_news(&mut arrivals, &listener);
    assert!(arrived == 1 && refused.is_empty(), "{refused:?}");
    assert!(arrivals.is_empty());
    drop(peer.join().unwrap());
}

#[test]
fn a_peer_that_asks_twice_or_without_an_offer_is_refused() {
    let (listener, address) = listen();
    for (offers, asks) in [(true, 2), (false, 1)] {
        let mut arrivals = Arrivals::<NoPurpose>::default();
        if offers {
            arrivals = arrivals.with_offer(|_| offer());
        }
        let mut peer = <Link>::connect(&address.to_string(), &Timeouts::default()).unwrap();
        for _ in 0..asks {
            peer.offer(&Message::Ask {}).unwrap();
        }
        let (arrived, refused) = step_until_news(&mut arrivals, &listener);
        let words = "the peer sent \"ask\", but \"hello\" was expected";
        assert!(arrived == 0 && refused[0].to_string() == words, "{refused:?}");
        if offers {
            assert_eq!(peer.expect(LONG).unwrap(), Message::Offer(offer()));
        }
        let told = peer.expect(LONG).unwrap_err();
        assert!(matches!(&told, LinkError::GaveUp { reason } if reason.to_string() == words));
    }
}

/// The offer names addresses of the host, which are no business of strangers.
#[test]
fn only_a_peer_with_the_token_is_sent_the_offer() {
    let token = |text: &[u8]| Token::new(text).unwrap();
    let listener = Listener::bind("127.0.0.1:0").unwrap().with_token(token(&[7; 16]));
    let address = listener.local_addr().unwrap().to_string();
    let mut arrivals = Arrivals::<NoPurpose>::default().with_offer(|_| offer());
    let mut stranger = <Link>::connect(&address, &Timeouts::default()).unwrap();
    stranger.offer(&Message::Ask {}).unwrap();
    let (arrived, refused) = step_until_news(&mut arrivals, &listener);
    assert!(arrived == 0 && matches!(refused[0], LinkError::TokenWanted), "{refused:?}");
    assert!(matches!(stranger.expect(LONG), Err(LinkError::TokenRefused { .. })));
    let peer = thread::spawn(move || {
        let token = token(&[7; 16]);
        let timeouts = Timeouts::default();
        let mut link = <Link>::connect_with_token(&address, &timeouts, Some(&token)).unwrap();
        assert_eq!(link.ask().unwrap(), offer());
        link.send(&Message::Hello(hello("has the token"))).unwrap();
        link
    });
    let (arrived, refused) = step_until_news(&mut arrivals, &listener);
    assert!(arrived == 1 && refused.is_empty(), "{refused:?}");
    drop(peer.join().unwrap());
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
    let hello = Hello { session: near.session(), ..hello("near") };
    near.offer(&Message::Hello(hello.clone())).unwrap();
    let mut arrivals = Arrivals::<NoPurpose>::default();
    let begin = Instant::now();
    let arrival = loop {
        assert_eq!(near.try_recv().unwrap(), None);
        let arrived = arrivals.step(&listener, &Timeouts::default(), |_, why| panic!("{why}"));
        if let Some(arrival) = arrived.unwrap().pop() {
            break arrival;
        }
        assert!(begin.elapsed() < LONG);
    };
    assert!(near.is_open() && arrival.hello == hello);
    let error = Link::<NoPurpose>::begin(&[gone], &Timeouts::default(), None)
        .and_then(|mut link| link.expect(LONG))
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
    let error = far.expect(LONG).unwrap_err();
    assert!(matches!(error, LinkError::GaveUp { .. }), "{error}");
    drop(listener);
    let mut near = Link::<NoPurpose>::begin(&[address], &Timeouts::default(), None).unwrap();
    let error = near.send(&failed).unwrap_err();
    assert!(matches!(error, LinkError::Connect { .. }), "{error}");
}
