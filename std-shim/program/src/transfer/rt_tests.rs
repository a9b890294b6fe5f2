//! Sides that meet something other than their counterpart.

use super::error::{CopyError, CopyRole, TransferError};
use super::receiver::receive_file;
use super::send_to::send_to;
use super::sender::{Parcel, send_file};
use super::source::Source;
use super::{CopyOptions, CopyProgress};
use crate::hosts::{Host, software_hosts};
use crate::job::{CopyJob, CopyPlan, Hello, Incoming, Job, JobOutcome, Link, Message, Sum};
use crate::recorded::{Log, Recorded, receives_come_first};
use crate::session::{Environment, RailRepair, Reporter, SessionError};
use polyrail::backend::Domain;
use polyrail::chain::Chain;
use polyrail::endpoint::{Address, ConnectError, Endpoint, EndpointBuilder, RailReport};
use polyrail::link::{HandshakeError, LinkError, Listener, Reason, Timeouts};
use polyrail::memory::{RegisteredBuffer, RemoteBuffer};
use polyrail::nic::ProtectionDomain;
use polyrail::verbs::{AccessFlags, SendWr};
use polyrail::virtual_qp::{RailFailure, Scheme};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const TOTAL: u64 = 300_000;

fn plan() -> CopyPlan {
    CopyPlan::new(TOTAL, 100_000, 2).unwrap()
}

fn environment<'a>(
    host: &'a Host,
    builder: &'a EndpointBuilder,
    interrupted: &'a AtomicBool,
) -> Environment<'a, ProtectionDomain> {
    Environment {
        domains: host.domains(),
        builder,
        stall_timeout: Duration::from_secs(5),
        reporter: Reporter::unheard(),
        timeouts: None,
        interrupted,
    }
}

fn send<D: Domain>(
    environment: Environment<'_, D>,
    control: Link,
    file: &File,
) -> Result<(Sum, Vec<RailReport>), TransferError> {
    let source = &Source::new(file.try_clone().unwrap()).unwrap();
    send_file(
        environment,
        control,
        Parcel { source, job: CopyJob::new(plan()) },
        &AtomicU64::new(0),
    )
}

fn session(error: &TransferError) -> &SessionError {
    let TransferError::Session(error) = error else { panic!("{error}") };
    error
}

/// Returns a receiver's error for a sender that sends `messages` and hangs up.
fn received(messages: impl FnOnce(Address) -> Vec<Message>) -> TransferError {
    let (here, there) = software_hosts(2).unwrap();
    let builder = EndpointBuilder::new();
    let endpoint: Endpoint = builder.build(&here.domains()).unwrap();
    let (mut near, far) = Link::pair().unwrap();
    for message in messages(endpoint.address()) {
        near.send(&message).unwrap();
    }
    drop(near);
    let file = tempfile::tempfile().unwrap();
    let interrupted = AtomicBool::new(false);
    let environment = environment(&there, &builder, &interrupted);
    receive_file(environment, far, plan(), &file, &AtomicU64::new(0)).unwrap_err()
}

fn hello(endpoint: Address, purpose: Option<Job>) -> Message {
    let buffer = RemoteBuffer { addr: 0x1000, length: 2048, rkeys: vec![1, 2] };
    Message::Hello(Hello { reach: endpoint.into(), buffer, purpose, session: None })
}

fn to_copy() -> Option<Job> {
    Some(Job::Copy(CopyJob::new(plan())))
}

#[test]
fn a_peer_that_is_not_a_sender_is_refused() {
    let error = received(|_| vec![]);
    assert!(
        matches!(session(&error), SessionError::Link(LinkError::HungUp { pending: 0 })),
        "{error}"
    );
    let out_of_turn = |error: &TransferError, said: &str| {
        matches!(session(error), SessionError::Link(LinkError::Handshake(
            HandshakeError::OutOfTurn { message, .. })) if *message == said)
    };
    let error = received(|_| vec![Message::Ready {}]);
    assert!(out_of_turn(&error, "ready"), "{error}");
    let error = received(|_| vec![Message::Failed { reason: Reason::new("tired") }]);
    assert!(
        matches!(session(&error), SessionError::Peer(reason) if *reason == Reason::new("tired"))
    );
    let error = received(|address| {
        vec![hello(address, to_copy()), Message::Done(JobOutcome::Copy(Sum::default()))]
    });
    assert!(out_of_turn(&error, "done"), "{error}");
}

