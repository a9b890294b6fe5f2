//! What is told of connections by `tracing`.
#![cfg(feature = "tracing")]

mod fixture;
mod recorded;

use fixture::Host;
use polyrail::endpoint::{Endpoint, EndpointBuilder, EndpointError, connect_endpoints};
use polyrail::hardware::{QueuePair, SendBatch};
use polyrail::link::{Arrivals, Listener, NoPurpose, Timeouts, Token};
use polyrail::nic::{DeviceLimits, Fabric, Fault, When};
use polyrail::p2p::{self, CallError, P2pBuilder, P2pEndpoint, RecvBuffer};
use polyrail::pairing::positions_in_pairs_or_in_order;
use polyrail::tcp::{DeviceOptions, open_devices};
use polyrail::verbs::{Imm, Opcode, RecvWr, SendFlags, SendRequest, SendWr, Sge, WcStatus};
use polyrail::virtual_qp::{ProtocolError, QpState, RailEventKind, RailFailure, RailId};
use recorded::Recorded;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::format::FmtSpan;

/// Lines that were told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u8>>>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Told {
    /// What is told on this thread meanwhile, a line each.
    fn during(work: impl FnOnce()) -> Vec<String> {
        // Whether anything listens to an event is decided once for all threads, the first time that
        // any thread meets it: with a single subscriber, by whether that thread has it. Threads of
        // other tests must not decide that none has.
        static EVERYWHERE: Once = Once::new();
        EVERYWHERE.call_once(|| {
            let nowhere = tracing_subscriber::fmt().with_writer(io::sink).finish();
            tracing::subscriber::set_global_default(nowhere).unwrap();
        });
        let told = Self::default();
        let writer = told.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_span_events(FmtSpan::NEW)
            .with_ansi(false)
            .without_time()
            .finish();
        tracing::subscriber::with_default(subscriber, work);
        let bytes = told.0.lock().unwrap();
        String::from_utf8_lossy(&bytes).lines().map(Into::into).collect()
    }
}

