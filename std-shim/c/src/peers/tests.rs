//! Faults of this library. If a set lacks a connection that has a number, every function reports
//! this, and none reports success. A panic is reported as a code, and the object can then only be
//! closed.

use super::*;
use crate::code::Code;
use crate::domain::{polyrail_domain_close, polyrail_domain_open};
use crate::link::{polyrail_link_close, polyrail_link_open};
use crate::table::exclusive;
use crate::types::{
    Backend, Domain, DomainOptions, EndpointOptions, Link, POLYRAIL_CARD_BYTES,
    POLYRAIL_MESSAGE_BYTES, PeerInfo, Peers, RailFailure,
};
use crate::version::polyrail_last_error;
use std::ffi::CStr;
use std::mem::zeroed;
use std::ptr;
use std::thread;

mod flood;

/// The kind of peers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum For {
    Requests,
    Messages,
}

fn ok(code: Code) {
    assert_eq!(code, Code::Ok);
}

fn open(kind: For) -> (*mut Domain, *mut Peers) {
    let mut domain = ptr::null_mut();
    // SAFETY: zeros are values of options, and all pointers are to what they should be.
    unsafe {
        let options = DomainOptions {
            size: size_of::<DomainOptions>() as u32,
            backend: Backend::Software as u32,
            ..zeroed()
        };
        ok(polyrail_domain_open(&raw const options, &raw mut domain));
    }
    (domain, open_peers(domain, kind))
}

fn open_peers(domain: *mut Domain, kind: For) -> *mut Peers {
    let mut peers = ptr::null_mut();
    // SAFETY: zeros are values of options, and all pointers are to what they should be.
    unsafe {
        let options = EndpointOptions {
            size: size_of::<EndpointOptions>() as u32,
            rail_failure: RailFailure::Reroute as u32,
            ..zeroed()
        };
        ok(match kind {
            For::Requests => polyrail_peers_open(domain, &raw const options, &raw mut peers),
            For::Messages => polyrail_messages_open(domain, &raw const options, 6, &raw mut peers),
        });
    }
    peers
}

fn add(peers: *mut Peers) -> u64 {
    let mut peer = 0;
    // SAFETY: it is a place for a number.
    ok(unsafe { polyrail_peers_add(peers, ptr::null(), &raw mut peer) });
    peer
}

/// Removes the connection, but not its number.
fn lose(peers: *mut Peers, peer: u64) {
    ok(polyrail_peers_fail(peers, peer));
    let remove = || {
        let mut any = exclusive(peers).unwrap();
        let found = any.find(peer).unwrap();
        found.set.remove(found.place, peer)
    };
    while remove().is_err() {
        // Messages end with completions.
        ok(polyrail_messages_poll(peers, 16));
    }
}

/// Without optimization, several copies of a set for messages are on the stack while it is made.
fn for_both(test: fn(For)) {
    const STACK: usize = 64 << 20;
    for kind in [For::Requests, For::Messages] {
        let thread = thread::Builder::new().stack_size(STACK).spawn(move || test(kind)).unwrap();
        thread.join().unwrap();
    }
}

#[test]
fn a_peer_that_is_missing_is_never_ok() {
    for_both(miss_a_peer);
}

fn miss_a_peer(kind: For) {
    let (domain, peers) = open(kind);
    let (gone, other) = (add(peers), add(peers));
    let mut bytes = [0u8; POLYRAIL_CARD_BYTES];
    let (start, mut length, mut link) = (bytes.as_mut_ptr().cast(), 0, ptr::null_mut::<Link>());
    lose(peers, gone);
    // SAFETY: all pointers are to what they should be.
    unsafe {
        let card = polyrail_peers_card(peers, gone, start, bytes.len(), &raw mut length);
        assert_eq!(card, Code::Peer);
        ok(polyrail_peers_card(peers, other, start, bytes.len(), &raw mut length));
        assert_eq!(polyrail_peers_connect(peers, gone, start, length), Code::Peer);
        ok(polyrail_link_open(c"127.0.0.1:1".as_ptr(), ptr::null(), &raw mut link));
        assert_eq!(polyrail_peers_meet(peers, gone, link, ptr::null(), 0), Code::Peer);
        // The call was refused because of the peer, so the link is still the caller's.
        ok(polyrail_link_close(link));
        let room = POLYRAIL_MESSAGE_BYTES;
        let control = polyrail_peers_next_control(peers, gone, start, room, &raw mut length);
        assert_eq!(control, Code::Peer);
        let heard = polyrail_peers_control(peers, gone, c"{}".as_ptr().cast(), 2);
        assert_eq!(heard, Code::Peer);
        let mut info = PeerInfo { size: size_of::<PeerInfo>() as u32, ..zeroed() };
        assert_eq!(polyrail_peers_info(peers, gone, &raw mut info), Code::Peer);
        let rails = polyrail_peers_rails(peers, gone, ptr::null_mut(), 0, &raw mut length);
        assert_eq!(rails, Code::Peer);
        if kind == For::Requests {
            let received = polyrail_peers_receive(peers, gone, 1, ptr::null_mut(), 0, 0);
            assert_eq!(received, Code::Peer);
            assert_eq!(polyrail_peers_fail_rail(peers, gone, 0), Code::Peer);
        }
    }
    assert_eq!(polyrail_peers_control_lost(peers, gone), Code::Peer);
    assert_eq!(polyrail_peers_fail(peers, gone), Code::Peer);
    assert_eq!(polyrail_peers_remove(peers, gone), Code::Peer);
    ok(polyrail_peers_fail(peers, other));
    ok(polyrail_peers_close(peers));
    ok(polyrail_domain_close(domain));
}

