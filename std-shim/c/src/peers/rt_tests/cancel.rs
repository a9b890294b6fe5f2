//! Requests that are taken back.

use super::*;
use crate::region::{polyrail_region_close, polyrail_remote_close};
use crate::types::{Buffer, Completion, Memory, MessageInfo, Opcode, Request, Status};

/// A second and a half for everything.
const BYTES_PER_SECOND: u64 = 8 << 20;
const LENGTH: usize = 12 << 20;

/// Two requests that are taken back, and one between them.
const BEFORE: usize = 6 << 20;
const BETWEEN: usize = 1 << 20;
const AFTER: usize = LENGTH - BEFORE - BETWEEN;
const TAKEN_BACK: u64 = 1;
const KEPT: u64 = 2;

fn open_slow() -> (*mut Domain, *mut Peers) {
    let domain = open_domain(|options| options.software_bytes_per_second = BYTES_PER_SECOND);
    (domain, open_peers(domain, For::Requests))
}

fn cancel(peers: *mut Peers, peer: u64, id: u64) -> (Code, usize) {
    let mut count = 0;
    // SAFETY: the pointer is to a number.
    let code = unsafe { polyrail_peers_cancel(peers, peer, id, &raw mut count) };
    (code, count)
}

#[test]
fn requests_are_taken_back_and_others_go_on() {
    on_a_deep_stack(take_back);
}

fn take_back() {
    let ends = [open_slow(), open_slow()];
    let both = ends.map(|(_, peers)| peers);
    let [near, far] = both.map(|peers| (peers, add(peers)));
    begin_to_meet([near, far], 60_000);
    for end in [near, far] {
        assert_eq!(next_event(both, end).0, EventKind::Connected as u32);
    }
    let mut here: Vec<u8> = (0..LENGTH).map(|at| (at / 7) as u8 % 100).collect();
    let mut there = vec![100; LENGTH];
    let region = register(ends[0].0, &mut here);
    let target = register(ends[1].0, &mut there);
    let remote = import(target);
    let (peers, peer) = near;
    assert_eq!(cancel(peers, peer, TAKEN_BACK), (Code::Request, 0), "there is none yet");
    let parts =
        [(TAKEN_BACK, 0, BEFORE), (KEPT, BEFORE, BETWEEN), (TAKEN_BACK, BEFORE + BETWEEN, AFTER)];
    for (id, at, length) in parts {
        let (at, length) = (at as u64, length as u32);
        // SAFETY: zeros are values of a request, and all pointers are to what they should be.
        unsafe {
            let request = Request {
                id,
                opcode: Opcode::Write as u32,
                region,
                offset: at,
                length,
                remote,
                remote_offset: at,
                ..zeroed()
            };
            ok(polyrail_peers_post(peers, peer, &raw const request));
        }
    }
    thread::sleep(Duration::from_millis(50));
    assert_eq!(cancel(peers, peer, TAKEN_BACK), (Code::Ok, 2));
    assert_eq!(cancel(peers, peer, TAKEN_BACK), (Code::Request, 0), "they are being taken back");
    // SAFETY: NULL is refused.
    let missing = unsafe { polyrail_peers_cancel(peers, peer, KEPT, ptr::null_mut()) };
    assert_eq!(missing, Code::Null);

    let mut statuses = Vec::new();
    while statuses.len() < parts.len() {
        let (mut count, mut none) = (0, 0);
        // SAFETY: zeros are values of a completion, and all pointers are to what they should be.
        let done = unsafe {
            let mut done: Completion = zeroed();
            ok(polyrail_peers_poll(peers, &raw mut done, 1, &raw mut count));
            ok(polyrail_peers_poll(far.0, ptr::null_mut(), 0, &raw mut none));
            done
        };
        if count == 0 {
            continue;
        }
        statuses.push((done.id, done.status));
        if done.id == TAKEN_BACK {
            assert_eq!(done.memory, Memory::Quiet as u32);
            assert!(done.bytes as usize <= BEFORE.max(AFTER));
        }
        if statuses.iter().filter(|(id, _)| *id == TAKEN_BACK).count() == 2 {
            // The memory belongs to the caller again.
            there[..BEFORE].fill(200);
            there[BEFORE + BETWEEN..].fill(200);
        }
    }
    statuses.sort_unstable();
    let cancelled = Status::Cancelled as u32;
    assert_eq!(statuses, [(TAKEN_BACK, cancelled), (TAKEN_BACK, cancelled), (KEPT, 0)]);
    assert_eq!(cancel(peers, peer, TAKEN_BACK), (Code::Request, 0), "they are reported");
    ok(polyrail_peers_fail(peers, peer));
    assert_eq!(cancel(peers, peer, TAKEN_BACK).0, Code::Failed);
    both.into_iter().for_each(|peers| ok(polyrail_peers_close(peers)));
    ok(polyrail_remote_close(remote));
    ok(polyrail_region_close(region));
    ok(polyrail_region_close(target));
    ends.iter().for_each(|(domain, _)| ok(polyrail_domain_close(*domain)));
    let kept = BEFORE..BEFORE + BETWEEN;
    assert_eq!(there[kept.clone()], here[kept.clone()]);
    assert!(there[..kept.start].iter().chain(&there[kept.end..]).all(|byte| *byte == 200));
}