/// The lines with these words.
fn count(lines: &[String], words: &[&str]) -> usize {
    lines.iter().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

#[test]
fn a_connection_its_failure_and_its_return_are_told() {
    let fabric = Fabric::threaded();
    let hosts = ["here", "there"].map(|name| Host::new(&fabric, name, 2, 4096));
    let builder = EndpointBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
    let mut near = builder.build(&hosts[0].all()).unwrap();
    let mut far = builder.build(&hosts[1].all()).unwrap();
    let lines = Told::during(|| {
        connect_endpoints(&mut near, &mut far).unwrap();
        assert!(near.fail_rail(RailId::Data(1)));
        while near.state() != QpState::Ready || far.state() != QpState::Ready {
            _ = near.poll(16);
            _ = far.poll(16);
        }
        while near.take_rail_event().or_else(|| far.take_rail_event()).is_some() {}
    });
    assert_eq!(count(&lines, &["connect{", "rails=2", "new"]), 2, "{lines:#?}");
    assert_eq!(count(&lines, &["INFO", "polyrail::trace", "connected", "rails=2"]), 2);
    for (level, words) in [("WARN", ""), ("INFO", "is drained"), ("INFO", "back in service")] {
        let found = count(&lines, &[level, "rail=rail 1", "device=", words]);
        assert_eq!(found, 2, "{words}, of both ends: {lines:#?}");
    }
}

#[test]
fn devices_that_are_not_in_pairs_are_told_with_what_happens_instead() {
    let open = |addresses: &[&str]| open_devices(addresses, &DeviceOptions::default()).unwrap();
    let own = open(&["::1", "127.0.0.1"]);
    let toward = |theirs: &[&str]| {
        let builder = P2pBuilder::new().rails(theirs.len());
        let peer: P2pEndpoint<_> = builder.build(&open(theirs)).unwrap();
        Told::during(|| {
            positions_in_pairs_or_in_order(&own, &peer.address().into(), |_| ()).unwrap();
        })
    };
    assert_eq!(toward(&["127.0.0.2", "::1"]), [""; 0]);
    let lines = toward(&["127.0.0.2", "127.0.0.3", "::1"]);
    let words =
        ["WARN", "rails use the devices in the order given: rails use devices in turn, but"];
    assert_eq!((lines.len(), count(&lines, &words)), (1, 1), "{lines:?}");
}

/// Both kinds of endpoints, which read the events of their devices when they repair rails.
#[test]
fn the_new_rate_of_a_port_is_told_and_costs_no_rail() {
    let fabric = Fabric::threaded();
    let host = |name: &str| {
        [0, 1].map(|n| Recorded::on(&fabric, &format!("{name}{n}"), DeviceLimits::default()))
    };
    let (here, there) = (host("here"), host("there"));
    let lost_a_plane = || {
        for mbps in [400_000, 600_000] {
            here[1].set_speed(mbps);
        }
    };
    let expected = ["INFO", "polyrail::trace", "device=\"here1\"", "port=1", "mbps=600000", "qp="];

    let builder = EndpointBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
    let [mut near, mut far] = [&here, &there].map(|host| builder.build(host).unwrap());
    let lines = Told::during(|| {
        connect_endpoints(&mut near, &mut far).unwrap();
        lost_a_plane();
        until_read(&here[1], || _ = near.poll(16));
    });
    assert_eq!(count(&lines, &expected), 1, "both events were read at once: {lines:#?}");
    assert_eq!((near.state(), near.take_rail_event()), (QpState::Ready, None));
    drop((near, far));

    let builder = P2pBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
    let [mut near, mut far] = [&here, &there].map(|host| builder.build(host).unwrap());
    let lines = Told::during(|| {
        p2p::connect_endpoints(&mut near, &mut far).unwrap();
        lost_a_plane();
        until_read(&here[1], || near.heal());
    });
    assert_eq!(count(&lines, &expected), 1, "one connection, not one for each end: {lines:#?}");
    assert_eq!(near.take_rail_event(), None);
}

/// Lets an endpoint work until it has read that the rate of a device has changed.
fn until_read(device: &Recorded, mut work: impl FnMut()) {
    let begin = Instant::now();
    while device.has_unread_speed() {
        assert!(begin.elapsed() < fixture::LONG);
        work();
    }
}

#[test]
fn peers_that_are_refused_are_told_but_not_those_that_just_leave() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let listener = listener.with_token(Token::new([1; 32]).unwrap());
    let address = listener.local_addr().unwrap();
    let mut refused = 0;
    let lines = Told::during(|| {
        drop(TcpStream::connect(address).unwrap());
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut arrivals = Arrivals::<NoPurpose>::default();
        while refused < 2 {
            arrivals.step(&listener, &Timeouts::default(), |_, _| refused += 1).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    });
    let words =
        ["WARN", "a peer was refused: the peer does not run polyrail", "address=127.0.0.1:"];
    assert_eq!(count(&lines, &words), 1, "{lines:#?}");
    assert_eq!(count(&lines, &["a peer was refused"]), 1, "{lines:#?}");
}

#[test]
fn ends_that_do_not_match_and_why_one_ended_are_told() {
    let fabric = Fabric::threaded();
    let hosts = ["here", "there"].map(|name| Host::new(&fabric, name, 1, 4096));
    let build =
        |host: usize, rails| EndpointBuilder::new().rails(rails).build(&hosts[host].all()).unwrap();
    let lines = Told::during(|| {
        connect_endpoints(&mut build(0, 2), &mut build(1, 3)).unwrap_err();
    });
    assert_eq!(count(&lines, &["WARN", "cannot connect", "qp="]), 1, "{lines:#?}");

    let (mut near, mut far) = (build(0, 2), build(1, 2));
    let lines = Told::during(|| {
        connect_endpoints(&mut near, &mut far).unwrap();
        let local = hosts[0].buffer.local(0, 64).unwrap();
        // A key of nobody's.
        let mut remote = hosts[1].buffer.remote();
        remote.rkeys.iter_mut().for_each(|rkey| *rkey ^= 0x5a5a);
        let keys = hosts[0].buffer.toward(&remote).unwrap();
        near.post_send(&SendWr::write(1, local, remote.addr, &keys)).unwrap();
        let failed = loop {
            if let Some(done) = near.poll(16).completions.pop() {
                break done;
            }
        };
        assert_ne!(failed.status, WcStatus::SUCCESS);
        let why = near.explain(failed.status).to_string();
        assert_eq!(near.explain(failed.status).to_string(), why);
    });
    // However often it is asked.
    assert_eq!(count(&lines, &["ERROR", "REM_ACCESS_ERR"]), 1, "{lines:#?}");
}

/// A SEND where only notifications may arrive: no correct peer does that.
fn break_the_protocol(peer: &mut Endpoint) {
    // SAFETY: the queue pair stays where it is, and the request's name is not one of the engine's.
    let notify = unsafe { peer.parts_mut().0.physical_mut(RailId::Notify) }.unwrap();
    let mut batch = notify.start_send();
    batch.add(&SendRequest {
        wr_id: 1,
        opcode: Opcode::Send,
        flags: SendFlags::SIGNALED,
        imm: Imm::default(),
        sge: Sge::EMPTY,
        remote_addr: 0,
        rkey: 0,
        compare_add: 0,
        swap: 0,
    });
    batch.commit().unwrap();
}

#[test]
fn a_peer_that_breaks_the_protocol_is_told_of_when_the_owner_asks() {
    let fabric = Fabric::threaded();
    let hosts = ["here", "there"].map(|name| Host::new(&fabric, name, 1, 4096));
    let [mut near, mut far] =
        hosts.each_ref().map(|host| EndpointBuilder::new().rails(2).build(&host.all()).unwrap());
    connect_endpoints(&mut near, &mut far).unwrap();
    far.post_recv(&RecvWr::notification(1)).unwrap();
    let mut failed = None;
    let lines = Told::during(|| {
        break_the_protocol(&mut near);
        while failed.is_none() {
            // The software NIC carries requests out when who posted them polls.
            _ = near.poll(16);
            failed = far.poll(16).completions.pop();
        }
    });
    let status = failed.unwrap().status;
    assert_eq!((status, far.state()), (WcStatus::BAD_RESP_ERR, QpState::Error));
    assert_eq!(count(&lines, &["ERROR"]), 0, "nobody has asked: {lines:#?}");
    let lines = Told::during(|| {
        let why = far.explain(status);
        let expected = ProtocolError::NoImm { rail: RailId::Notify };
        assert_eq!(why, EndpointError::Protocol(expected));
        assert_eq!(far.explain(status), why, "it stays the reason");
        assert_eq!(far.failure(), Some(why));
    });
    // However often it is asked.
    assert_eq!(count(&lines, &["ERROR", "polyrail::trace", "qp="]), 1, "{lines:#?}");
    assert_eq!(count(&lines, &["ERROR", "carries no immediate"]), 1, "{lines:#?}");
}

#[test]
fn a_connection_for_messages_its_failures_and_its_returns_are_told() {
    let fabric = Fabric::threaded();
    let hosts = ["here", "there"].map(|name| Host::new(&fabric, name, 2, 4096));
    let builder = P2pBuilder::new()
        .rails(2)
        .rail_failure(RailFailure::Reroute)
        .connect_options(fixture::impatient());
    let mut ends = hosts.each_ref().map(|host| builder.build(&host.all()).unwrap());
    let link = &hosts[1].devices[1];
    let told = Told::during(|| {
        let [near, far] = &mut ends;
        p2p::connect_endpoints(near, far).unwrap();
        for fault in [Fault::LinkDown, Fault::LinkUp] {
            link.inject(When::Now, fault);
            let is_it = |kind: &RailEventKind| match fault {
                Fault::LinkDown => matches!(kind, RailEventKind::Fenced { .. }),
                _ => *kind == RailEventKind::Returned,
            };
            // Of both ends at both sides.
            let mut left = 4;
            while left > 0 {
                for end in [&mut *near, &mut *far] {
                    end.poll(16).check().unwrap();
                    end.heal();
                    let events = std::iter::from_fn(|| end.take_rail_event());
                    left -= events.filter(|(.., event)| is_it(&event.kind)).count();
                }
            }
        }
        // The other one hears of it.
        near.fail();
        near.heal();
        far.heal();
    });
    let found = |words: &[&str]| count(&told, words);
    assert_eq!(found(&["connect{", "rails=2", "new"]), 2, "{told:#?}");
    assert_eq!(found(&["INFO", "polyrail::trace", "connected", "rails=2"]), 2);
    for end in ["sender", "receiver"] {
        let end = format!("end=\"{end}\"");
        for (level, words) in [("WARN", ""), ("INFO", "is drained"), ("INFO", "back in service")] {
            let found = found(&[level, &end, "place=1", "rail=rail 1", "device=", words]);
            assert_eq!(found, 2, "{words}, at both sides: {told:#?}");
        }
        assert_eq!(
            found(&["ERROR", &end, "the application gave up the connection"]),
            1,
            "{told:#?}"
        );
        assert_eq!(
            found(&["ERROR", &end, "the peer reported that its end of the connection failed"]),
            1,
            "{told:#?}"
        );
    }
}

#[test]
fn ends_for_messages_that_do_not_match_and_why_one_failed_are_told() {
    let fabric = Fabric::threaded();
    let hosts = ["here", "there"].map(|name| Host::new(&fabric, name, 1, 4096));
    let build = |host: usize, rails: usize| {
        let builder = P2pBuilder::new().rails(rails).connect_options(fixture::impatient());
        builder.build(&hosts[host].all()).unwrap()
    };
    let told = Told::during(|| {
        p2p::connect_endpoints(&mut build(0, 1), &mut build(1, 2)).unwrap_err();
    });
    assert_eq!(count(&told, &["WARN", "cannot connect", "qp="]), 1, "{told:#?}");

    let (mut near, mut far) = (build(0, 1), build(1, 1));
    let told = Told::during(|| {
        p2p::connect_endpoints(&mut near, &mut far).unwrap();
        let keys = hosts[0].buffer.own_keys();
        let local = hosts[0].buffer.local(0, 64).unwrap();
        let offered = RecvBuffer { local, tag: 1, keys: &keys };
        let receive = near.irecv(&[offered]).unwrap();
        hosts[1].devices[0].inject(When::Now, Fault::LinkDown);
        let failed = loop {
            near.poll(16).check().unwrap();
            if let Err(error) = near.test_recv(receive) {
                break error;
            }
        };
        assert!(matches!(failed, CallError::Failed(_)), "{failed}");
        assert!(near.irecv(&[offered]).is_err());
    });
    // However often it is asked.
    let words = ["ERROR", "end=\"receiver\"", "rail 0 (device here0", "retries exceeded"];
    let found = count(&told, &words);
    assert_eq!(found, 1, "{told:#?}");
}
