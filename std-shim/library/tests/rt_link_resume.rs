//! Links that break: they are resumed where both sides agree to that, and have ended otherwise.

mod fixture;

use fixture::LONG;
use fixture::link::accepted;
use polyrail::endpoint::{Endpoint, EndpointBuilder, HealingLink};
use polyrail::link::{
    Arrivals, Hello, Link, LinkError, Listener, Message, NoOutcome, NoPurpose, Session, Timeouts,
    Token,
};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{Fabric, ProtectionDomain};
use polyrail::virtual_qp::{QpState, RailFailure, RailId};
use polyrail_faults::Relay;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Timeouts of links that wait without end: those that end have noticed why at once.
fn endless() -> Timeouts {
    let hour = Duration::from_secs(3600);
    Timeouts { message: hour, resume: hour, reset: hour, silence: hour, ..Timeouts::default() }
}

/// Two sides that have connected through a relay, and what they listen with.
struct Sides {
    near: Link,
    far: Link,
    listener: Listener,
    arrivals: Arrivals<NoPurpose>,
    relay: Relay,
    timeouts: Timeouts,
}

impl Sides {
    fn new(timeouts: Timeouts) -> Self {
        Self::through(Listener::bind("127.0.0.1:0").unwrap(), None, timeouts)
    }

    fn through(listener: Listener, token: Option<&Token>, timeouts: Timeouts) -> Self {
        let relay = Relay::to(listener.local_addr().unwrap()).unwrap();
        let address = relay.address().to_string();
        let (near, far) = thread::scope(|scope| {
            let near = scope.spawn(|| Link::connect_with_token(&address, &timeouts, token));
            let far = accepted(&listener, &timeouts);
            (near.join().unwrap().unwrap(), far)
        });
        Self { near, far, listener, arrivals: Arrivals::default(), relay, timeouts }
    }

    /// The side that connects knows another address, too, and the relay is the first that answers.
    fn with_other(other: SocketAddr, listener: Listener) -> Self {
        let timeouts = endless();
        let relay = Relay::to(listener.local_addr().unwrap()).unwrap();
        let mut near: Link = Link::begin(&[relay.address(), other], &timeouts, None).unwrap();
        let far = accepted(&listener, &timeouts);
        while !near.is_open() {
            assert_eq!(near.try_recv().unwrap(), None);
        }
        assert_eq!(near.peer_addr(), Some(relay.address()));
        Self { near, far, listener, arrivals: Arrivals::default(), relay, timeouts }.meet(true)
    }

    /// They have said hello, and agreed or not.
    fn met(timeouts: Timeouts, agree: bool) -> Self {
        Self::new(timeouts).meet(agree)
    }

    fn meet(self, agree: bool) -> Self {
        let mut sides = self;
        let hello = Ends::new().hello();
        let session = sides.near.session().filter(|_| agree);
        sides.near.send(&Message::Hello(Hello { session, ..hello.clone() })).unwrap();
        sides.far.expect_hello().unwrap();
        assert_eq!(sides.far.session(), session);
        sides.far.send(&Message::Hello(Hello { session, ..hello })).unwrap();
        sides.near.expect_hello().unwrap();
        sides
    }

    /// They are ready, too.
    fn ready(timeouts: Timeouts) -> Self {
        let mut sides = Self::met(timeouts, true);
        for side in [&mut sides.near, &mut sides.far] {
            side.send(&Message::Ready {}).unwrap();
        }
        sides.near.expect_ready().unwrap();
        sides.far.expect_ready().unwrap();
        sides
    }

    /// Accepts as a server does.
    fn attend(&mut self) {
        let refused = |_, why| assert!(matches!(why, LinkError::NoSession), "{why}");
        let arrived = self.arrivals.step(&self.listener, &self.timeouts, refused).unwrap();
        assert!(arrived.is_empty(), "{arrived:?}");
    }

    /// What comes at either side until both have had a new link.
    fn resumed(&mut self) -> [Vec<Message>; 2] {
        let mut heard = [vec![], vec![]];
        let begin = Instant::now();
        while heard.iter().any(|heard| !heard.contains(&Message::Resumed {})) {
            self.attend();
            for (side, heard) in [&mut self.near, &mut self.far].into_iter().zip(&mut heard) {
                heard.extend(side.try_recv().unwrap());
            }
            assert!(begin.elapsed() < LONG, "{heard:?}");
        }
        assert!(!self.near.is_broken() && !self.far.is_broken());
        heard
    }
}

