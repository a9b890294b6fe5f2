//! First messages: who may connect to a queue pair, and what strangers get.

mod support;

use polyrail_core::verbs::{Opcode, SendRequest, WcStatus};
use polyrail_nic_parts::address::{Gid, Meeting, MeetingKey, RemoteQp};
use polyrail_nic_parts::options::ConnectOptions;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;
use support::raw::{self, Frame, Raw};
use support::{LONG, Side, request, wait};

/// Codes of a challenge that refuses.
const VERSION: u8 = 1;
const NO_QUEUE_PAIR: u8 = 2;

fn expecting(address: &str) -> Side {
    let side = Side::new(address);
    side.qp.to_rtr(&raw::address(), &ConnectOptions::default()).unwrap();
    side.qp.to_rts(0, &ConnectOptions::default()).unwrap();
    side
}

fn try_to_connect(side: &Side, key: &[u8]) -> Result<Raw, Option<u8>> {
    Raw::to(side.device.address(), side.qp.as_remote(0).qp_num, key)
}

fn key(side: &Side) -> [u8; 16] {
    side.qp.meeting().key.0
}

/// Everything that comes until the end of the connection, which must come.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the connection does not end: {error}"),
    }
    all
}

#[test]
fn only_who_has_the_key_connects_and_only_once() {
    let side = expecting("127.5.0.1");
    for at in [0, 15] {
        let mut wrong = key(&side);
        wrong[at] ^= 1;
        assert_eq!(try_to_connect(&side, &wrong).err(), Some(None), "byte {at}");
        assert!(!side.qp.is_connected());
    }
    assert_eq!(try_to_connect(&side, &raw::KEY).err(), Some(None), "the key of the other side");
    let mut raw = try_to_connect(&side, &key(&side)).ok().unwrap();
    wait("the connection", || side.qp.is_connected());
    assert_eq!(try_to_connect(&side, &key(&side)).err(), Some(Some(NO_QUEUE_PAIR)), "a second one");
    raw.send(&Frame::new(raw::WRITE, 0).at(side.buffer.addr(0), side.buffer.rkey).with(b"mine"));
    assert_eq!(raw.receive_kind(raw::ACK).acked, 1);
    assert_eq!(side.buffer.read(0, 4), b"mine");
}

#[test]
fn a_proof_is_good_for_its_connection_only() {
    let side = expecting("127.5.0.2");
    let number = side.qp.as_remote(0).qp_num;
    let mut stream = raw::connect(side.device.address());
    stream.write_all(&raw::hello(1, number, raw::NUMBER, [7; 16])).unwrap();
    let mut challenge = [0; 28];
    stream.read_exact(&mut challenge).unwrap();
    let nonces = [[7; 16], challenge[12..].try_into().unwrap()];
    let proof = raw::proof("connects", &key(&side), [raw::NUMBER, number], nonces);
    let mut second = raw::connect(side.device.address());
    second.write_all(&raw::hello(1, number, raw::NUMBER, [7; 16])).unwrap();
    second.read_exact(&mut challenge).unwrap();
    second.write_all(&proof).unwrap();
    assert_eq!(rest(&mut second), b"", "it was for another nonce");
    // The other side's own proof, sent back.
    let mut third = raw::connect(side.device.address());
    third.write_all(&raw::hello(1, number, raw::NUMBER, [7; 16])).unwrap();
    third.read_exact(&mut challenge).unwrap();
    let nonces = [[7; 16], challenge[12..].try_into().unwrap()];
    third.write_all(&raw::proof("accepts ", &key(&side), [raw::NUMBER, number], nonces)).unwrap();
    assert_eq!(rest(&mut third), b"");
    stream.write_all(&proof).unwrap();
    wait("the connection", || side.qp.is_connected());
}

#[test]
fn a_queue_pair_takes_no_other_peer_though_it_has_the_key() {
    let side = Side::new("127.5.0.3");
    let other = RemoteQp { qp_num: raw::NUMBER + 1, ..raw::address() };
    side.qp.to_rtr(&other, &ConnectOptions::default()).unwrap();
    assert_eq!(try_to_connect(&side, &key(&side)).err(), Some(None));
    assert!(!side.qp.is_connected());
}