#[test]
fn a_receiver_that_wants_to_send_is_refused() {
    let (here, there) = software_hosts(2).unwrap();
    let builder = EndpointBuilder::new();
    let endpoint: Endpoint = builder.build(&there.domains()).unwrap();
    let (near, mut far) = Link::pair().unwrap();
    far.send(&hello(endpoint.address(), to_copy())).unwrap();
    let file = tempfile::tempfile().unwrap();
    let interrupted = AtomicBool::new(false);
    let sent = send(environment(&here, &builder, &interrupted), near, &file);
    assert!(matches!(session(sent.as_ref().unwrap_err()), SessionError::Protocol(_)), "{sent:?}");
    // The other side learns why.
    assert!(matches!(far.expect_hello(), Ok(hello) if hello.purpose == to_copy()));
    let reported = far.expect(Duration::ZERO).unwrap_err().to_string();
    assert!(reported.contains("its hello states a purpose, \"copy\", as ours does"), "{reported}");
}

#[test]
fn a_sender_whose_endpoint_does_not_fit_is_refused() {
    let error = received(|mut address| {
        address.card.qp_nums.pop();
        vec![hello(address, to_copy())]
    });
    assert!(
        matches!(session(&error), SessionError::Connect(ConnectError::Rails { peer: 3, .. })),
        "{error}"
    );
}

/// Runs both sides with `meddle` in between, which may change messages on the control channel.
fn run_with(
    meddle: impl Fn(&mut Message) + Sync,
) -> (Result<Sum, TransferError>, Result<Sum, TransferError>) {
    let (here, there) = software_hosts(4).unwrap();
    let mut source = tempfile::tempfile().unwrap();
    source.write_all(&vec![7; TOTAL as usize]).unwrap();
    let target = tempfile::tempfile().unwrap();
    let builder = EndpointBuilder::new();
    let interrupted = AtomicBool::new(false);
    let (near, mut from_near) = Link::pair().unwrap();
    let (mut to_far, far) = Link::pair().unwrap();
    thread::scope(|scope| {
        let sender =
            scope.spawn(|| send(environment(&here, &builder, &interrupted), near, &source));
        let receiver = scope.spawn(|| {
            let written = AtomicU64::new(0);
            receive_file(
                environment(&there, &builder, &interrupted),
                far,
                plan(),
                &target,
                &written,
            )
        });
        let forward = |from: &mut Link, to: &mut Link| match from.try_recv() {
            Ok(Some(mut message)) => {
                meddle(&mut message);
                to.send(&message).unwrap();
                true
            }
            Ok(None) => {
                thread::sleep(Duration::from_millis(1));
                true
            }
            Err(_) => false,
        };
        let a = &mut from_near;
        let b = &mut to_far;
        while forward(a, b) & forward(b, a) {}
        // The remaining side still gets the last messages.
        while forward(a, b) {}
        while forward(b, a) {}
        drop((from_near, to_far));
        let sum = |result: thread::Result<Result<(Sum, _), _>>| {
            result.unwrap().map(|(sum, _): (Sum, Vec<RailReport>)| sum)
        };
        (sum(sender.join()), sum(receiver.join()))
    })
}

#[test]
fn both_sides_see_the_same_bytes() {
    let (sent, received) = run_with(|_| ());
    let sum = Sum { bytes: TOTAL, crc32: crc32fast::hash(&vec![7; TOTAL as usize]) };
    assert_eq!((sent.unwrap(), received.unwrap()), (sum, sum));
}

