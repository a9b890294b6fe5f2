//! Faults of this library. A set may lack a member that has a number: every function says so, and none that it did what
//! it did not. What panics ends with a code, and refuses everything after that.

use super::object::{AnyPeers, PeersOn};
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
use polyrail::nic::ProtectionDomain;
use std::ffi::CStr;
use std::mem::zeroed;
use std::ptr;

fn ok(code: Code) {
    assert_eq!(code, Code::Ok);
}

fn open() -> (*mut Domain, *mut Peers) {
    let (mut domain, mut peers) = (ptr::null_mut(), ptr::null_mut());
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
        ok(polyrail_peers_open(domain, &raw const options, &raw mut peers));
    }
    (domain, peers)
}

fn add(peers: *mut Peers) -> u64 {
    let mut peer = 0;
    // SAFETY: it is a place for a number.
    ok(unsafe { polyrail_peers_add(peers, ptr::null(), &raw mut peer) });
    peer
}

fn software<R>(peers: *mut Peers, change: impl FnOnce(&mut PeersOn<ProtectionDomain>) -> R) -> R {
    let mut any = exclusive(peers).unwrap();
    #[cfg_attr(not(feature = "verbs"), expect(irrefutable_let_patterns))]
    let AnyPeers::Software(peers) = &mut *any else { panic!("these are software NICs") };
    change(peers)
}

/// Takes the member away, but not its number.
fn lose(peers: *mut Peers, peer: u64) {
    software(peers, |peers| {
        let place = peers.numbers.place(peer).unwrap();
        drop(peers.set.remove(place).unwrap());
    });
}

#[test]
fn a_peer_that_is_missing_is_never_ok() {
    let (domain, peers) = open();
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
        // The call itself was wrong: the link is still the caller's.
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
        let received = polyrail_peers_receive(peers, gone, 1, ptr::null_mut(), 0, 0);
        assert_eq!(received, Code::Peer);
    }
    assert_eq!(polyrail_peers_control_lost(peers, gone), Code::Peer);
    assert_eq!(polyrail_peers_fail(peers, gone), Code::Peer);
    assert_eq!(polyrail_peers_fail_rail(peers, gone, 0), Code::Peer);
    assert_eq!(polyrail_peers_remove(peers, gone), Code::Peer);
    ok(polyrail_peers_fail(peers, other));
    ok(polyrail_peers_close(peers));
    ok(polyrail_domain_close(domain));
}

#[test]
fn a_panic_becomes_a_code_and_the_object_can_only_be_closed() {
    let (domain, peers) = open();
    let mut peer = add(peers);
    let mut count = 0;
    software(peers, |peers| peers.kept.clear());
    // SAFETY: all pointers are to what they should be.
    unsafe {
        let mut info = PeerInfo { size: size_of::<PeerInfo>() as u32, ..zeroed() };
        assert_eq!(polyrail_peers_info(peers, peer, &raw mut info), Code::Panic);
        let words = CStr::from_ptr(polyrail_last_error()).to_str().unwrap();
        assert!(words.starts_with("a fault of this library: index out of bounds"), "{words}");
        assert_eq!(polyrail_peers_info(peers, peer, &raw mut info), Code::Poisoned);
        assert_eq!(polyrail_peers_add(peers, ptr::null(), &raw mut peer), Code::Poisoned);
        let polled = polyrail_peers_poll(peers, ptr::null_mut(), 0, &raw mut count);
        assert_eq!(polled, Code::Poisoned);
    }
    assert_eq!(polyrail_peers_drive(peers), Code::Poisoned);
    assert_eq!(polyrail_peers_fail(peers, peer), Code::Poisoned);
    ok(polyrail_peers_close(peers));
    assert_eq!(polyrail_peers_close(peers), Code::Handle);
    ok(polyrail_domain_close(domain));
}
