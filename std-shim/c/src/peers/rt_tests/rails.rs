//! A rail that fails, and what both kinds of peers report about it.

use super::*;
use crate::region::polyrail_region_close;
use crate::types::State;

fn open_two(kind: For, names: &CStr) -> (*mut Domain, *mut Peers) {
    let domain = open_domain(|options| options.devices = names.as_ptr());
    (domain, open_peers(domain, kind))
}

/// Returns the next event of an end and its text, once there is one.
fn next(drive: [*mut Peers; 2], of: *mut Peers) -> (Event, String) {
    loop {
        drive.iter().for_each(|peers| ok(polyrail_peers_drive(*peers)));
        let taken = crate::events::tests::take(&mut exclusive(of).unwrap().common.events);
        if let Ok((event, bytes)) = taken {
            return (event, String::from_utf8(bytes).unwrap());
        }
    }
}

fn info(peers: *mut Peers, peer: u64) -> (PeerInfo, String) {
    // SAFETY: zeros are a value of the structure, and the pointer is to it.
    unsafe {
        let mut info = PeerInfo { size: size_of::<PeerInfo>() as u32, ..zeroed() };
        ok(polyrail_peers_info(peers, peer, &raw mut info));
        (info, CStr::from_ptr(info.words.as_ptr()).to_str().unwrap().to_owned())
    }
}

#[test]
fn the_failure_of_a_rail_has_one_text_and_code() {
    for_both(fail_a_rail);
}

fn fail_a_rail(kind: For) {
    const MESSAGE_MS: u32 = 60_000;
    let ends = [open_two(kind, c"near0,near1"), open_two(kind, c"far0,far1")];
    let both = ends.map(|(_, peers)| peers);
    let [near, far] = both.map(|peers| (peers, add(peers)));
    begin_to_meet([near, far], MESSAGE_MS);
    for peers in both {
        assert_eq!(next(both, peers).0.kind, EventKind::Connected as u32);
    }
    inject(ends[0].0, Fault::LinkDown);
    let (failed, words) = next(both, near.0);
    let event = (failed.kind, failed.code);
    assert_eq!(event, (EventKind::RailFailed as u32, Code::Device as i32), "{words}");
    assert!(words.contains("rail 0 (device near0") && !words.contains('{'), "{words}");
    let (degraded, first) = info(near.0, near.1);
    assert_eq!((degraded.state, first), (State::Degraded as u32, words));
    assert!((1..degraded.rails).contains(&degraded.rails_in_service));

    ok(polyrail_peers_fail(near.0, near.1));
    let (gone, why) = info(near.0, near.1);
    assert_eq!((gone.state, gone.rails_in_service), (State::Failed as u32, 0), "{why}");
    if kind == For::Messages {
        refuse_to_send(ends[0].0, near, &why);
    }
    for (domain, peers) in ends {
        ok(polyrail_peers_close(peers));
        ok(polyrail_domain_close(domain));
    }
}

/// The error of a call has the text of the connection's failure.
fn refuse_to_send(domain: *mut Domain, (peers, peer): (*mut Peers, u64), why: &str) {
    const BYTES: usize = 64;
    let mut memory = [0u8; BYTES];
    let region = register(domain, &mut memory);
    let mut request = 0;
    // SAFETY: the pointer is to a place for a number.
    unsafe {
        let sent =
            polyrail_messages_send(peers, peer, region, 0, BYTES as u32, 1, &raw mut request);
        assert_eq!(sent, Code::Failed);
        assert_eq!(CStr::from_ptr(polyrail_last_error()).to_str(), Ok(why));
    }
    ok(polyrail_region_close(region));
}