#[test]
fn sums_that_differ_fail_both_sides() {
    let (sent, received) = run_with(|message| {
        if let Message::Done(JobOutcome::Copy(sum)) = message {
            sum.crc32 ^= 1;
        }
    });
    assert!(matches!(sent, Err(TransferError::Checksum { .. })), "{sent:?}");
    let text = Chain(&received.unwrap_err()).to_string();
    assert!(text.contains("checksums differ: 300000 bytes with CRC-32"), "{text}");
}

#[test]
fn a_ring_that_is_too_short_is_noticed_before_anything_is_written() {
    let (sent, _) = run_with(|message| {
        if let Message::Hello(hello) = message
            && hello.purpose.is_none()
        {
            hello.buffer.length = 1000;
        }
    });
    assert!(matches!(session(sent.as_ref().unwrap_err()), SessionError::Range(_)), "{sent:?}");
}

#[test]
fn a_wrong_key_is_refused_by_the_receivers_device() {
    let (sent, received) = run_with(|message| {
        if let Message::Hello(hello) = message
            && hello.purpose.is_none()
        {
            hello.buffer.rkeys[1] ^= 0x100;
        }
    });
    let text = Chain(&sent.unwrap_err()).to_string();
    assert!(text.contains("rail 1 (device tx1") && text.contains("REM_ACCESS_ERR"), "{text}");
    let text = Chain(&received.unwrap_err()).to_string();
    assert!(text.contains("the other side reports: rail 1 (device tx1"), "{text}");
}

/// Moves the file between two sides that know each other only over TCP.
fn over_tcp<D>(here: Vec<&D>, there: Vec<&D>, builder: EndpointBuilder)
where
    D: Domain<Qp: Send, Cq: Send> + Sync,
{
    let mut source = tempfile::tempfile().unwrap();
    source.write_all(&vec![7; TOTAL as usize]).unwrap();
    let target = tempfile::tempfile().unwrap();
    let builder = &builder;
    let interrupted = &AtomicBool::new(false);
    let side = |domains| {
        let stall_timeout = Duration::from_secs(5);
        let reporter = Reporter::unheard();
        Environment { domains, builder, stall_timeout, reporter, timeouts: None, interrupted }
    };
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let timeouts = Timeouts::default();
    let address = listener.local_addr().unwrap().to_string();
    let sums = thread::scope(|scope| {
        let here = side(here);
        let there = side(there);
        let receiver = scope.spawn(|| {
            let control = accepted(&listener);
            receive_file(there, control, plan(), &target, &AtomicU64::new(0))
        });
        let control = Link::connect(&address, &timeouts).unwrap();
        let sent = send(here, control, &source);
        [sent, receiver.join().unwrap()].map(|result| result.unwrap().0)
    });
    let sum = Sum { bytes: TOTAL, crc32: crc32fast::hash(&vec![7; TOTAL as usize]) };
    assert_eq!(sums, [sum; 2]);
}

#[test]
fn a_file_moves_between_sides_that_meet_over_tcp() {
    for (scheme, rails) in [(Scheme::Spray, 1), (Scheme::Spray, 4), (Scheme::Dqplb, 3)] {
        let (here, there) = software_hosts(2).unwrap();
        let builder = EndpointBuilder::new().scheme(scheme).rails(rails);
        over_tcp(here.domains(), there.domains(), builder);
    }
}