/// The error with which a side's link ends.
fn end_of(side: &mut Link, mut meanwhile: impl FnMut()) -> LinkError {
    let begin = Instant::now();
    loop {
        match side.try_recv() {
            Ok(None) => thread::sleep(Duration::from_millis(1)),
            Ok(Some(message)) => panic!("{message:?}"),
            Err(error) => return error,
        }
        meanwhile();
        assert!(begin.elapsed() < LONG);
    }
}

/// Two endpoints that are going to meet.
struct Ends {
    ends: [Endpoint; 2],
    buffer: RegisteredBuffer,
    _domains: Vec<ProtectionDomain>,
}

impl Ends {
    fn new() -> Self {
        let fabric = Fabric::threaded();
        let hosts = ["a", "b"].map(|name| fixture::Host::new(&fabric, name, 2, 4096));
        let builder = EndpointBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
        let ends = [0, 1].map(|end: usize| builder.build(&hosts[end].all()).unwrap());
        let [here, there] = hosts;
        let domains = here.domains.into_iter().chain(there.domains).collect();
        Self { ends, buffer: here.buffer, _domains: domains }
    }

    fn hello(&self) -> Hello {
        let endpoint = self.ends[0].address();
        Hello { reach: endpoint.into(), buffer: self.buffer.remote(), purpose: None, session: None }
    }
}

const DONE: Message = Message::Done(NoOutcome {});

#[test]
fn a_link_that_is_reset_is_made_anew() {
    let mut sides = Sides::ready(Timeouts::default());
    for time in 1..=3 {
        sides.relay.cut();
        assert_eq!(sides.resumed(), [[Message::Resumed {}], [Message::Resumed {}]]);
        assert_eq!(sides.relay.relayed(), 1 + time);
        sides.near.send(&Message::Alive {}).unwrap();
        assert_eq!(sides.far.expect(LONG).unwrap(), Message::Alive {});
        sides.far.send(&Message::Alive {}).unwrap();
        assert_eq!(sides.near.expect(LONG).unwrap(), Message::Alive {});
    }
}

/// As when the link of one of a host's addresses fails for good.
#[test]
fn a_link_whose_address_is_gone_is_resumed_at_another_one() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut sides = Sides::with_other(address, listener);
    sides.relay.cut();
    sides.relay = Relay::to(address).unwrap();
    assert_eq!(sides.resumed(), [[Message::Resumed {}], [Message::Resumed {}]]);
    assert_eq!(sides.relay.relayed(), 0);
    sides.near.send(&Message::Ready {}).unwrap();
    sides.far.expect_ready().unwrap();
}

/// A name may have the addresses of several hosts, and only the one that was met has the link.
#[test]
fn the_end_of_a_peer_is_noticed_and_what_others_answer_does_not_count() {
    let other = Listener::bind("127.0.0.1:0").unwrap();
    let sides =
        Sides::with_other(other.local_addr().unwrap(), Listener::bind("127.0.0.1:0").unwrap());
    let Sides { mut near, far, listener, mut arrivals, relay, timeouts } = sides;
    relay.cut();
    drop((far, listener, relay));
    let mut refused = 0;
    let error = end_of(&mut near, || {
        let no_session = |_, why| {
            assert!(matches!(why, LinkError::NoSession), "{why}");
            refused += 1;
        };
        assert!(arrivals.step(&other, &timeouts, no_session).unwrap().is_empty());
    });
    assert!(matches!(error, LinkError::HungUp { .. }), "{error}");
    assert_eq!(refused, 1);
}

