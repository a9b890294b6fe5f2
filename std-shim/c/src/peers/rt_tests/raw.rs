//! Peers that do not keep the rules: their ends of links are driven by hand.

use super::*;
use crate::link::{Meeting, Message, OurHello, OurLink};
use crate::types::Listener;
use polyrail::endpoint;
use polyrail::link::{HexBytes, Reach, Timeouts};
use polyrail::p2p::{self, End, QueuePairId};
use polyrail::virtual_qp::RailId;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

/// How long anything may take, on a machine that does other things too.
const LONG: Duration = Duration::from_secs(600);

/// One end of a link, whose other end belongs to a peer that has sent its hello.
struct Raw {
    link: OurLink,
    /// Where the other end belongs to, and what it accepts links with.
    near: *mut Peers,
    listener: *mut Listener,
    /// The address in this end's hello.
    reach: Reach,
}

impl Raw {
    /// Connects a peer of `near` in the name of a peer of `far`.
    fn new(near: *mut Peers, far: *mut Peers, options: &LinkOptions) -> Self {
        let (here, there) = (add(near), add(far));
        let reach = {
            let mut any = exclusive(far).unwrap();
            let found = any.find(there).unwrap();
            found.set.reach(found.place).unwrap()
        };
        let (mut listener, mut accepted) = (ptr::null_mut(), ptr::null_mut::<Link>());
        let (mut text, mut length) = ([0u8; 64], 0);
        // SAFETY: all pointers are to what they should be.
        unsafe {
            let any = c"127.0.0.1:0".as_ptr();
            ok(polyrail_listener_open(any, options, &raw mut listener));
            let start = text.as_mut_ptr().cast();
            ok(polyrail_listener_address(listener, start, text.len(), &raw mut length));
        }
        let address: SocketAddr = str::from_utf8(&text[..length]).unwrap().parse().unwrap();
        let mut link = OurLink::begin(&[address], &Timeouts::default(), None).unwrap();
        let purpose = Some(Meeting { hello: HexBytes(Vec::new()), devices: Vec::new() });
        let hello = OurHello::without_memory(reach.clone(), purpose, link.session());
        link.offer(&Message::Hello(hello)).unwrap();
        let begin = Instant::now();
        // SAFETY: all pointers are to what they should be.
        while unsafe { polyrail_listener_accept(listener, &raw mut accepted) } != Code::Ok {
            assert!(link.try_recv().unwrap().is_none() && begin.elapsed() < LONG);
        }
        // SAFETY: as above.
        ok(unsafe { polyrail_peers_meet(near, here, accepted, ptr::null(), 0) });
        let mut raw = Self { link, near, listener, reach };
        while !matches!(raw.link.try_recv().unwrap(), Some(Message::Hello(_))) {
            assert!(raw.event().is_none() && begin.elapsed() < LONG);
        }
        raw
    }

    /// Drives the other end, and returns the kind of its next event.
    fn event(&mut self) -> Option<u32> {
        let (mut bytes, mut link) = ([0u8; POLYRAIL_MESSAGE_BYTES], ptr::null_mut());
        // SAFETY: zeros are values of an event, and all pointers are to what they should be.
        unsafe {
            // No other link comes, but this one may be resumed.
            assert_eq!(polyrail_listener_accept(self.listener, &raw mut link), Code::NotNow);
            ok(polyrail_peers_drive(self.near));
            let mut event = Event { size: size_of::<Event>() as u32, ..zeroed() };
            let start = bytes.as_mut_ptr().cast();
            match polyrail_peers_next_event(self.near, &raw mut event, start, bytes.len()) {
                Code::NotNow => None,
                code => {
                    ok(code);
                    Some(event.kind)
                }
            }
        }
    }

    fn wait_for(&mut self, kind: EventKind) {
        let begin = Instant::now();
        while self.event() != Some(kind as u32) {
            assert!(begin.elapsed() < LONG, "no {kind:?}");
        }
    }

    /// Breaks the stream, so that both ends find a reset.
    fn cut(&self) {
        let family = libc::AF_UNSPEC as libc::sa_family_t;
        let nowhere = libc::sockaddr { sa_family: family, sa_data: [0; 14] };
        let length = size_of_val(&nowhere) as libc::socklen_t;
        let Some(stream) = self.link.fd() else { return };
        // SAFETY: an address of that length.
        assert_eq!(unsafe { libc::connect(stream.as_raw_fd(), &raw const nowhere, length) }, 0);
    }
}

