//! Servers on software NICs, and peers that connect to them over TCP.

mod files;
mod links;
mod measurements;
mod strangers;
mod timeouts;
mod tokens;
mod trees;

use super::*;
use crate::hosts::{Host, software_hosts};
use crate::job::{CopyJob, Hello, Job, JobOutcome, Link, Message, Shape};
use crate::perf::{
    Limit, Measurement, Operation, PerfConfig, PerfError, PerfProgress, Workload,
    measure_over_time_to, measure_to,
};
use crate::recorded::{Asked, Log, Recorded};
use crate::session::{PeerTimeouts, QualityOfService, SessionError};
use crate::transfer::{
    CopyError, CopyOptions, CopyPlan, CopyProgress, CopyReport, Received, send_to,
};
use polyrail::backend::ConnectOptions;
use polyrail::chain::Chain;
use polyrail::endpoint::Endpoint;
use polyrail::link::{Arrival, Arrivals, LinkError, Listener, Reason, Session, Timeouts, bring_up};
use polyrail::memory::RegisteredBuffer;
use polyrail::verbs::{AccessFlags, RecvWr};
use polyrail::virtual_qp::Scheme;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const ALL_ACCESS: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_READ);

/// Runs a server for this number of peers, one at a time, and returns the result of each.
fn served<T: Send>(
    options: &ServeOptions,
    visitors: usize,
    visit: impl FnOnce(&str, &Host) -> T + Send,
) -> (T, Vec<Result<Served, ServeError>>) {
    let options = ServeOptions { peers: 1, ..options.clone() };
    let (visited, served, _) = run_server(&options, visitors, visit);
    (visited, served)
}

/// Runs a server for this number of peers, and returns the result of each, and the reasons why
/// other peers were not served.
fn run_server<T: Send>(
    options: &ServeOptions,
    visitors: usize,
    visit: impl FnOnce(&str, &Host) -> T + Send,
) -> (T, Vec<Result<Served, ServeError>>, Vec<SessionError>) {
    run_this_server(Server::bind("127.0.0.1:0").unwrap(), options, visitors, visit)
}

