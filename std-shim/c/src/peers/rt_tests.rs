//! Faults of this library. If a set lacks a connection that has a number, every function reports
//! this, and none reports success. A panic is reported as a code, and the object can then only be
//! closed.

use super::*;
use crate::code::Code;
use crate::domain::{Devices, devices, polyrail_domain_close, polyrail_domain_open};
use crate::keys::Local;
use crate::link::{
    polyrail_link_close, polyrail_link_open, polyrail_listener_accept, polyrail_listener_address,
    polyrail_listener_close, polyrail_listener_open,
};
use crate::region::{polyrail_region_register, polyrail_remote_import};
use crate::table::{self, exclusive};
use crate::types::{
    Backend, Domain, DomainOptions, EndpointOptions, Event, EventKind, Link, LinkOptions,
    POLYRAIL_ACCESS_LOCAL_WRITE, POLYRAIL_ACCESS_REMOTE_WRITE, POLYRAIL_CARD_BYTES,
    POLYRAIL_MESSAGE_BYTES, PeerInfo, Peers, RailFailure, Region, Remote,
};
use crate::version::polyrail_last_error;
use polyrail::nic::{Fault, When};
use std::ffi::{CStr, c_char};
use std::mem::zeroed;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

mod aside;
mod cancel;
mod flood;
mod options;
#[cfg(feature = "tcp")]
mod over_tcp;
#[cfg(feature = "tcp")]
mod pairs;
mod rails;
mod raw;
mod slow;

/// The kind of peers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum For {
    Requests,
    Messages,
}

fn ok(code: Code) {
    assert_eq!(code, Code::Ok);
}

/// Opens software NICs, with these further options.
fn open_domain(choose: impl FnOnce(&mut DomainOptions)) -> *mut Domain {
    let mut domain = ptr::null_mut();
    // SAFETY: zeros are values of options, and all pointers are to what they should be.
    unsafe {
        let mut options = DomainOptions {
            size: size_of::<DomainOptions>() as u32,
            backend: Backend::Software as u32,
            ..zeroed()
        };
        choose(&mut options);
        ok(polyrail_domain_open(&raw const options, &raw mut domain));
    }
    domain
}

