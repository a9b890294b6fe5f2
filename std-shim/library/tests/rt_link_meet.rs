//! Two sides that meet over TCP: they bring up their endpoints, or learn why they cannot.

mod fixture;

use fixture::link::{SOON, accepted, control_to_stranger, listen};
use fixture::{LONG, holds_with};
use polyrail::endpoint::{ConnectError, Endpoint, EndpointBuilder};
use polyrail::link::{
    Hello, Link, LinkError, Message, Reach, Reason, Timeouts, bring_up, bring_up_p2p,
};
use polyrail::memory::{RegisteredBuffer, RemoteBuffer};
use polyrail::nic::{Fabric, ProtectionDomain};
use polyrail::p2p::{P2pBuilder, P2pConnectError, P2pEndpoint, RecvBuffer};
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{PostRecvError, RailFailure, Scheme};
use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

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
            assert!(begin.elapsed() < LONG);
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
        assert!(refusal.is_not_now() && begin.elapsed() < LONG, "{refusal}");
        here.poll(16).check().unwrap();
        there.poll(16).check().unwrap();
    }
    let received = loop {
        here.poll(16).check().unwrap();
        there.poll(16).check().unwrap();
        if let Some(received) = there.test_recv(receive).unwrap() {
            break received;
        }
        assert!(begin.elapsed() < LONG);
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
    let told = far.expect(LONG).unwrap_err();
    assert!(told.to_string().contains("gave up: rail 1 is on device 1"), "{told}");
}

#[test]
fn a_peer_that_is_never_ready_is_not_waited_for() {
    let mut errors = Vec::new();
    // A short time may be over before the hello is read.
    let is_told = holds_with(SOON, |time| {
        let fabric = Fabric::threaded();
        let builder = EndpointBuilder::new();
        let mut here = Host::new(&fabric, "a", &builder);
        let there = Host::new(&fabric, "b", &builder);
        let timeouts = Timeouts { message: time, ..Timeouts::default() };
        let (mut control, mut stranger) = control_to_stranger(timeouts);
        stranger.write_all(&Message::Hello(there.hello()).encode()).unwrap();
        let error = here.meet(&mut control).unwrap_err();
        drop(control);
        let mut said = Vec::new();
        stranger.read_to_end(&mut said).unwrap();
        let text = String::from_utf8_lossy(&said);
        assert!(text.contains(r#"{"failed":{"reason":"the peer did not answer"#), "{text}");
        let is_late = matches!(
            error,
            MeetError::Control(LinkError::NoAnswer { expected: "\"ready\"", waited }) if waited == time
        );
        errors.push(error);
        is_late
    });
    assert!(is_told, "{errors:?}");
}