#[test]
fn a_source_that_changes_on_its_way_to_another_host_is_an_error_at_both_ends() {
    let mut source = tempfile::NamedTempFile::new().unwrap();
    source.write_all(&vec![7; TOTAL as usize]).unwrap();
    let (here, there) = software_hosts(2).unwrap();
    let builder = EndpointBuilder::new();
    let interrupted = AtomicBool::new(false);
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let rail_repair = RailRepair { rail_failure: RailFailure::Fatal, ..RailRepair::default() };
    let options = CopyOptions { rail_repair, ..CopyOptions::default() };
    let plan = CopyPlan::new(TOTAL, options.message_size, options.window).unwrap();
    let (sent, received) = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let control = accepted(&listener);
            // The sender has opened it. The system's clock for files has steps of up to 10 ms.
            thread::sleep(Duration::from_millis(50));
            fs::OpenOptions::new().write(true).open(&source).unwrap().write_all(b"8").unwrap();
            let target = tempfile::tempfile().unwrap();
            let environment = environment(&there, &builder, &interrupted);
            receive_file(environment, control, plan, &target, &AtomicU64::new(0))
        });
        let progress = CopyProgress::default();
        let domains = here.all_domains();
        let name = Some("copy".as_ref());
        let sent = send_to(source.path(), name, &address, domains, &options, &progress, || ());
        (sent, receiver.join().unwrap())
    });
    let Err(CopyError::Reading { source: cause, .. }) = sent else { panic!("{sent:?}") };
    assert!(matches!(*cause, TransferError::Changed { what: "modification time", .. }), "{cause}");
    let reported = Chain(&received.unwrap_err()).to_string();
    assert!(
        reported.contains("the other side reports: the file changed during the copy"),
        "{reported}"
    );
}

#[test]
fn a_copy_runs_on_other_backends_too_and_posts_its_receives_first() {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let (here, there) = software_hosts(2).unwrap();
        let log = Log::default();
        let other = Log::default();
        let recorded = |host: &Host, log: &Log| -> Vec<Recorded> {
            host.domains().iter().map(|&domain| Recorded::new(domain.clone(), log)).collect()
        };
        let here = recorded(&here, &log);
        let there = recorded(&there, &other);
        let builder = EndpointBuilder::new().scheme(scheme);
        over_tcp(here.iter().collect(), there.iter().collect(), builder);
        assert!(receives_come_first(&log) && receives_come_first(&other));
    }
}

/// Runs a sender of one chunk that writes TCP by hand, and a receiver that gets the chunk before
/// the sender's `ready`; the sender then calls `then`. Returns the bytes that the receiver wrote,
/// and its error.
fn one_chunk_received(
    chunk: u32,
    then: impl FnOnce(&mut TcpStream, &AtomicU64, &AtomicBool),
) -> (u64, TransferError) {
    let (here, there) = software_hosts(2).unwrap();
    let builder = EndpointBuilder::new();
    let written = AtomicU64::new(0);
    let interrupted = AtomicBool::new(false);
    let plan = CopyPlan::new(chunk.into(), chunk.into(), 1).unwrap();
    let target = tempfile::tempfile().unwrap();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let control = accepted(&listener);
    let error = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let environment = environment(&there, &builder, &interrupted);
            receive_file(environment, control, plan, &target, &written)
        });
        let mut endpoint: Endpoint = builder.build(&here.domains()).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let buffer = RegisteredBuffer::new(chunk as usize, access, &here.domains()).unwrap();
        let purpose = Some(Job::Copy(CopyJob::new(plan)));
        let address = endpoint.address();
        let remote = buffer.remote();
        let hello =
            Message::Hello(Hello { reach: address.into(), buffer: remote, purpose, session: None });
        stream.write_all(&hello.encode()).unwrap();
        let mut incoming = Incoming::new();
        let Message::Hello(peer) = hear(&mut stream, &mut incoming) else { panic!() };
        endpoint.connect(peer.reach.requests().unwrap()).unwrap();
        assert_eq!(hear(&mut stream, &mut incoming), Message::Ready {});
        let keys = buffer.toward(&peer.buffer).unwrap();
        let local = buffer.local(0, chunk).unwrap();
        let wr = SendWr::write_with_imm(0, local, peer.buffer.addr, 0, &keys);
        endpoint.post_send(&wr).unwrap();
        while endpoint.poll(1).completions.is_empty() {}
        then(&mut stream, &written, &interrupted);
        // Memory and queue pairs stay until the receiver is finished.
        receiver.join().unwrap().unwrap_err()
    });
    (written.into_inner(), error)
}

