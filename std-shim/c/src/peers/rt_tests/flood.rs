//! Peers that send more messages than the program takes events for.

use super::*;
use crate::types::Listener;

/// How long anything may take, on a machine that does other things too.
const LONG: Duration = Duration::from_secs(600);

/// Peers that flood their links; a quiet peer follows them.
const FLOODERS: usize = 5;

/// More messages than are read of any peer at once.
const FLOOD: usize = 1000;

fn next_event(peers: *mut Peers) -> Option<(EventKind, u64)> {
    let mut bytes = [0u8; POLYRAIL_MESSAGE_BYTES];
    // SAFETY: zeros are values of events, and all pointers are to what they should be.
    let (code, event) = unsafe {
        let mut event = Event { size: size_of::<Event>() as u32, ..zeroed() };
        let start = bytes.as_mut_ptr().cast();
        let code = polyrail_peers_next_event(peers, &raw mut event, start, bytes.len());
        (code, event)
    };
    if code == Code::NotNow {
        return None;
    }
    ok(code);
    let kinds = [EventKind::Connected, EventKind::Message];
    let kind = kinds.into_iter().find(|kind| *kind as u32 == event.kind);
    Some((kind.unwrap_or_else(|| panic!("an event of kind {}", event.kind)), event.peer))
}

/// Sends a message, and returns whether the link had room for it.
fn say(peers: *mut Peers, peer: u64) -> bool {
    // SAFETY: the message has a byte.
    match unsafe { polyrail_peers_say(peers, peer, c"m".as_ptr().cast(), 1) } {
        Code::NotNow => false,
        code => {
            ok(code);
            true
        }
    }
}

/// Adds a peer to each of two objects, and connects the two peers over a link.
fn meet(near: *mut Peers, far: *mut Peers, listener: *mut Listener) -> [u64; 2] {
    let (here, there) = (add(near), add(far));
    let (mut address, mut length) = ([0u8; 64], 0);
    let (mut link, mut accepted) = (ptr::null_mut::<Link>(), ptr::null_mut::<Link>());
    // SAFETY: all pointers are to what they should be.
    unsafe {
        let text = address.as_mut_ptr().cast();
        ok(polyrail_listener_address(listener, text, address.len(), &raw mut length));
        ok(polyrail_link_open(text, ptr::null(), &raw mut link));
        ok(polyrail_peers_meet(far, there, link, ptr::null(), 0));
        let begin = Instant::now();
        loop {
            ok(polyrail_peers_drive(far));
            match polyrail_listener_accept(listener, &raw mut accepted) {
                Code::NotNow => assert!(begin.elapsed() < LONG, "the link did not arrive"),
                code => break ok(code),
            }
        }
        ok(polyrail_peers_meet(near, here, accepted, ptr::null(), 0));
    }
    let begin = Instant::now();
    let mut connected = 0;
    while connected < 2 {
        assert!(begin.elapsed() < LONG, "the two peers did not connect");
        for peers in [near, far] {
            ok(polyrail_peers_drive(peers));
            while let Some(event) = next_event(peers) {
                assert_eq!(event.0, EventKind::Connected);
                connected += 1;
            }
        }
    }
    [here, there]
}

#[test]
fn peers_that_flood_their_links_do_not_silence_another_peer() {
    for_both(flood);
}

/// Every drive finds more messages of the flooders than it reads.
fn flood(kind: For) {
    let (domain, near) = open(kind);
    let far = open_peers(domain, kind);
    let mut listener = ptr::null_mut();
    // SAFETY: all pointers are to what they should be.
    ok(unsafe { polyrail_listener_open(c"127.0.0.1:0".as_ptr(), ptr::null(), &raw mut listener) });
    let pairs: Vec<_> = (0..=FLOODERS).map(|_| meet(near, far, listener)).collect();
    let (quiet, flooders) = pairs.split_last().unwrap();
    assert!(say(far, quiet[1]));
    let mut flooded = [0; FLOODERS];
    let begin = Instant::now();
    let mut has_come = false;
    while !has_come {
        assert!(begin.elapsed() < LONG, "the message of the quiet peer did not arrive");
        // Some of what is sent is on its way, or waits in the system.
        for (flooded, flooder) in flooded.iter_mut().zip(flooders) {
            while *flooded < FLOOD && say(far, flooder[1]) {
                *flooded += 1;
            }
        }
        ok(polyrail_peers_drive(near));
        while let Some((kind, peer)) = next_event(near) {
            assert_eq!(kind, EventKind::Message);
            has_come |= peer == quiet[0];
            flooders.iter().position(|one| one[0] == peer).into_iter().for_each(|place| {
                flooded[place] -= 1;
            });
        }
    }
    ok(polyrail_peers_close(near));
    ok(polyrail_peers_close(far));
    ok(polyrail_listener_close(listener));
    ok(polyrail_domain_close(domain));
}