fn run_this_server<T: Send>(
    server: Server,
    options: &ServeOptions,
    visitors: usize,
    visit: impl FnOnce(&str, &Host) -> T + Send,
) -> (T, Vec<Result<Served, ServeError>>, Vec<SessionError>) {
    let (here, there) = software_hosts(2).unwrap();
    let address = server.local_addr().unwrap().to_string();
    let gone = AtomicBool::new(false);
    let served = Mutex::new(Vec::new());
    let mut strays = Vec::new();
    let visited = thread::scope(|scope| {
        let visited = scope.spawn(|| {
            // No more peers connect, not after a panic either.
            let _gone = SetAtEnd(&gone);
            visit(&address, &here)
        });
        let attend = |visitor: Visitor| {
            let progress = CopyProgress::default();
            let result = visitor.serve(there.all_domains(), options, &progress, || ());
            let mut served = served.lock().unwrap();
            served.push(result);
            if served.len() == visitors {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        server.run(options, &gone, attend, |_, error| strays.push(error)).unwrap();
        visited.join().unwrap()
    });
    (visited, served.into_inner().unwrap(), strays)
}

/// Waits for the next peer.
fn arrival(listener: &Listener) -> Arrival<Job> {
    Arrivals::default().accept(listener, &Timeouts::default()).unwrap()
}

struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn copied(served: &Result<Served, ServeError>) -> &Received {
    let Ok(Served::Copy(received)) = served else { panic!("{served:?}") };
    received
}

fn send(
    source: &Path,
    name: Option<&str>,
    address: &str,
    host: &Host,
    options: &CopyOptions,
) -> Result<CopyReport, CopyError> {
    let name = name.map(str::as_ref);
    let progress = CopyProgress::default();
    send_to(source, name, address, host.all_domains(), options, &progress, || ())
}

/// Makes a directory with a source of some bytes, and an empty directory for copies.
fn place_with_source() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    let copies = directory.path().join("copies");
    fs::write(&source, vec![7; 300_000]).unwrap();
    fs::create_dir(&copies).unwrap();
    (directory, source, copies)
}

fn names(directory: &Path) -> Vec<String> {
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    fs::read_dir(directory).unwrap().map(name).collect()
}

#[test]
fn a_server_adopts_what_its_senders_want() {
    let (_directory, source, copies) = place_with_source();
    let options = |scheme, rails| CopyOptions {
        scheme,
        rails,
        message_size: 70_000,
        max_msg_size: 4096,
        ..CopyOptions::default()
    };
    let (sent, received) = served(&ServeOptions::new(&copies), 3, |address, host| {
        let send = |name, options| send(&source, name, address, host, &options).unwrap();
        let spray = send(None, options(Scheme::Spray, 1));
        send(Some("other"), options(Scheme::Dqplb, 3));
        send(Some("other"), options(Scheme::Spray, 8));
        spray
    });
    let received: Vec<&Received> = received.iter().map(copied).collect();
    assert_eq!(received[0].report.crc32, sent.crc32);
    assert!(received[0].report.sender.is_none() && sent.receiver.is_none());
    let of = |received: &&Received| {
        (received.shape.rails, received.shape.devices, received.shape.max_msg_size)
    };
    assert_eq!(
        received.iter().map(of).collect::<Vec<_>>(),
        [(1, 1, 4096), (3, 2, 4096), (8, 2, 4096)]
    );
    for name in ["source", "other"] {
        assert!(fs::read(copies.join(name)).unwrap() == fs::read(&source).unwrap());
    }
    assert_eq!(names(&copies).len(), 2);
}

#[test]
fn a_bad_peer_does_not_affect_others() {
    let (_directory, source, copies) = place_with_source();
    let (_, served, strays) = run_server(&ServeOptions::new(&copies), 1, |address, host| {
        let mut garbage = TcpStream::connect(address).unwrap();
        garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        drop(TcpStream::connect(address).unwrap());
        let (mut control, ..) = say_hello(address, host, None);
        let reported = reported(&mut control);
        assert!(reported.contains("gave up: the peer broke the protocol: its hello"), "{reported}");
        send(&source, None, address, host, &CopyOptions::default()).unwrap()
    });
    assert!(served.len() == 1 && served[0].is_ok() && names(&copies) == ["source"]);
    let strays: Vec<String> = strays.iter().map(ToString::to_string).collect();
    assert_eq!(strays.len(), 3, "{strays:?}");
    for text in ["polyrail: its first bytes", "closed the link", "states no purpose"] {
        assert!(strays.iter().any(|stray| stray.contains(text)), "{text}: {strays:?}");
    }
}

/// The timeout for peers that send nothing.
const AGES: Duration = Duration::from_secs(600);

#[test]
fn any_number_of_silent_peers_delays_no_other() {
    let (_directory, source, copies) = place_with_source();
    let timeouts = PeerTimeouts { answer: AGES, ..PeerTimeouts::default() };
    let options = ServeOptions { timeouts, ..ServeOptions::new(&copies) };
    let (_, served, strays) = run_server(&options, 2, |address, host| {
        let connect = |count| -> Vec<TcpStream> {
            (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
        };
        let few = connect(3);
        send(&source, None, address, host, &CopyOptions::default()).unwrap();
        let many = connect(200);
        send(&source, Some("other"), address, host, &CopyOptions::default()).unwrap();
        drop((few, many));
    });
    assert!(served.iter().all(Result::is_ok), "{served:?}");
    // Peers for which there is no place.
    assert!(strays.len() >= 100, "{}", strays.len());
}

#[test]
fn a_silent_peer_loses_its_place_after_a_time() {
    let timeouts = PeerTimeouts { answer: Duration::from_millis(200), ..PeerTimeouts::default() };
    let options = ServeOptions { timeouts, ..ServeOptions::default() };
    let (_, served, strays) = run_server(&options, 1, |address, _| {
        for beginning in [&b""[..], b"PLYR\0\0"] {
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.write_all(beginning).unwrap();
            let end = stranger.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
            assert_eq!(end, Err(ErrorKind::ConnectionReset));
        }
    });
    assert!(served.is_empty());
    assert!(matches!(
        strays[..],
        [
            SessionError::Link(LinkError::NoAnswer { expected: "\"hello\"", .. }),
            SessionError::Link(LinkError::Stalled { pending: 6, .. })
        ]
    ));
}

/// Asks for a measurement that lasts as long as `meanwhile`.
fn hold<T>(address: &str, host: &Host, meanwhile: impl FnOnce() -> T) -> T {
    let perf = Job::Perf(Workload::new(Operation::Write, 4096, 4).unwrap());
    ask(address, host, Some(perf), |_| meanwhile())
}

#[test]
fn peers_are_served_at_the_same_time() {
    let (_directory, source, copies) = place_with_source();
    let options = ServeOptions { peers: 3, ..ServeOptions::new(&copies) };
    let (_, served, strays) = run_server(&options, 4, |address, host| {
        hold(address, host, || {
            hold(address, host, || {
                for name in ["one", "two"] {
                    send(&source, Some(name), address, host, &CopyOptions::default()).unwrap();
                }
            });
        });
    });
    assert_eq!((served.iter().filter(|served| served.is_ok()).count(), strays.len()), (2, 0));
    assert_eq!(names(&copies).len(), 2);
}

#[test]
fn a_peer_is_told_that_the_server_is_busy() {
    let (_directory, source, copies) = place_with_source();
    let timeouts = PeerTimeouts { answer: Duration::from_secs(2), ..PeerTimeouts::default() };
    let options = ServeOptions { peers: 1, timeouts, ..ServeOptions::new(&copies) };
    let (error, served, strays) = run_server(&options, 2, |address, host| {
        let send = || send(&source, None, address, host, &CopyOptions::default());
        let error = hold(address, host, || send().unwrap_err());
        send().unwrap();
        error
    });
    let text =
        "sender: the other side reports: the server is busy with 1 other peer: try again later";
    assert_eq!(Chain(&error).to_string(), text);
    assert!(served[0].is_err() && served[1].is_ok());
    assert!(matches!(strays[..], [SessionError::Busy { peers: 1 }]));
}

#[test]
fn a_waiting_peer_gets_its_turn_or_leaves() {
    let (_directory, source, copies) = place_with_source();
    let options = ServeOptions { peers: 1, ..ServeOptions::new(&copies) };
    let (_, served, strays) = run_server(&options, 2, |address, host| {
        thread::scope(|scope| {
            let sent = hold(address, host, || {
                let plan = CopyPlan::new(1, 1, 1).unwrap();
                let purpose = Some(Job::Copy(CopyJob::new(plan)));
                drop(say_hello(address, host, purpose));
                let sent =
                    scope.spawn(|| send(&source, None, address, host, &CopyOptions::default()));
                thread::sleep(Duration::from_millis(500));
                sent
            });
            sent.join().unwrap().unwrap();
        });
    });
    assert!(served[0].is_err() && served[1].is_ok(), "{served:?}");
    assert!(matches!(strays[..], [SessionError::Link(LinkError::HungUp { .. })]), "{strays:?}");
}

#[test]
fn memory_has_a_limit_and_the_sender_is_told() {
    let (_directory, source, copies) = place_with_source();
    let limited = ServeOptions { max_memory: 256 << 10, ..ServeOptions::new(&copies) };
    let (sent, received) = served(&limited, 1, |address, host| {
        let sent = send(&source, None, address, host, &CopyOptions::default());
        Chain(&sent.unwrap_err()).to_string()
    });
    assert!(received[0].is_err() && names(&copies).is_empty());
    assert!(sent.contains("requires 300032 bytes of memory") && sent.contains("262144"), "{sent}");
}

#[test]
fn a_link_in_the_directory_is_not_followed() {
    let (directory, source, copies) = place_with_source();
    let outside = directory.path().join("outside");
    fs::write(&outside, "keep me").unwrap();
    std::os::unix::fs::symlink(&outside, copies.join("source")).unwrap();
    let (sent, received) = served(&ServeOptions::new(&copies), 1, |address, host| {
        let sent = send(&source, None, address, host, &CopyOptions::default());
        Chain(&sent.unwrap_err()).to_string()
    });
    assert!(matches!(
        received[0],
        Err(ServeError::Copy(CopyError::DestinationKind { what: "a symbolic link", .. }))
    ));
    assert!(sent.contains("a symbolic link"), "{sent}");
    assert_eq!(fs::read(&outside).unwrap(), b"keep me");
}

/// Returns the attributes of a side's queue pairs: their timeouts, and how the network is to treat
/// their packets.
fn requested(log: &Log) -> Vec<(u8, QualityOfService)> {
    let transitions = log.lock().unwrap();
    let of = |asked: &Asked| match asked {
        Asked::Rts { options, .. } => {
            let ConnectOptions { traffic_class, service_level, timeout, .. } = *options;
            Some((timeout, QualityOfService { traffic_class, service_level }))
        }
        _ => None,
    };
    transitions.iter().filter_map(|(_, _, asked)| of(asked)).collect()
}

#[test]
fn either_side_has_its_own_timeout_and_quality_of_service() {
    let (_directory, source, copies) = place_with_source();
    let (here, there) = software_hosts(1).unwrap();
    let near = Log::default();
    let far = Log::default();
    let recorded = |host: &Host, log| vec![Recorded::new(host.domains()[0].clone(), log)];
    let here = recorded(&here, &near);
    let there = recorded(&there, &far);
    let server = Server::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let quality = QualityOfService { traffic_class: 106, service_level: 3 };
    let options = CopyOptions { qp_timeout: 20, quality, ..CopyOptions::default() };
    let other = QualityOfService { traffic_class: 255, service_level: 15 };
    let others = ServeOptions { qp_timeout: 21, quality: other, ..ServeOptions::new(&copies) };
    let gone = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _gone = SetAtEnd(&gone);
            let progress = CopyProgress::default();
            send_to(&source, None, &address, &here, &options, &progress, || ()).unwrap();
        });
        let attend = |visitor: Visitor| {
            visitor.serve(&there, &others, &CopyProgress::default(), || ()).unwrap();
            ControlFlow::Break(())
        };
        server.run(&others, &gone, attend, |_, stray| panic!("{stray}")).unwrap();
    });
    // Four rails, and the notify queue pair.
    assert_eq!((requested(&near), requested(&far)), (vec![(20, quality); 5], vec![(21, other); 5]));
}