#[test]
fn what_must_be_heard_is_said_again_and_heard_once() {
    let mut sides = Sides::ready(Timeouts::default());
    // Heard, before the link breaks.
    sides.near.send(&DONE).unwrap();
    assert_eq!(sides.far.expect(LONG).unwrap(), DONE);
    sides.relay.close(true);
    sides.relay.cut();
    while !sides.near.is_broken() {
        assert_eq!(sides.near.try_recv().unwrap(), None);
    }
    // Lost, and nobody is told of that: rails may fail again.
    sides.near.send(&Message::Alive {}).unwrap();
    sides.relay.close(false);
    assert_eq!(sides.resumed(), [[Message::Resumed {}], [Message::Resumed {}]]);
    // Said while there is no link.
    sides.relay.close(true);
    sides.relay.cut();
    sides.far.send(&DONE).unwrap();
    sides.relay.close(false);
    let [at_near, at_far] = sides.resumed();
    assert_eq!(at_far, [Message::Resumed {}]);
    let rest = (!at_near.contains(&DONE)).then(|| sides.near.expect(LONG).unwrap());
    let at_near: Vec<_> = at_near.into_iter().chain(rest).collect();
    assert_eq!(at_near, [Message::Resumed {}, DONE]);
    assert_eq!(sides.near.try_recv().unwrap(), None);
}

#[test]
fn a_link_that_breaks_before_both_are_ready_loses_no_ready() {
    let mut sides = Sides::met(Timeouts::default(), true);
    sides.near.send(&Message::Ready {}).unwrap();
    sides.relay.cut();
    sides.far.send(&Message::Ready {}).unwrap();
    let Sides { near, far, listener, timeouts, .. } = &mut sides;
    thread::scope(|scope| {
        let near = scope.spawn(|| near.expect_ready());
        let far = scope.spawn(|| far.expect_ready());
        while !(near.is_finished() && far.is_finished()) {
            let Some((mut control, _)) = listener.try_accept(timeouts).unwrap() else { continue };
            let message = <Link>::expect(&mut control, LONG).unwrap();
            let Message::Resume { session } = message else { panic!("{message:?}") };
            control.join(session).unwrap();
        }
        near.join().unwrap().unwrap();
        far.join().unwrap().unwrap();
    });
}

#[test]
fn a_peer_whose_link_breaks_again_and_again_is_not_waited_for_without_end() {
    let message = Duration::from_secs(1);
    let mut sides =
        Sides::met(Timeouts { message, resume: 2 * message, ..Timeouts::default() }, true);
    let Sides { near, far, listener, arrivals, relay, timeouts } = &mut sides;
    let begin = Instant::now();
    let (error, cuts) = thread::scope(|scope| {
        let far = scope.spawn(|| far.expect_ready().unwrap_err());
        let mut cuts = 0;
        while !far.is_finished() {
            relay.cut();
            let cut = Instant::now();
            while cut.elapsed() < message / 10 {
                assert!(arrivals.step(listener, timeouts, |_, _| {}).unwrap().is_empty());
                cuts += u32::from(matches!(near.try_recv(), Ok(Some(Message::Resumed {}))));
                thread::sleep(Duration::from_millis(1));
            }
            assert!(begin.elapsed() < LONG, "still waited for after {cuts} cuts");
        }
        (far.join().unwrap(), cuts)
    });
    assert!(matches!(error, LinkError::NoAnswer { .. }) && cuts > 1, "{cuts} cuts: {error}");
    assert!(begin.elapsed() >= message, "{:?}", begin.elapsed());
}

#[test]
fn without_an_agreement_a_reset_is_the_end() {
    let mut sides = Sides::met(endless(), false);
    sides.relay.cut();
    for side in [&mut sides.near, &mut sides.far] {
        let error = end_of(side, || {});
        assert!(matches!(error, LinkError::HungUp { pending: 0 }), "{error}");
    }
    // One side alone cannot agree, nor can the two ends of a pair.
    let sides = Sides::new(Timeouts::default());
    assert!(sides.near.session().is_some() && sides.far.session().is_none());
    let (near, far) = <Link>::pair().unwrap();
    assert!(near.session().is_none() && far.session().is_none());
}

#[test]
fn a_side_that_closes_is_gone_at_once() {
    let Sides { near, mut far, relay, .. } = Sides::ready(endless());
    drop(near);
    let error = end_of(&mut far, || {});
    assert!(matches!(error, LinkError::HungUp { .. }), "{error}");
    assert_eq!(relay.relayed(), 1);
}