/// Runs a test with two objects for peers.
fn with_peers(kind: For, test: impl FnOnce(*mut Peers, *mut Peers)) {
    let (domain, near) = open(kind);
    let far = open_peers(domain, kind);
    test(near, far);
    ok(polyrail_peers_close(near));
    ok(polyrail_peers_close(far));
    ok(polyrail_domain_close(domain));
}

/// The answer to an offer that was not made, which gets a message back.
fn answer(reach: &Reach) -> Message {
    if let Some(address) = reach.requests() {
        let (rail, generation, address) = (RailId::Data(0), 1, address.rails[0]);
        let with = endpoint::ReplacementAddress { rail, generation, qp_num: 1, address };
        return Message::Heal(endpoint::HealingMessage::Answer { to: 1, with });
    }
    let rail = QueuePairId { end: End::Sender, index: 0 };
    let address = reach.messages().unwrap().sending[0].address;
    let with = p2p::ReplacementAddress { rail, generation: 1, qp_num: 1, address };
    let text = p2p::HealingMessage::Answer { to: 1, with }.to_json();
    Message::Note { bytes: HexBytes([&[crate::link::RAILS], text.as_bytes()].concat()) }
}

#[test]
fn a_link_ends_whose_peer_floods_it_with_repair_messages_and_reads_nothing() {
    for_both(|kind| with_peers(kind, flood));
}

/// First the answers fill the link, then they wait in the peer, and then what would be answered is
/// not read any more. On a slow machine the peer's time for a message may be over before that is
/// certain, so the link may have ended already.
fn flood(near: *mut Peers, far: *mut Peers) {
    /// Turns without a byte after which nothing is read any more.
    const TURNS: usize = 1000;
    /// Messages of a turn. A stream that has failed takes any number.
    const BURST: usize = 10_000;
    // SAFETY: zeros are values of options.
    let options = LinkOptions { size: size_of::<LinkOptions>() as u32, ..unsafe { zeroed() } };
    let mut raw = Raw::new(near, far, &options);
    raw.link.offer(&Message::Ready {}).unwrap();
    raw.wait_for(EventKind::Connected);
    let answer = answer(&raw.reach);
    let (mut turns, mut event) = (0, None);
    while turns < TURNS && event.is_none() {
        turns += 1;
        for _ in 0..BURST {
            if !raw.link.go_on_sending() {
                break;
            }
            raw.link.offer(&answer).unwrap();
            turns = 0;
        }
        event = raw.event();
    }
    // Another end takes its place, which is not connected.
    let gone = OurLink::pair().unwrap().0;
    drop(std::mem::replace(&mut raw.link, gone));
    match event {
        None => raw.wait_for(EventKind::LinkLost),
        Some(kind) => assert_eq!(kind, EventKind::LinkLost as u32),
    }
    ok(polyrail_listener_close(raw.listener));
}

#[test]
fn a_peer_that_breaks_its_link_again_and_again_is_not_waited_for_without_end() {
    for_both(|kind| with_peers(kind, break_without_end));
}

/// It has sent its hello, and is never ready.
fn break_without_end(near: *mut Peers, far: *mut Peers) {
    let (size, message_ms, reconnect_ms) = (size_of::<LinkOptions>() as u32, 1000, 2000);
    // SAFETY: zeros are values of options.
    let options = LinkOptions { size, message_ms, reconnect_ms, ..unsafe { zeroed() } };
    let begin = Instant::now();
    let mut raw = Raw::new(near, far, &options);
    let mut cuts = 0;
    let mut due = Instant::now();
    loop {
        match raw.event() {
            None => assert!(begin.elapsed() < LONG, "it still waits after {cuts} cuts"),
            Some(kind) => break assert_eq!(kind, EventKind::NotConnected as u32),
        }
        if Instant::now() >= due {
            raw.cut();
            (cuts, due) = (cuts + 1, Instant::now() + Duration::from_secs(1));
        }
        if let Ok(Some(Message::Resumed {})) = raw.link.try_recv() {
            due = Instant::now() + Duration::from_millis(100);
        }
    }
    assert!(begin.elapsed() >= Duration::from_millis(message_ms.into()), "after {cuts} cuts");
    ok(polyrail_listener_close(raw.listener));
}