/// Connects as a peer that asks for `purpose`, and sends nothing more.
fn say_hello(
    address: &str,
    host: &Host,
    purpose: Option<Job>,
) -> (Link, Endpoint, RegisteredBuffer) {
    say_hello_in(None, Link::connect(address, &Timeouts::default()).unwrap(), host, purpose)
}

/// Asks for `purpose` over a link that this session can resume.
fn say_hello_in(
    session: Option<Session>,
    mut control: Link,
    host: &Host,
    purpose: Option<Job>,
) -> (Link, Endpoint, RegisteredBuffer) {
    let domains = host.domains();
    let endpoint: Endpoint = CopyOptions::default().builder().build(&domains).unwrap();
    let buffer = RegisteredBuffer::new(1 << 20, ALL_ACCESS, &domains).unwrap();
    let address = endpoint.address();
    let remote = buffer.remote();
    control
        .send(&Message::Hello(Hello { reach: address.into(), buffer: remote, purpose, session }))
        .unwrap();
    (control, endpoint, buffer)
}

/// Connects as a peer that asks for `purpose`, also sends `ready`, and calls `then` with the
/// control channel.
fn ask<T>(
    address: &str,
    host: &Host,
    purpose: Option<Job>,
    then: impl FnOnce(&mut Link) -> T,
) -> T {
    let (mut control, mut endpoint, _buffer) = say_hello(address, host, purpose);
    if let Ok(peer) = control.expect_hello() {
        bring_up(&mut endpoint, &mut control, &peer, |_| Ok::<(), SessionError>(())).unwrap();
    }
    then(&mut control)
}