/// Tests a message at both ends, which poll.
fn both_test(both: [(*mut Peers, u64); 2]) -> [(Code, u32); 2] {
    let mut ended = [None; 2];
    while ended.iter().any(Option::is_none) {
        for ((peers, request), ended) in both.into_iter().zip(&mut ended) {
            ok(polyrail_messages_poll(peers, 16));
            if ended.is_some() {
                continue;
            }
            // SAFETY: zeros are values of an info, and the pointer is to one.
            let (code, info) = unsafe {
                let size = size_of::<MessageInfo>() as u32;
                let mut info = MessageInfo { size, ..zeroed() };
                (polyrail_messages_test(peers, request, 0, &raw mut info), info)
            };
            if code != Code::NotNow {
                *ended = Some((code, info.memory));
            }
        }
    }
    ended.map(Option::unwrap)
}

#[test]
fn messages_are_taken_back_by_either_end() {
    on_a_deep_stack(take_messages_back);
}

fn take_messages_back() {
    let open = || {
        let domain = open_domain(|options| options.software_bytes_per_second = BYTES_PER_SECOND);
        (domain, open_peers(domain, For::Messages))
    };
    let ends = [open(), open()];
    let both = ends.map(|(_, peers)| peers);
    let [near, far] = both.map(|peers| (peers, add(peers)));
    begin_to_meet([near, far], 60_000);
    for end in [near, far] {
        assert_eq!(next_event(both, end).0, EventKind::Connected as u32);
    }
    let mut here = vec![7; BEFORE];
    let mut there = vec![100; BEFORE];
    let source = register(ends[0].0, &mut here);
    let mut target = register(ends[1].0, &mut there);
    let taken_back = (Code::TakenBack, Memory::Quiet as u32);
    for by_receiver in [false, true] {
        let buffer = Buffer { region: target, offset: 0, length: BEFORE as u32, tag: 1 };
        let (mut receive, mut send) = (0, 0);
        // SAFETY: all pointers are to what they should be.
        ok(unsafe {
            polyrail_messages_receive(far.0, far.1, &raw const buffer, 1, &raw mut receive)
        });
        // SAFETY: as above.
        while unsafe {
            let length = BEFORE as u32;
            polyrail_messages_send(near.0, near.1, source, 0, length, 1, &raw mut send)
        } != Code::Ok
        {
            both.iter().for_each(|peers| ok(polyrail_messages_poll(*peers, 16)));
        }
        let (peers, request) = if by_receiver { (far.0, receive) } else { (near.0, send) };
        ok(polyrail_messages_cancel(peers, request));
        assert_eq!(polyrail_messages_cancel(peers, request), Code::Request, "it is under way");
        let both = [(near.0, send), (far.0, receive)];
        assert_eq!(both_test(both), [taken_back; 2], "{by_receiver}");
        assert_eq!(polyrail_messages_cancel(peers, request), Code::Request, "its result is known");
        // Nothing is written any more.
        ok(polyrail_region_close(target));
        there.fill(100);
        thread::sleep(Duration::from_millis(200));
        assert!(there.iter().all(|byte| *byte == 100));
        target = register(ends[1].0, &mut there);
    }
    ok(polyrail_peers_fail(near.0, near.1));
    both.into_iter().for_each(|peers| ok(polyrail_peers_close(peers)));
    ok(polyrail_region_close(source));
    ok(polyrail_region_close(target));
    ends.iter().for_each(|(domain, _)| ok(polyrail_domain_close(*domain)));
}

#[test]
fn where_nothing_can_be_taken_back_that_is_said() {
    for_both(|kind| {
        let domain = open_domain(|_| {});
        let mut peers = ptr::null_mut();
        // SAFETY: NULL is for the defaults, and the other pointers are to what they should be.
        ok(unsafe {
            match kind {
                For::Requests => polyrail_peers_open(domain, ptr::null(), &raw mut peers),
                For::Messages => polyrail_messages_open(domain, ptr::null(), 6, &raw mut peers),
            }
        });
        let peer = add(peers);
        let expected = if kind == For::Requests { Code::State } else { Code::Kind };
        assert_eq!(cancel(peers, peer, 1), (expected, 0));
        assert_eq!(cancel(ptr::null_mut(), peer, 1), (Code::Null, 0));
        if kind == For::Requests {
            assert_eq!(cancel(peers, peer + 1, 1), (Code::Peer, 0));
        }
        ok(polyrail_peers_close(peers));
        ok(polyrail_domain_close(domain));
    });
}
