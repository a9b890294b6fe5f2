//! A program that sleeps between its polls, and never calls `polyrail_peers_drive`.

use super::*;

/// Fewer polls than a fast loop makes between two looks at the clock.
const POLLS: usize = 100;

const SLEEP: Duration = Duration::from_millis(20);

fn poll(kind: For, peers: *mut Peers) {
    let mut count = 0;
    ok(match kind {
        // SAFETY: no completion is stored, and the other pointer is to a number.
        For::Requests => unsafe { polyrail_peers_poll(peers, ptr::null_mut(), 0, &raw mut count) },
        For::Messages => polyrail_messages_poll(peers, 16),
    });
}

/// Polls both ends and sleeps, until each of `ends` has an event of this kind.
fn until(kind: For, both: [*mut Peers; 2], ends: &[*mut Peers], event: EventKind) {
    let mut left = ends.to_vec();
    for _ in 0..POLLS {
        both.iter().for_each(|peers| poll(kind, *peers));
        left.retain(|peers| {
            let mut any = exclusive(*peers).unwrap();
            match crate::events::tests::take(&mut any.common.events) {
                Ok((taken, words)) => {
                    assert_eq!(taken.kind, event as u32, "{}", String::from_utf8_lossy(&words));
                    false
                }
                Err(_) => true,
            }
        });
        if left.is_empty() {
            return;
        }
        thread::sleep(SLEEP);
    }
    panic!("{} ends without {event:?} after {POLLS} polls", left.len());
}

#[test]
fn a_loop_that_sleeps_between_polls_connects_and_receives_messages() {
    for_both(poll_slowly);
}

fn poll_slowly(kind: For) {
    const MESSAGE_MS: u32 = 60_000;
    let ends = [open(kind), open(kind)];
    let both = ends.map(|(_, peers)| peers);
    let peers = both.map(|peers| (peers, add(peers)));
    begin_to_meet(peers, MESSAGE_MS);
    until(kind, both, &both, EventKind::Connected);
    let [_, (far, peer)] = peers;
    // SAFETY: a text with this length.
    ok(unsafe { polyrail_peers_say(far, peer, c"last".as_ptr().cast(), 4) });
    until(kind, both, &both[..1], EventKind::Message);
    for (domain, peers) in ends {
        ok(polyrail_peers_close(peers));
        ok(polyrail_domain_close(domain));
    }
}