/// Returns the reason that the peer reported.
fn reported(control: &mut Link) -> String {
    control.expect(Duration::from_secs(60)).unwrap_err().to_string()
}

#[test]
fn an_interrupted_server_stops_waiting_and_tells_waiting_peers() {
    let (_directory, source, _) = place_with_source();
    let options = ServeOptions { peers: 1, ..ServeOptions::default() };
    let (here, there) = software_hosts(2).unwrap();
    let server = Server::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let progress = CopyProgress::default();
    let interrupted = Arc::clone(&progress.interrupted);
    let mut strays = Vec::new();
    let error = thread::scope(|scope| {
        let visit = scope.spawn(|| {
            hold(&address, &here, || {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(500));
                    interrupted.store(true, Ordering::Relaxed);
                });
                send(&source, None, &address, &here, &CopyOptions::default()).unwrap_err()
            })
        });
        let attend = |visitor: Visitor| {
            let error = visitor.serve(there.all_domains(), &options, &progress, || ()).unwrap_err();
            assert_eq!(Chain(&error).to_string(), "interrupted by a signal");
            ControlFlow::Continue(())
        };
        server.run(&options, &interrupted, attend, |_, error| strays.push(error)).unwrap();
        visit.join().unwrap()
    });
    assert_eq!(
        Chain(&error).to_string(),
        "sender: the other side reports: interrupted by a signal"
    );
    assert!(matches!(strays[..], [SessionError::Interrupted]), "{strays:?}");
}