#[test]
fn a_connection_that_the_other_side_ended_is_not_resumed() {
    let Sides { mut near, far, listener, mut arrivals, relay, timeouts } = Sides::ready(endless());
    relay.cut();
    drop(far);
    let mut told = 0;
    let error = end_of(&mut near, || {
        let refused = |_, why| {
            assert!(matches!(why, LinkError::NoSession), "{why}");
            told += 1;
        };
        assert!(arrivals.step(&listener, &timeouts, refused).unwrap().is_empty());
    });
    assert!(matches!(error, LinkError::HungUp { .. }), "{error}");
    assert_eq!(told, 1);
    // For good.
    assert!(near.try_recv().is_err() && near.is_broken());
}

#[test]
fn a_server_that_is_gone_is_noticed_at_once() {
    let Sides { mut near, far, listener, relay, .. } = Sides::ready(endless());
    relay.cut();
    drop((far, listener, relay));
    let error = end_of(&mut near, || {});
    assert!(matches!(error, LinkError::HungUp { .. }), "{error}");
}

#[test]
fn a_link_that_does_not_return_is_given_up() {
    let patience = Duration::from_millis(300);
    let mut sides = Sides::ready(Timeouts { resume: patience, ..endless() });
    sides.relay.close(true);
    sides.relay.cut();
    for side in [&mut sides.near, &mut sides.far] {
        let error = end_of(side, || {});
        assert!(matches!(error, LinkError::HungUp { .. }), "{error}");
    }
}

#[test]
fn a_stranger_resumes_nothing_and_takes_no_name() {
    let mut sides = Sides::ready(Timeouts::default());
    let (address, timeouts) = (sides.relay.address().to_string(), sides.timeouts);
    let connect = || Link::connect(&address, &timeouts);
    let mut stranger: Link = connect().unwrap();
    stranger.send(&Message::Resume { session: Session::random().unwrap() }).unwrap();
    let begin = Instant::now();
    let answer = loop {
        sides.attend();
        match stranger.try_recv().unwrap() {
            Some(answer) => break answer,
            None => assert!(begin.elapsed() < LONG),
        }
    };
    assert!(matches!(answer, Message::Failed { .. }), "{answer:?}");
    // A second connection that gives the name of the first one is served, and ends with its link.
    let mut twin: Link = connect().unwrap();
    let mut far_twin = accepted(&sides.listener, &sides.timeouts);
    let session = sides.far.session();
    let hello = Message::Hello(Hello { session, ..Ends::new().hello() });
    twin.send(&hello).unwrap();
    far_twin.expect_hello().unwrap();
    far_twin.send(&hello).unwrap();
    sides.relay.cut();
    assert_eq!(sides.resumed(), [[Message::Resumed {}], [Message::Resumed {}]]);
    let error = end_of(&mut far_twin, || {});
    assert!(matches!(error, LinkError::HungUp { .. }), "{error}");
}

#[test]
fn a_link_is_made_anew_only_with_the_token() {
    let token = Token::new([1; 32]).unwrap();
    let listener = Listener::bind("127.0.0.1:0").unwrap().with_token(token.clone());
    let mut sides = Sides::through(listener, Some(&token), Timeouts::default()).meet(true);
    let session = sides.far.session().unwrap();
    // One who knows the connection's name, but not the token.
    let mut stranger: Link =
        Link::connect(&sides.relay.address().to_string(), &sides.timeouts).unwrap();
    stranger.send(&Message::Resume { session }).unwrap();
    let Sides { arrivals, listener, timeouts, .. } = &mut sides;
    let mut refused = Vec::new();
    while refused.is_empty() {
        let arrived = arrivals.step(listener, timeouts, |_, why| refused.push(why)).unwrap();
        assert!(arrived.is_empty());
    }
    assert!(matches!(refused[0], LinkError::TokenWanted), "{refused:?}");
    sides.relay.cut();
    assert_eq!(sides.resumed(), [[Message::Resumed {}], [Message::Resumed {}]]);
}