#[test]
fn strangers_and_other_versions_are_refused_with_words() {
    let side = expecting("127.5.0.4");
    let number = side.qp.as_remote(0).qp_num;
    let requests: [&[u8]; 3] = [
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: a stray client\r\nAccept: */*\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ];
    for request in requests {
        let mut stream = raw::connect(side.device.address());
        stream.write_all(request).unwrap();
        let words = String::from_utf8(rest(&mut stream)).unwrap();
        assert!(words.contains("queue pairs of polyrail"), "{words:?}");
    }
    let code = |bytes: &[u8]| {
        let mut stream = raw::connect(side.device.address());
        stream.write_all(bytes).unwrap();
        let answer = rest(&mut stream);
        assert_eq!((answer.len(), &answer[..8]), (28, &b"polyrail"[..]));
        answer[10]
    };
    let hello = raw::hello(2, number, raw::NUMBER, [0; 16]);
    assert_eq!(code(&hello), VERSION);
    assert_eq!(code(&hello[..12]), VERSION, "its hello is shorter");
    let nobody = raw::hello(1, number ^ 0x10, raw::NUMBER, [0; 16]);
    assert_eq!(code(&nobody), NO_QUEUE_PAIR);
}

/// The peer's version is known before any request: it fails with a reason.
#[test]
fn requests_to_a_peer_of_another_version_fail_soon() {
    let (listener, mut side, _) = listening("127.5.0.5");
    let sge = side.buffer.sge(0, 8);
    side.post(SendRequest { sge, ..request(Opcode::Send, 1) }).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut hello = [0; 36];
    stream.read_exact(&mut hello).unwrap();
    stream.write_all(&challenge(VERSION)).unwrap();
    let failed = side.completion();
    let expected = (WcStatus::RETRY_EXC_ERR, polyrail_nic_parts::error::vendor::PEER_VERSION);
    assert_eq!((failed.status, failed.vendor_err), expected);
}

fn challenge(code: u8) -> Vec<u8> {
    let mut challenge = b"polyrail".to_vec();
    challenge.extend([1, 0, code, 0]);
    challenge.extend([9; 16]);
    challenge
}

/// A queue pair that connects to a listener of this test.
fn listening(address: &str) -> (TcpListener, Side, RemoteQp) {
    let ip = Ipv4Addr::new(127, 255, 0, 1);
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let meeting = Some(Meeting { port, key: MeetingKey(raw::KEY) });
    let gid = Gid(ip.to_ipv6_mapped().octets());
    let peer = RemoteQp { gid, lid: 0, qp_num: raw::NUMBER, psn: 0, meeting };
    let side = Side::new(address);
    side.qp.to_rtr(&peer, &ConnectOptions::default()).unwrap();
    side.qp.to_rts(0, &ConnectOptions::default()).unwrap();
    (listener, side, peer)
}

/// Answers the hello of a queue pair, and receives its proof. Returns the proof of this side.
fn prove(stream: &mut TcpStream, number: u32, key: &[u8]) -> [u8; 32] {
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut hello = [0; 36];
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(hello[..20], raw::hello(1, raw::NUMBER, number, [0; 16])[..20]);
    stream.write_all(&challenge(0)).unwrap();
    let mut proof = [0; 32];
    stream.read_exact(&mut proof).unwrap();
    let (numbers, nonces) = ([number, raw::NUMBER], [hello[20..].try_into().unwrap(), [9; 16]]);
    assert_eq!(proof, raw::proof("connects", &raw::KEY, numbers, nonces));
    raw::proof("accepts ", key, numbers, nonces)
}

/// A process that has got the port of a peer, but not its keys, gets no data.
#[test]
fn an_acceptor_without_the_key_gets_no_data_and_the_next_attempt_succeeds() {
    let (listener, mut side, _) = listening("127.5.0.6");
    let number = side.qp.as_remote(0).qp_num;
    let sge = side.buffer.sge(0, 8);
    side.post(SendRequest { sge, ..request(Opcode::Send, 1) }).unwrap();
    for _ in 0..2 {
        let (mut stream, _) = listener.accept().unwrap();
        prove(&mut stream, number, &key(&side));
        stream.write_all(&raw::proof("accepts ", &raw::KEY, [0; 2], [[0; 16]; 2])).unwrap();
        assert_eq!(rest(&mut stream), b"");
    }
    let (mut stream, _) = listener.accept().unwrap();
    let good = prove(&mut stream, number, &key(&side));
    stream.write_all(&good).unwrap();
    let mut raw = Raw { stream };
    assert_eq!(raw.receive_kind(raw::SEND).number, 0);
}

/// The acceptor may know its peer only later: its queue pair is in INIT until then.
#[test]
fn a_connection_that_has_proved_itself_waits_until_its_peer_is_known() {
    let (listener, side, _) = listening("127.5.0.7");
    let number = side.qp.as_remote(0).qp_num;
    let (mut stream, _) = listener.accept().unwrap();
    let good = prove(&mut stream, number, &key(&side));
    // Longer than a stranger may take.
    std::thread::sleep(Duration::from_secs(7));
    stream.write_all(&good).unwrap();
    wait("the connection", || side.qp.is_connected());
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "there was no other attempt");
}

/// As when the first attempt was cut on its way.
#[test]
fn a_waiting_connection_that_its_peer_has_closed_is_not_taken() {
    let side = Side::new("127.5.0.8");
    let number = side.qp.as_remote(0).qp_num;
    let mut stream = raw::connect(side.device.address());
    stream.write_all(&raw::hello(1, number, raw::NUMBER, [7; 16])).unwrap();
    let mut challenge = [0; 28];
    stream.read_exact(&mut challenge).unwrap();
    let nonces = [[7; 16], challenge[12..].try_into().unwrap()];
    let proof = raw::proof("connects", &key(&side), [raw::NUMBER, number], nonces);
    stream.write_all(&proof).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(stream);
    std::thread::sleep(Duration::from_millis(200));
    side.qp.to_rtr(&raw::address(), &ConnectOptions::default()).unwrap();
    let Ok(mut raw) = try_to_connect(&side, &key(&side)) else { panic!("the next attempt fails") };
    raw.send(&Frame::new(raw::WRITE, 0).at(side.buffer.addr(0), side.buffer.rkey).with(b"next"));
    assert_eq!(raw.receive_kind(raw::ACK).acked, 1);
}
