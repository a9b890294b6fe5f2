//! Peers that have proved their key and break the protocol: requests fail with a typed status, no
//! byte is written that the peer may not write, and other queue pairs go on.

mod support;

use polyrail_core::verbs::{Completion, LocalBuffer, Opcode, SendFlags, SendRequest, WcStatus};
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::options::ConnectOptions;
use polyrail_nic_parts::state::QpState;
use polyrail_tcp_nic::{Device, DeviceOptions};
use std::io;
use std::net::Shutdown;
use std::time::Duration;
use support::raw::{self, FIRST, Frame, LAST, Raw, SEGMENT};
use support::{Side, exchange, pair, request, wait};

/// What memory contains before and after each attack.
const UNTOUCHED: u8 = 0xee;

fn device(address: &str) -> Device {
    Device::open(address, &DeviceOptions::default()).unwrap()
}

/// A queue pair with a connection to a raw peer.
fn attacked(device: &Device, options: &ConnectOptions) -> (Side, Raw) {
    let mut side = Side::on(device);
    side.buffer.fill(UNTOUCHED);
    let raw = Raw::of(&side, options);
    // Receives are there for SENDs.
    let sge = side.buffer.sge(0, 64);
    side.recv(900, sge).unwrap();
    (side, raw)
}

/// Posts a request, which the peer receives and does not answer.
fn post_unanswered(side: &mut Side, raw: &mut Raw, opcode: Opcode) {
    let length = if opcode == Opcode::RdmaRead { 4096 } else { 8 };
    let sge = side.buffer.sge(0, length);
    side.post(SendRequest { sge, remote_addr: 4096, ..request(opcode, 5) }).unwrap();
    assert_eq!(raw.receive().unwrap().number, 0);
}

/// Waits for the end of the queue pair's only request.
fn failure(side: &mut Side) -> Completion {
    let mut found = None;
    wait("a failed request", || {
        let all = side.poll();
        found = found.or(all.into_iter().find(|completion| completion.wr_id == 5));
        found.is_some()
    });
    found.unwrap()
}

/// Frames that no peer sends, for a queue pair that has sent one WRITE.
fn malformed(side: &Side) -> Vec<(&'static str, Vec<Frame>)> {
    let good = Frame::new(raw::WRITE, 0).at(side.buffer.addr(0), side.buffer.rkey);
    let bytes = |length: usize| vec![UNTOUCHED; length];
    let whole = good.clone().with(&bytes(9));
    let long = SEGMENT as u32 + 8;
    let begun = Frame {
        flags: FIRST,
        total: long,
        length: SEGMENT as u32,
        payload: bytes(SEGMENT),
        ..good.clone()
    };
    let rest = Frame {
        flags: LAST,
        offset: SEGMENT as u32,
        length: 8,
        payload: bytes(8),
        ..begun.clone()
    };
    let control = |kind, number| Frame { flags: 0, ..Frame::new(kind, number) };
    vec![
        ("no kind", vec![Frame::new(0, 0)]),
        ("an unknown kind", vec![Frame::new(14, 0)]),
        ("an unknown flag", vec![Frame { flags: FIRST | LAST | 8, ..whole.clone() }]),
        ("a byte that is zero", vec![Frame { zero: 1, ..whole.clone() }]),
        (
            "more than a segment",
            vec![Frame { length: SEGMENT as u32 + 1, total: SEGMENT as u32 + 1, ..good.clone() }],
        ),
        ("more than the request", vec![Frame { total: 8, ..whole.clone() }]),
        ("less than the request", vec![Frame { total: 10, ..whole.clone() }]),
        ("an offset that wraps", vec![Frame { flags: LAST, offset: u32::MAX, ..whole.clone() }]),
        ("no bytes of some", vec![Frame { total: 9, flags: FIRST, ..good.clone() }]),
        ("a READ with bytes", vec![Frame { kind: raw::READ, ..whole.clone() }]),
        ("an acknowledgement with bytes", vec![Frame { kind: raw::ACK, ..whole.clone() }]),
        (
            "an atomic with one operand",
            vec![Frame::new(raw::FETCH_ADD, 0).at(good.addr, good.rkey).with(&bytes(8))],
        ),
        ("a request out of order", vec![Frame { number: 1, ..whole.clone() }]),
        ("a request of long ago", vec![Frame { number: u32::MAX, ..whole.clone() }]),
        ("a rest without a beginning", vec![rest.clone()]),
        ("a beginning twice", vec![begun.clone(), begun.clone()]),
        ("a rest of another request", vec![begun.clone(), Frame { number: 1, ..rest.clone() }]),
        ("a rest of another kind", vec![begun.clone(), Frame { kind: raw::SEND, ..rest.clone() }]),
        ("a rest elsewhere", vec![begun.clone(), Frame { addr: good.addr + 8, ..rest.clone() }]),
        ("a rest of another region", vec![begun.clone(), Frame { rkey: 0, ..rest.clone() }]),
        (
            "a rest of another length",
            vec![begun.clone(), Frame { total: long + 1, flags: 0, ..rest.clone() }],
        ),
        ("a READ within a request", vec![begun.clone(), Frame::new(raw::READ, 1)]),
        ("an acknowledgement of what was not sent", vec![control(raw::ACK, 0).acked(2)]),
        ("an acknowledgement of 2^31 requests", vec![control(raw::ACK, 0).acked(0x7fff_ffff)]),
        ("an acknowledgement of long ago", vec![control(raw::ACK, 0).acked(u32::MAX)]),
        ("a response to no READ", vec![Frame::new(raw::READ_RESPONSE, 0).with(&bytes(8))]),
        ("a response to no atomic", vec![Frame::new(raw::ATOMIC_RESPONSE, 0).with(&bytes(8))]),
        ("a receive for what does not wait", vec![control(raw::READY, 0)]),
        ("no receive for what was not sent", vec![control(raw::NOT_READY, 1)]),
        ("a receive for another request", vec![control(raw::NOT_READY, 0), control(raw::READY, 1)]),
        (
            "a refusal of what was not sent",
            vec![Frame { imm: 10_u32.to_le_bytes(), ..control(raw::REFUSAL, 1) }],
        ),
        ("a refusal that succeeds", vec![control(raw::REFUSAL, 0)]),
    ]
}