/// Carries what one endpoint has to tell the other, as owners do.
fn carry(control: &mut Link, link: &HealingLink) {
    while let Some(message) = link.next_message() {
        control.send(&Message::Heal(message)).unwrap();
    }
    match control.try_recv().unwrap() {
        Some(Message::Heal(message)) => link.handle(message).unwrap(),
        Some(Message::Resumed {}) => link.restored(),
        Some(Message::Alive {}) | None => {}
        Some(other) => panic!("{other:?}"),
    }
}

/// Whatever of what the ends tell each other is lost with a link, the rail comes back.
#[test]
fn rails_heal_though_the_link_breaks_while_they_do() {
    for cut_at in 0..12 {
        let mut sides = Sides::ready(Timeouts::default());
        let mut ends = Ends::new();
        let [near, far] = &mut ends.ends;
        let (near_address, far_address) = (near.address(), far.address());
        near.connect(&far_address).unwrap();
        far.connect(&near_address).unwrap();
        let links = [near.healing_link().unwrap(), far.healing_link().unwrap()];
        near.fail_rail(RailId::Data(1));
        let begin = Instant::now();
        let mut turns = 0;
        loop {
            _ = near.poll(16);
            _ = far.poll(16);
            if turns == cut_at {
                sides.relay.cut();
            }
            turns += 1;
            carry(&mut sides.near, &links[0]);
            carry(&mut sides.far, &links[1]);
            sides.attend();
            let is_whole = near.state() == QpState::Ready && far.state() == QpState::Ready;
            if is_whole && turns > cut_at && sides.relay.relayed() == 2 {
                break;
            }
            assert!(
                begin.elapsed() < LONG,
                "cut at {cut_at}: {:?} {:?}",
                near.state(),
                far.state()
            );
        }
    }
}

/// Its owner has acted on the end, so a peer that comes back must learn of the end, too.
#[test]
fn a_link_that_was_given_up_is_not_resumed_later() {
    let reset = Duration::from_millis(50);
    let mut sides = Sides::ready(Timeouts { reset, ..endless() });
    sides.relay.cut();
    let error = end_of(&mut sides.far, || ());
    assert!(matches!(error, LinkError::HungUp { .. }), "{error}");
    let begin = Instant::now();
    let error = loop {
        sides.attend();
        assert!(sides.far.try_recv().is_err(), "it was given up");
        match sides.near.try_recv() {
            Ok(None) => assert!(begin.elapsed() < LONG, "no refusal came"),
            Ok(Some(message)) => panic!("{message:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LinkError::HungUp { .. }), "{error}");
}

/// The peer may be about to resume a link, which a reason would end, while a reset does not.
#[test]
fn a_peer_that_is_late_is_reset_and_sent_no_reason() {
    let resume: Message = Message::Resume { session: Session::random().unwrap() };
    let resume = resume.encode();
    let knock = format!(r#"{{"knock":{{"nonce":"{}"}}}}"#, "0f".repeat(16));
    let knock = <Message>::from_json(knock.as_bytes()).unwrap().encode();
    let token = Token::new([1; 32]).unwrap();
    let timeouts = Timeouts { message: Duration::from_millis(50), ..Timeouts::default() };
    for (sent, token) in [
        (&b""[..], None),
        (&resume[..7], None),
        (&resume[..resume.len() - 1], None),
        (&b""[..], Some(&token)),
        (&knock[..7], Some(&token)),
        (&knock[..], Some(&token)),
    ] {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let listener = match token {
            Some(token) => listener.with_token(token.clone()),
            None => listener,
        };
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(sent).unwrap();
        let mut arrivals = Arrivals::<NoPurpose>::default();
        let mut refused = Vec::new();
        while refused.is_empty() {
            let arrived = arrivals.step(&listener, &timeouts, |_, why| refused.push(why)).unwrap();
            assert!(arrived.is_empty(), "{arrived:?}");
            thread::sleep(Duration::from_millis(1));
        }
        let is_late = matches!(refused[0], LinkError::NoAnswer { .. } | LinkError::Stalled { .. });
        assert!(is_late, "{refused:?}");
        let mut received = Vec::new();
        let end = peer.read_to_end(&mut received).map_err(|error| error.kind());
        let received = String::from_utf8_lossy(&received);
        assert!(!received.contains("failed"), "{received}");
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{received}");
    }
}