/// Waits for the next link, whatever its peer sends.
fn accepted(listener: &Listener) -> Link {
    loop {
        if let Some((link, _)) = listener.try_accept(&Timeouts::default()).unwrap() {
            return link;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the next message.
fn hear(stream: &mut TcpStream, incoming: &mut Incoming) -> Message {
    loop {
        if let Some(message) = incoming.next_message().unwrap() {
            return message;
        }
        let bytes = stream.read(incoming.room()).unwrap();
        assert!(bytes > 0, "closed the link");
        incoming.filled(bytes);
    }
}

#[test]
fn a_receiver_hears_the_sender_in_every_turn_though_there_is_work() {
    let (written, error) = one_chunk_received(32 << 20, |stream, _, _| {
        let messages = [Message::Ready {}, Message::Failed { reason: Reason::new("tired") }];
        stream.write_all(&messages.map(|message| message.encode()).concat()).unwrap();
    });
    assert!(matches!(session(&error), SessionError::Peer(_)), "{error}");
    assert_eq!(written, 0);
}

#[test]
fn a_sender_hears_the_receiver_while_it_reads_a_chunk() {
    let (here, there) = software_hosts(2).unwrap();
    let builder = EndpointBuilder::new();
    let interrupted = AtomicBool::new(false);
    let mut source = tempfile::tempfile().unwrap();
    source.write_all(&vec![7; TOTAL as usize]).unwrap();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let control = accepted(&listener);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let ring = RegisteredBuffer::new(plan().ring_bytes(), access, &there.domains()).unwrap();
    let error = thread::scope(|scope| {
        let sender =
            scope.spawn(|| send(environment(&here, &builder, &interrupted), control, &source));
        let mut endpoint: Endpoint = builder.build(&there.domains()).unwrap();
        let mut incoming = Incoming::new();
        let Message::Hello(peer) = hear(&mut stream, &mut incoming) else { panic!() };
        let address = endpoint.address();
        let buffer = ring.remote();
        let hello =
            Message::Hello(Hello { reach: address.into(), buffer, purpose: None, session: None });
        endpoint.connect(peer.reach.requests().unwrap()).unwrap();
        let messages = [hello, Message::Ready {}, Message::Failed { reason: Reason::new("tired") }];
        stream.write_all(&messages.map(|message| message.encode()).concat()).unwrap();
        sender.join().unwrap().unwrap_err()
    });
    assert!(matches!(session(&error), SessionError::Peer(_)), "{error}");
    let mut first = [1];
    ring.read_at(0, &mut first).unwrap();
    assert_eq!(first, [0], "a chunk was sent to a receiver that had given up");
}

#[test]
fn a_receiver_sees_an_interrupt_in_the_middle_of_a_chunk() {
    const CHUNK: u32 = 64 << 20;
    let interrupted = || {
        let (written, error) = one_chunk_received(CHUNK, |stream, written, interrupted| {
            stream.write_all(&Message::Ready {}.encode()).unwrap();
            while written.load(Ordering::Relaxed) == 0 {
                std::hint::spin_loop();
            }
            interrupted.store(true, Ordering::Relaxed);
        });
        assert!(matches!(session(&error), SessionError::Interrupted), "{error}");
        assert!(written > 0);
        written < CHUNK.into()
    };
    // On a busy machine the interrupt may come after the chunk.
    assert!((0..20).any(|_| interrupted()));
}

#[test]
fn errors_state_their_reasons_once() {
    let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
    let write = TransferError::Write { position: 5, length: 7, source: full() };
    let error = CopyError::of_side(CopyRole::Receiver, write, Path::new("src"), Path::new("dst"));
    let all = "cannot write dst: writing 7 bytes at offset 5: no storage space";
    assert_eq!(Chain(&error).to_string(), all);
    let broken = LinkError::Io { doing: "accepting", source: full() };
    let error =
        CopyError::of_side(CopyRole::Sender, broken.into(), Path::new("src"), Path::new("dst"));
    assert_eq!(Chain(&error).to_string(), "sender: accepting: no storage space");
}