#[test]
fn frames_that_no_peer_sends_end_the_connection_and_write_nothing() {
    let device = device("127.4.0.1");
    let count = malformed(&Side::on(&device)).len();
    for case in 0..count {
        let (mut side, mut raw) = attacked(&device, &ConnectOptions::default());
        post_unanswered(&mut side, &mut raw, Opcode::RdmaWrite);
        let (what, frames) = malformed(&side).swap_remove(case);
        for frame in frames {
            // It may have been cut before the last frame.
            _ = raw.try_send(&frame.bytes());
        }
        let failed = failure(&mut side);
        let expected = (WcStatus::RETRY_EXC_ERR, vendor::PEER_PROTOCOL);
        assert_eq!((failed.status, failed.vendor_err), expected, "{what}");
        assert!(side.qp.protocol_error().is_some(), "{what}");
        assert_eq!(side.qp.state(), QpState::Err, "{what}");
        raw.ended();
        assert!(side.buffer.is_all(UNTOUCHED), "{what}");
    }
}

/// Answers that no peer gives, for a queue pair that has sent one READ of 4096 bytes.
fn wrong_answers() -> Vec<(&'static str, Vec<Frame>)> {
    let bytes = |length: usize| vec![UNTOUCHED; length];
    let good = Frame::new(raw::READ_RESPONSE, 0).with(&bytes(4096));
    let half = Frame { total: 4096, flags: FIRST, ..good.clone() };
    let half = Frame { length: 2048, payload: bytes(2048), ..half };
    vec![
        ("longer than the READ", vec![Frame::new(raw::READ_RESPONSE, 0).with(&bytes(4097))]),
        ("shorter than the READ", vec![Frame::new(raw::READ_RESPONSE, 0).with(&bytes(8))]),
        ("of another request", vec![Frame { number: 1, ..good.clone() }]),
        ("of an atomic", vec![Frame::new(raw::ATOMIC_RESPONSE, 0).with(&bytes(8))]),
        ("its end first", vec![Frame { flags: LAST, offset: 2048, ..half.clone() }]),
        ("its beginning twice", vec![half.clone(), half.clone()]),
        ("a gap", vec![half.clone(), Frame { flags: LAST, offset: 2049, length: 2047, ..half }]),
        ("twice", vec![good.clone(), good]),
    ]
}