#[test]
fn a_panic_becomes_a_code_and_the_object_can_only_be_closed() {
    for_both(panic_within);
}

fn panic_within(kind: For) {
    let (domain, peers) = open(kind);
    let mut peer = add(peers);
    let mut count = 0;
    exclusive(peers).unwrap().common.states.clear();
    // SAFETY: all pointers are to what they should be.
    unsafe {
        let mut info = PeerInfo { size: size_of::<PeerInfo>() as u32, ..zeroed() };
        assert_eq!(polyrail_peers_info(peers, peer, &raw mut info), Code::Panic);
        let words = CStr::from_ptr(polyrail_last_error()).to_str().unwrap();
        assert!(
            words.starts_with("internal error of this library: index out of bounds"),
            "{words}"
        );
        assert_eq!(polyrail_peers_info(peers, peer, &raw mut info), Code::Poisoned);
        assert_eq!(polyrail_peers_add(peers, ptr::null(), &raw mut peer), Code::Poisoned);
        let polled = polyrail_peers_poll(peers, ptr::null_mut(), 0, &raw mut count);
        assert_eq!(polled, Code::Poisoned);
    }
    assert_eq!(polyrail_messages_poll(peers, 1), Code::Poisoned);
    assert_eq!(polyrail_peers_drive(peers), Code::Poisoned);
    assert_eq!(polyrail_peers_fail(peers, peer), Code::Poisoned);
    ok(polyrail_peers_close(peers));
    assert_eq!(polyrail_peers_close(peers), Code::Handle);
    ok(polyrail_domain_close(domain));
}

/// Calls that only the other kind of peers supports are refused, and change nothing.
#[test]
fn each_kind_refuses_what_is_for_the_other() {
    for_both(refuse_the_other);
}

fn refuse_the_other(kind: For) {
    let (domain, peers) = open(kind);
    let mut peer = add(peers);
    let mut count = 7;
    // SAFETY: all pointers are to what they should be.
    unsafe {
        match kind {
            For::Requests => {
                assert_eq!(polyrail_messages_poll(peers, 1), Code::Kind);
                let words = CStr::from_ptr(polyrail_last_error()).to_str().unwrap();
                assert_eq!(words, "these peers are for requests");
                let tested = polyrail_messages_test(peers, 1, 0, ptr::null_mut());
                assert_eq!(tested, Code::Kind);
                assert_eq!(polyrail_messages_flush(peers, 1), Code::Kind);
            }
            For::Messages => {
                let polled = polyrail_peers_poll(peers, ptr::null_mut(), 0, &raw mut count);
                assert_eq!((polled, count), (Code::Kind, 0));
                let words = CStr::from_ptr(polyrail_last_error()).to_str().unwrap();
                assert_eq!(words, "these peers are for messages");
                assert_eq!(polyrail_peers_fail_rail(peers, peer, 0), Code::Kind);
                let options: EndpointOptions =
                    EndpointOptions { size: size_of::<EndpointOptions>() as u32, ..zeroed() };
                let added = polyrail_peers_add(peers, &raw const options, &raw mut peer);
                assert_eq!(added, Code::Argument);
            }
        }
    }
    ok(polyrail_peers_remove(peers, peer));
    ok(polyrail_peers_close(peers));
    ok(polyrail_domain_close(domain));
}
