//! Faults of this library. A set may lack a member that has a number: every function says so, and none that it did what
//! it did not. What panics ends with a code, and refuses everything after that.

use super::object::{AnyP2p, P2pOn};
use super::*;
use crate::code::Code;
use crate::domain::{polyrail_domain_close, polyrail_domain_open};
use crate::link::{polyrail_link_close, polyrail_link_open};
use crate::table::exclusive;
use crate::types::{
    Backend, Domain, DomainOptions, EndpointOptions, Link, P2p, POLYRAIL_CARD_BYTES,
    POLYRAIL_MESSAGE_BYTES, PeerInfo, RailFailure,
};
use crate::version::polyrail_last_error;
use polyrail::nic::ProtectionDomain;
use polyrail::p2p::P2pMessage;
use std::ffi::CStr;
use std::mem::zeroed;
use std::ptr;
use std::thread;

fn ok(code: Code) {
    assert_eq!(code, Code::Ok);
}

fn open() -> (*mut Domain, *mut P2p) {
    let (mut domain, mut p2p) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: zeros are values of options, and all pointers are to what they should be.
    unsafe {
        let options = DomainOptions {
            size: size_of::<DomainOptions>() as u32,
            backend: Backend::Software as u32,
            ..zeroed()
        };
        ok(polyrail_domain_open(&raw const options, &raw mut domain));
        let options = EndpointOptions {
            size: size_of::<EndpointOptions>() as u32,
            rail_failure: RailFailure::Reroute as u32,
            ..zeroed()
        };
        ok(polyrail_p2p_open(domain, &raw const options, 2, &raw mut p2p));
    }
    (domain, p2p)
}

fn add(p2p: *mut P2p) -> u64 {
    let mut peer = 0;
    // SAFETY: it is a place for a number.
    ok(unsafe { polyrail_p2p_add(p2p, &raw mut peer) });
    peer
}

fn software<R>(p2p: *mut P2p, change: impl FnOnce(&mut P2pOn<ProtectionDomain>) -> R) -> R {
    let mut any = exclusive(p2p).unwrap();
    #[cfg_attr(not(feature = "verbs"), expect(irrefutable_let_patterns))]
    let AnyP2p::Software(p2p) = &mut *any else { panic!("these are software NICs") };
    change(p2p)
}

/// Takes the member away, but not its number.
fn lose(p2p: *mut P2p, peer: u64) {
    ok(polyrail_p2p_fail(p2p, peer));
    software(p2p, |p2p| {
        let place = p2p.numbers.place(peer).unwrap();
        while p2p.set.remove(place).is_err() {
            p2p.set.poll(16).unwrap();
        }
    });
}

/// A set is made on the stack, several times over without optimization.
fn on_a_large_stack(test: fn()) {
    const STACK: usize = 64 << 20;
    let thread = thread::Builder::new().stack_size(STACK).spawn(test).unwrap();
    thread.join().unwrap();
}

#[test]
fn a_peer_that_is_missing_is_never_ok() {
    on_a_large_stack(miss_a_peer);
}

fn miss_a_peer() {
    let (domain, p2p) = open();
    let (gone, other) = (add(p2p), add(p2p));
    let mut bytes = [0u8; POLYRAIL_CARD_BYTES];
    let (start, mut length, mut link) = (bytes.as_mut_ptr().cast(), 0, ptr::null_mut::<Link>());
    lose(p2p, gone);
    // SAFETY: all pointers are to what they should be.
    unsafe {
        let card = polyrail_p2p_card(p2p, gone, start, bytes.len(), &raw mut length);
        assert_eq!(card, Code::Peer);
        ok(polyrail_p2p_card(p2p, other, start, bytes.len(), &raw mut length));
        assert_eq!(polyrail_p2p_connect(p2p, gone, start, length), Code::Peer);
        ok(polyrail_link_open(c"127.0.0.1:1".as_ptr(), ptr::null(), &raw mut link));
        assert_eq!(polyrail_p2p_meet(p2p, gone, link, ptr::null(), 0), Code::Peer);
        // The call itself was wrong: the link is still the caller's.
        ok(polyrail_link_close(link));
        let room = POLYRAIL_MESSAGE_BYTES;
        let control = polyrail_p2p_next_control(p2p, gone, start, room, &raw mut length);
        assert_eq!(control, Code::Peer);
        let told = P2pMessage::Wanted { place: 0 }.to_json();
        let heard = polyrail_p2p_control(p2p, gone, told.as_ptr().cast(), told.len());
        assert_eq!(heard, Code::Peer);
        let mut info = PeerInfo { size: size_of::<PeerInfo>() as u32, ..zeroed() };
        assert_eq!(polyrail_p2p_info(p2p, gone, &raw mut info), Code::Peer);
        let rails = polyrail_p2p_rails(p2p, gone, ptr::null_mut(), 0, &raw mut length);
        assert_eq!(rails, Code::Peer);
    }
    assert_eq!(polyrail_p2p_control_lost(p2p, gone), Code::Peer);
    assert_eq!(polyrail_p2p_fail(p2p, gone), Code::Peer);
    assert_eq!(polyrail_p2p_remove(p2p, gone), Code::Peer);
    ok(polyrail_p2p_fail(p2p, other));
    ok(polyrail_p2p_close(p2p));
    ok(polyrail_domain_close(domain));
}

#[test]
fn a_panic_becomes_a_code_and_the_object_can_only_be_closed() {
    on_a_large_stack(panic_within);
}

fn panic_within() {
    let (domain, p2p) = open();
    let mut peer = add(p2p);
    software(p2p, |p2p| p2p.kept.clear());
    // SAFETY: all pointers are to what they should be.
    unsafe {
        let mut info = PeerInfo { size: size_of::<PeerInfo>() as u32, ..zeroed() };
        assert_eq!(polyrail_p2p_info(p2p, peer, &raw mut info), Code::Panic);
        let words = CStr::from_ptr(polyrail_last_error()).to_str().unwrap();
        assert!(words.starts_with("a fault of this library: index out of bounds"), "{words}");
        assert_eq!(polyrail_p2p_info(p2p, peer, &raw mut info), Code::Poisoned);
        assert_eq!(polyrail_p2p_add(p2p, &raw mut peer), Code::Poisoned);
        assert_eq!(polyrail_p2p_poll(p2p, 1), Code::Poisoned);
    }
    assert_eq!(polyrail_p2p_drive(p2p), Code::Poisoned);
    assert_eq!(polyrail_p2p_fail(p2p, peer), Code::Poisoned);
    ok(polyrail_p2p_close(p2p));
    assert_eq!(polyrail_p2p_close(p2p), Code::Handle);
    ok(polyrail_domain_close(domain));
}