#[test]
fn answers_that_no_peer_gives_end_the_connection() {
    let device = device("127.4.0.2");
    for (what, frames) in wrong_answers() {
        let (mut side, mut raw) = attacked(&device, &ConnectOptions::default());
        post_unanswered(&mut side, &mut raw, Opcode::RdmaRead);
        for frame in frames {
            _ = raw.try_send(&frame.bytes());
        }
        let failed = failure(&mut side);
        let expected = (WcStatus::RETRY_EXC_ERR, vendor::PEER_PROTOCOL);
        assert_eq!((failed.status, failed.vendor_err), expected, "{what}");
        raw.ended();
        assert!(side.buffer.is_all(UNTOUCHED), "{what}");
    }
}

/// Requests that the queue pair must refuse, and with which status.
fn refused(side: &Side) -> Vec<(&'static str, Frame, WcStatus)> {
    let (addr, rkey, lkey) = (side.buffer.addr(0), side.buffer.rkey, side.buffer.lkey);
    let end = side.buffer.addr(support::BUFFER_BYTES);
    let write = |addr, rkey| Frame::new(raw::WRITE, 0).at(addr, rkey).with(&[1; 64]);
    let read = |addr, rkey, total| Frame { total, ..Frame::new(raw::READ, 0).at(addr, rkey) };
    let add = |addr, rkey| Frame::new(raw::FETCH_ADD, 0).at(addr, rkey).with(&[1; 16]);
    let (access, invalid) = (WcStatus::REM_ACCESS_ERR, WcStatus::REM_INV_REQ_ERR);
    vec![
        ("key 0", write(addr, 0), access),
        ("the next key", write(addr, rkey.wrapping_add(1)), access),
        ("the lkey", write(addr, lkey), access),
        ("before the region", write(addr - 1, rkey), access),
        ("over the region's end", write(end - 63, rkey), access),
        ("behind the address space", write(u64::MAX - 3, rkey), access),
        ("an immediate for a bad key", Frame { kind: 2, ..write(addr, 0) }, access),
        ("a READ of a bad key", read(addr, 0, 8), access),
        ("a READ over the region's end", read(end - 7, rkey, 8), access),
        ("a READ of everything", read(addr, rkey, u32::MAX), invalid),
        ("an atomic of a bad key", add(addr, 0), access),
        ("an atomic over the region's end", add(end, rkey), access),
        ("an atomic across words", add(addr + 4, rkey), invalid),
        ("a SEND over its receive", Frame::new(raw::SEND, 0).with(&[1; 65]), invalid),
        (
            "a SEND of 1 GiB and a byte",
            Frame {
                flags: FIRST,
                total: (1 << 30) + 1,
                ..Frame::new(raw::SEND, 0).with(&vec![1; SEGMENT])
            },
            invalid,
        ),
    ]
}

#[test]
fn requests_that_are_not_permitted_are_refused_with_their_status() {
    let device = device("127.4.0.3");
    let count = refused(&Side::on(&device)).len();
    for case in 0..count {
        let (mut side, mut raw) = attacked(&device, &ConnectOptions::default());
        post_unanswered(&mut side, &mut raw, Opcode::RdmaWrite);
        let (what, frame, status) = refused(&side).swap_remove(case);
        raw.send(&frame);
        let refusal = raw.receive_kind(raw::REFUSAL);
        assert_eq!((refusal.number, refusal.status()), (0, status.0), "{what}");
        assert_eq!(raw.receive(), None, "{what}: nothing follows");
        assert_eq!(failure(&mut side).status, WcStatus::WR_FLUSH_ERR, "{what}");
        assert_eq!(side.qp.state(), QpState::Err, "{what}");
        assert!(side.buffer.is_all(UNTOUCHED), "{what}");
    }
}

#[test]
fn reads_beyond_what_was_granted_are_refused() {
    let options = ConnectOptions { max_rd_atomic: 0, ..ConnectOptions::default() };
    let (side, mut raw) = attacked(&device("127.4.0.4"), &options);
    let read = Frame::new(raw::READ, 0).at(side.buffer.addr(0), side.buffer.rkey);
    raw.send(&Frame { total: 8, ..read });
    let refusal = raw.receive_kind(raw::REFUSAL);
    assert_eq!(refusal.status(), WcStatus::REM_INV_REQ_ERR.0);
    assert_eq!(refusal.rkey, vendor::NO_READ_RESOURCES);
}