fn open(kind: For) -> (*mut Domain, *mut Peers) {
    let domain = open_domain(|_| {});
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

fn inject(domain: *mut Domain, fault: Fault) {
    let Ok(Devices::Software(devices)) = devices(domain) else { panic!("software NICs") };
    devices[0].device().inject(When::Now, fault);
}

fn register(domain: *mut Domain, memory: &mut [u8]) -> *mut Region {
    let mut region = ptr::null_mut();
    let access = POLYRAIL_ACCESS_LOCAL_WRITE | POLYRAIL_ACCESS_REMOTE_WRITE;
    let start = memory.as_mut_ptr().cast();
    // SAFETY: the memory outlives the region, which is closed before the memory is accessed.
    ok(unsafe { polyrail_region_register(domain, start, memory.len(), access, &raw mut region) });
    region
}

fn import(region: *mut Region) -> *mut Remote {
    let mut remote = ptr::null_mut();
    let words = table::words(region).unwrap_or_else(|_| panic!("a region"));
    let bytes = Local::from_words(&words).for_peers().encode();
    // SAFETY: all pointers are to what they should be.
    ok(unsafe { polyrail_remote_import(bytes.as_ptr().cast(), bytes.len(), &raw mut remote) });
    remote
}

/// The next transitions of queue pairs to RTR find no path.
fn refuse_paths(domain: *mut Domain, transitions: u32) {
    inject(domain, Fault::RefuseRtr { transitions });
}

/// Transitions of queue pairs to RTR take this long.
fn search_paths(domain: *mut Domain, search: Duration) {
    inject(domain, Fault::SearchPaths(search));
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

/// Without optimization, several copies of a set are on the stack while it is made.
fn on_a_deep_stack(test: impl FnOnce() + Send + 'static) {
    const STACK: usize = 64 << 20;
    thread::Builder::new().stack_size(STACK).spawn(test).unwrap().join().unwrap();
}

fn for_both(test: fn(For)) {
    for kind in [For::Requests, For::Messages] {
        on_a_deep_stack(move || test(kind));
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

/// Two ends that have begun to meet, over a link whose parts each have to be done in `message_ms`.
fn begin_to_meet(ends: [(*mut Peers, u64); 2], message_ms: u32) {
    let (mut listener, mut links) = (ptr::null_mut(), [ptr::null_mut::<Link>(); 2]);
    let (mut address, mut length) = ([0u8; 64], 0);
    // SAFETY: zeros are values of options, and all pointers are to what they should be.
    unsafe {
        let options = LinkOptions { size: size_of::<LinkOptions>() as u32, message_ms, ..zeroed() };
        ok(polyrail_listener_open(c"127.0.0.1:0".as_ptr(), &raw const options, &raw mut listener));
        let start = address.as_mut_ptr().cast::<c_char>();
        ok(polyrail_listener_address(listener, start, address.len(), &raw mut length));
        ok(polyrail_link_open(start, &raw const options, &raw mut links[0]));
        let (here, peer) = ends[0];
        ok(polyrail_peers_meet(here, peer, links[0], ptr::null(), 0));
        while polyrail_listener_accept(listener, &raw mut links[1]) != Code::Ok {
            ok(polyrail_peers_drive(here));
        }
        let (there, peer) = ends[1];
        ok(polyrail_peers_meet(there, peer, links[1], ptr::null(), 0));
        ok(polyrail_listener_close(listener));
    }
}

/// Returns the next event of a peer, once there is one: its kind, and its words.
fn next_event(drive: [*mut Peers; 2], (of, peer): (*mut Peers, u64)) -> (u32, String) {
    let mut bytes = vec![0u8; POLYRAIL_MESSAGE_BYTES];
    loop {
        drive.iter().for_each(|peers| ok(polyrail_peers_drive(*peers)));
        // SAFETY: zeros are values of an event, and all pointers are to what they should be.
        let (taken, event) = unsafe {
            let mut event = Event { size: size_of::<Event>() as u32, ..zeroed() };
            let start = bytes.as_mut_ptr().cast();
            (polyrail_peers_next_event(of, &raw mut event, start, bytes.len()), event)
        };
        if taken == Code::Ok && event.peer == peer {
            let words = String::from_utf8_lossy(&bytes[..event.length as usize]);
            return (event.kind, words.into_owned());
        }
        assert!([Code::Ok, Code::NotNow].contains(&taken), "{taken:?}");
    }
}

/// The ends of two domains, one of which finds no path a few times, then both.
#[test]
fn paths_that_are_found_late_are_waited_for() {
    for_both(wait_for_paths);
}

fn wait_for_paths(kind: For) {
    const MESSAGE_MS: u32 = 60_000;
    for refused in [[2, 0], [0, 2], [2, 2]] {
        let ends = [open(kind), open(kind)];
        let both = ends.map(|(_, peers)| peers);
        let peers = both.map(|peers| (peers, add(peers)));
        for ((domain, _), transitions) in ends.iter().zip(refused) {
            refuse_paths(*domain, transitions);
        }
        begin_to_meet(peers, MESSAGE_MS);
        for (at, (peers, peer)) in peers.into_iter().enumerate() {
            let (kind, words) = next_event(both, (peers, peer));
            assert_eq!(kind, EventKind::Connected as u32, "end {at} of {refused:?}: {words}");
        }
        for (domain, peers) in ends {
            ok(polyrail_peers_close(peers));
            ok(polyrail_domain_close(domain));
        }
    }
}

/// The port goes down and comes up while the peer is awaited.
#[test]
fn a_port_that_goes_down_before_the_peer_comes_is_waited_for() {
    for_both(wait_for_a_port);
}

fn wait_for_a_port(kind: For) {
    const MESSAGE_MS: u32 = 60_000;
    let ends = [open(kind), open(kind)];
    let both = ends.map(|(_, peers)| peers);
    let peers = both.map(|peers| (peers, add(peers)));
    for fault in [Fault::LinkDown, Fault::LinkUp] {
        inject(ends[0].0, fault);
        let begin = Instant::now();
        // Longer than the events of devices are read again.
        while begin.elapsed() < Duration::from_millis(20) {
            ok(polyrail_peers_drive(both[0]));
        }
    }
    begin_to_meet(peers, MESSAGE_MS);
    for (at, peer) in peers.into_iter().enumerate() {
        let (kind, words) = next_event(both, peer);
        assert_eq!(kind, EventKind::Connected as u32, "end {at}: {words}");
    }
    for (domain, peers) in ends {
        ok(polyrail_peers_close(peers));
        ok(polyrail_domain_close(domain));
    }
}

#[test]
fn paths_that_are_never_found_are_reported_when_the_time_is_up() {
    for_both(miss_paths);
}

fn miss_paths(kind: For) {
    const MESSAGE_MS: u32 = 2000;
    let ends = [open(kind), open(kind)];
    let both = ends.map(|(_, peers)| peers);
    for without in [0, 1] {
        let peers = both.map(|peers| (peers, add(peers)));
        refuse_paths(ends[without].0, u32::MAX);
        let begin = Instant::now();
        begin_to_meet(peers, MESSAGE_MS);
        let (kind, words) = next_event(both, peers[without]);
        assert_eq!(kind, EventKind::NotConnected as u32, "{words}");
        assert!(words.contains("no path to the peer"), "end {without}: {words}");
        assert!(begin.elapsed() >= Duration::from_millis(MESSAGE_MS.into()) * 4 / 5);
        let (kind, words) = next_event(both, peers[1 - without]);
        assert_eq!(kind, EventKind::NotConnected as u32, "{words}");
        assert!(words.contains("no path to the peer"), "the other end of {without}: {words}");
        refuse_paths(ends[without].0, 0);
    }
    for (domain, peers) in ends {
        ok(polyrail_peers_close(peers));
        ok(polyrail_domain_close(domain));
    }
}
