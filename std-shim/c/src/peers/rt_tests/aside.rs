//! Peers to which the device searches for a path hold up neither calls nor other peers.

use super::*;
use crate::link::PeerLink;

/// How long a search takes. One queue pair of each peer is searched for at a time, since all are
/// between the same two ports.
const SEARCH: Duration = Duration::from_secs(4);

/// Peers without a path.
const LOST: usize = 5;

/// The time that the test may take: half of what the searches take one after another.
const LIMIT: Duration = Duration::from_secs(SEARCH.as_secs() * LOST as u64 / 2);

fn is_joining(peers: *mut Peers, peer: u64) -> bool {
    let mut peers = exclusive(peers).unwrap();
    let mut found = peers.find(peer).unwrap();
    found.state().link.as_ref().is_some_and(PeerLink::is_joining)
}

/// The pause after an attempt in vain is longer than the rest of the time.
#[test]
fn the_last_attempt_finds_a_path_that_came_during_a_long_pause() {
    const MESSAGE_MS: u32 = 10_000;
    let ends = [open(For::Requests), open(For::Requests)];
    let both = ends.map(|(_, peers)| peers);
    refuse_paths(ends[0].0, u32::MAX);
    search_paths(ends[0].0, Duration::from_secs(2));
    let peers = both.map(|peers| (peers, add(peers)));
    begin_to_meet(peers, MESSAGE_MS);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        both.iter().for_each(|peers| ok(polyrail_peers_drive(*peers)));
    }
    refuse_paths(ends[0].0, 0);
    search_paths(ends[0].0, Duration::from_millis(1));
    for peer in peers {
        let (kind, words) = next_event(both, peer);
        assert_eq!(kind, EventKind::Connected as u32, "{words}");
    }
    for (domain, peers) in ends {
        ok(polyrail_peers_close(peers));
        ok(polyrail_domain_close(domain));
    }
}

#[test]
fn peers_without_a_path_hold_nobody_up() {
    for_both(hold_up);
}

fn hold_up(kind: For) {
    const MESSAGE_MS: u32 = 60_000;
    let ends = [open(kind), open(kind)];
    let both = ends.map(|(_, peers)| peers);
    let well = both.map(|peers| (peers, add(peers)));
    begin_to_meet(well, MESSAGE_MS);
    for end in well {
        assert_eq!(next_event(both, end).0, EventKind::Connected as u32);
    }
    refuse_paths(ends[0].0, u32::MAX);
    search_paths(ends[0].0, SEARCH);
    let begin = Instant::now();
    let lost: Vec<_> = (0..LOST)
        .map(|_| {
            let ends = both.map(|peers| (peers, add(peers)));
            begin_to_meet(ends, MESSAGE_MS);
            ends
        })
        .collect();
    // Until each has the other side's hello, and has begun to search.
    while !lost.iter().all(|[(here, peer), _]| is_joining(*here, *peer)) {
        both.iter().for_each(|peers| ok(polyrail_peers_drive(*peers)));
        assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    }
    let (there, peer) = well[1];
    // SAFETY: the text has three bytes.
    ok(unsafe { polyrail_peers_say(there, peer, c"hey".as_ptr().cast(), 3) });
    let heard = next_event(both, well[0]);
    assert_eq!(heard, (EventKind::Message as u32, "hey".to_owned()));
    for [(here, peer), _] in lost {
        ok(polyrail_peers_fail(here, peer));
    }
    for (domain, peers) in ends {
        ok(polyrail_peers_close(peers));
        ok(polyrail_domain_close(domain));
    }
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
}