/// After its refusal, a queue pair discards a bounded number of bytes.
#[test]
fn a_refused_peer_that_goes_on_is_cut() {
    let (side, mut raw) = attacked(&device("127.4.0.5"), &ConnectOptions::default());
    let bad = Frame::new(raw::WRITE, 0).at(side.buffer.addr(0), 0).with(&[1; 64]).bytes();
    let (sent, error) = send_until_cut(&mut raw, &bad.repeat(1000));
    assert!(sent < 256 << 20, "{sent} bytes");
    // It does not wait for room that never comes.
    let ends = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    assert!(ends.contains(&error.kind()), "{error}");
    assert_eq!(raw.receive_kind(raw::REFUSAL).status(), WcStatus::REM_ACCESS_ERR.0);
    assert_eq!(raw.receive(), None);
    assert!(side.buffer.is_all(UNTOUCHED));
}

/// Sends the same again and again, until the other end takes no more. Returns how many bytes it
/// took, and why it takes no more.
fn send_until_cut(raw: &mut Raw, bytes: &[u8]) -> (usize, io::Error) {
    const MOST: usize = 1 << 30;
    // What is not read for so long is not read any more; what is cut later would only be sent for
    // nothing here.
    raw.stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut sent = 0;
    loop {
        if let Err(error) = raw.try_send(bytes) {
            return (sent, error);
        }
        sent += bytes.len();
        assert!(sent < MOST, "{sent} bytes");
    }
}

#[test]
fn a_peer_that_sends_and_never_reads_takes_no_memory_and_stops_nobody() {
    let device = device("127.4.0.6");
    let (side, mut raw) = attacked(&device, &ConnectOptions::default());
    let (mut near, mut far) = (Side::on(&device), Side::new("127.4.1.6"));
    polyrail_tcp_nic::connect_pair(&near.qp, &far.qp, &ConnectOptions::default()).unwrap();
    exchange(&mut near, &mut far, 1);
    let before = resident();
    let count = 300_000;
    for number in 0..count {
        let to = side.buffer.addr(number as usize % 4096);
        raw.send(&Frame::new(raw::WRITE, number).at(to, side.buffer.rkey).with(&[1; 8]));
        if number % 100_000 == 0 {
            exchange(&mut near, &mut far, number as u8);
        }
    }
    exchange(&mut near, &mut far, 2);
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    while raw.receive().expect("the connection goes on").acked != count {}
}

/// Large responses that the peer does not take stay in the target's memory.
#[test]
fn a_peer_that_reads_nothing_of_what_it_requests_stops_nobody() {
    let device = device("127.4.0.7");
    let (side, mut raw) = attacked(&device, &ConnectOptions::default());
    let (mut near, mut far) = (Side::on(&device), Side::new("127.4.1.7"));
    polyrail_tcp_nic::connect_pair(&near.qp, &far.qp, &ConnectOptions::default()).unwrap();
    exchange(&mut near, &mut far, 1);
    let before = resident();
    let read = |number| Frame {
        total: support::BUFFER_BYTES as u32,
        ..Frame::new(raw::READ, number).at(side.buffer.addr(0), side.buffer.rkey)
    };
    // The first 16 are granted; most are not answered when the next ones come.
    (0..16).for_each(|number| raw.send(&read(number)));
    exchange(&mut near, &mut far, 2);
    let more: Vec<u8> = (16..2000).flat_map(|number| read(number).bytes()).collect();
    let (sent, _) = send_until_cut(&mut raw, &more);
    assert!(sent < 256 << 20, "{sent} bytes");
    exchange(&mut near, &mut far, 3);
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
}

#[test]
fn a_request_that_comes_byte_by_byte_is_executed() {
    let (mut near, mut far) = pair("127.4.0.8", "127.4.1.8");
    let (side, mut raw) = attacked(&near.device.clone(), &ConnectOptions::default());
    let to = side.buffer.addr(100);
    let frame = Frame::new(raw::WRITE, 0).at(to, side.buffer.rkey).with(b"byte by byte");
    for (index, byte) in frame.bytes().into_iter().enumerate() {
        raw.try_send(&[byte]).unwrap();
        if index % 10 == 0 {
            exchange(&mut near, &mut far, index as u8);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(raw.receive_kind(raw::ACK).acked, 1);
    assert_eq!(side.buffer.read(100, 12), b"byte by byte");
    assert_eq!(side.buffer.read(112, 1), [UNTOUCHED]);
}

#[test]
fn a_peer_that_ends_its_side_within_a_frame_is_gone() {
    let (mut side, mut raw) = attacked(&device("127.4.0.9"), &ConnectOptions::default());
    post_unanswered(&mut side, &mut raw, Opcode::RdmaWrite);
    let to = side.buffer.addr(0);
    let bytes = Frame::new(raw::WRITE, 0).at(to, side.buffer.rkey).with(&[UNTOUCHED; 64]).bytes();
    raw.try_send(&bytes[..70]).unwrap();
    raw.stream.shutdown(Shutdown::Write).unwrap();
    let failed = failure(&mut side);
    let expected = (WcStatus::RETRY_EXC_ERR, vendor::PEER_GONE);
    assert_eq!((failed.status, failed.vendor_err), expected);
    raw.ended();
}

#[test]
fn a_peer_that_never_acknowledges_fails_the_request_after_the_limit() {
    let options = ConnectOptions { timeout: 14, retry_cnt: 1, ..ConnectOptions::default() };
    let (mut side, mut raw) = attacked(&device("127.4.0.10"), &options);
    post_unanswered(&mut side, &mut raw, Opcode::RdmaWrite);
    let failed = failure(&mut side);
    let expected = (WcStatus::RETRY_EXC_ERR, vendor::ACK_LOST);
    assert_eq!((failed.status, failed.vendor_err), expected);
}

/// A receive that is posted twice while the peer is on its way.
#[test]
fn a_peer_is_notified_once_that_its_request_can_come_again() {
    let mut side = Side::new("127.4.0.11");
    let mut raw = Raw::of(&side, &ConnectOptions::default());
    let send = Frame::new(raw::SEND, 0).with(b"early");
    raw.send(&send);
    assert_eq!(raw.receive_kind(raw::NOT_READY).number, 0);
    for wr_id in 0..2 {
        let sge = side.buffer.sge(64 * wr_id, 64);
        side.recv(wr_id as u64, sge).unwrap();
    }
    assert_eq!(raw.receive_kind(raw::READY).number, 0);
    // What was sent before it knew is discarded.
    raw.send(&Frame::new(raw::SEND, 1).with(b"later"));
    raw.send(&send);
    let received = side.completion();
    assert_eq!((received.wr_id, received.byte_len, received.status), (0, 5, WcStatus::SUCCESS));
    let ack = raw.receive().unwrap();
    assert_eq!((ack.kind, ack.acked), (raw::ACK, 1));
}

/// A request that cannot be sent must not hold back one before it that is sent again.
#[test]
fn a_request_that_met_no_receive_is_sent_again_before_a_later_one_fails() {
    let mut side = Side::new("127.4.0.12");
    let mut raw = Raw::of(&side, &ConnectOptions { timeout: 0, ..ConnectOptions::default() });
    let sge = side.buffer.sge(0, 8);
    side.post(SendRequest { sge, ..request(Opcode::Send, 1) }).unwrap();
    assert_eq!(raw.receive_kind(raw::SEND).number, 0);
    let bad = side.buffer.sge_with(0, 8, side.buffer.lkey.wrapping_add(1));
    let unknown = SendRequest { sge: bad, ..request(Opcode::Send, 2) };
    side.post(unknown).unwrap();
    let control = |kind| Frame { flags: 0, ..Frame::new(kind, 0) };
    raw.send(&control(raw::NOT_READY));
    raw.send(&control(raw::READY));
    assert_eq!(raw.receive_kind(raw::SEND).number, 0, "it comes again");
    raw.send(&control(raw::ACK).acked(1));
    let all = side.completions(2);
    let statuses: Vec<_> = all.iter().map(|one| (one.wr_id, one.status)).collect();
    assert_eq!(statuses, [(1, WcStatus::SUCCESS), (2, WcStatus::LOC_PROT_ERR)]);
}

/// An acknowledgement that was to travel with a request must arrive, though the request is taken
/// back because the peer has no receive.
#[test]
fn an_acknowledgement_arrives_though_the_request_that_brings_it_is_taken_back() {
    let device = device("127.4.0.13");
    // How much the peer reads decides which frames wait in the queue pair when it answers.
    for taken in (0..12).map(|step| step * 400_000) {
        let mut side = Side::on(&device);
        let mut raw = Raw::of(&side, &ConnectOptions::default());
        // SENDs that fill the socket, which the peer does not read.
        let sge = side.buffer.sge(0, support::BUFFER_BYTES);
        for wr_id in 0..64 {
            let flags = SendFlags::empty();
            side.post(SendRequest { sge, flags, ..request(Opcode::Send, wr_id) }).unwrap();
        }
        let to = side.buffer.addr(support::BUFFER_BYTES - 8);
        raw.send(&Frame::new(raw::WRITE, 0).at(to, side.buffer.rkey).with(b"executed"));
        wait("the WRITE", || {
            side.poll();
            side.buffer.read(support::BUFFER_BYTES - 8, 8) == b"executed"
        });
        let mut acked = 0;
        let mut read = 0;
        while read < taken {
            let frame = raw.receive().unwrap();
            read += frame.payload.len();
            acked = acked.max(frame.acked);
            side.poll();
        }
        raw.send(&Frame { flags: 0, ..Frame::new(raw::NOT_READY, 0) });
        while acked == 0 {
            acked = raw.receive().expect("the acknowledgement comes").acked;
        }
    }
}

/// Memory that is gone is a mistake of the program, which must not become bytes at its peer.
#[test]
fn memory_that_is_not_mapped_fails_its_request_and_ends_the_connection() {
    const BYTES: usize = 1 << 20;
    let (mut side, mut raw) = attacked(&device("127.4.0.14"), &ConnectOptions::default());
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    let flags = flags | libc::MAP_ANONYMOUS;
    let none = std::ptr::null_mut();
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(none, BYTES, protection, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: the bytes are not allocated until the region is dropped, as the function requires,
    // and only the system accesses them.
    let region = unsafe { side.pd.register(start.cast(), BYTES, support::ALL_ACCESS) }.unwrap();
    // SAFETY: the mapping of above.
    assert_eq!(unsafe { libc::munmap(start, BYTES) }, 0);
    // SAFETY: only the system accesses the bytes.
    let local = unsafe { LocalBuffer::new(start as u64, BYTES as u32) };
    let sge = local.sge(region.lkey());
    side.post(SendRequest { sge, ..request(Opcode::Send, 5) }).unwrap();
    let failed = failure(&mut side);
    let expected = (WcStatus::LOC_PROT_ERR, vendor::MEMORY_FAULT);
    assert_eq!((failed.status, failed.vendor_err), expected);
    assert_eq!(side.qp.state(), QpState::Err);
    raw.ended();
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_write_whose_memory_is_deregistered_meanwhile_is_refused() {
    let device = device("127.0.0.1");
    let (mut side, mut raw) = attacked(&device, &ConnectOptions::default());
    let long = SEGMENT as u32 + 8;
    let begun = Frame {
        flags: FIRST,
        total: long,
        length: SEGMENT as u32,
        payload: vec![1; SEGMENT],
        ..Frame::new(raw::WRITE, 0).at(side.buffer.addr(0), side.buffer.rkey)
    };
    raw.send(&begun);
    wait("the first frame", || side.buffer.read(SEGMENT - 1, 1) == [1]);
    side.buffer.deregister();
    let rest =
        Frame { flags: LAST, offset: SEGMENT as u32, length: 8, payload: vec![1; 8], ..begun };
    raw.send(&rest);
    assert_eq!(raw.receive_kind(raw::REFUSAL).status(), WcStatus::REM_ACCESS_ERR.0);
    let flushed = side.completion();
    assert_eq!((flushed.wr_id, flushed.status), (900, WcStatus::WR_FLUSH_ERR));
    assert_eq!(side.qp.state(), QpState::Err);
    assert_eq!(side.buffer.read(SEGMENT, 8), [UNTOUCHED; 8]);
}

#[test]
fn a_read_whose_memory_is_deregistered_meanwhile_fails_with_a_status_of_its_own() {
    let device = device("127.0.0.1");
    let (mut side, mut raw) = attacked(&device, &ConnectOptions::default());
    post_unanswered(&mut side, &mut raw, Opcode::RdmaRead);
    side.buffer.deregister();
    raw.send(&Frame::new(raw::READ_RESPONSE, 0).acked(1).with(&[1; 4096]));
    assert_eq!(failure(&mut side).status, WcStatus::LOC_PROT_ERR);
    assert!(side.buffer.is_all(UNTOUCHED));
}
