//! The ring of requests and its cursors, alone. `core/docs/architecture.md`, "One ring with four
//! cursors".

use polyrail_core::internals::WrTracker;
use polyrail_core::virtual_qp::TrackerFull;

/// One request on its way through the ring. Each cursor takes the place of a queue of the
/// reference.
#[test]
fn a_request_passes_one_cursor_after_the_other() {
    let mut tracker = WrTracker::<u32, 4>::new(0);
    let id = tracker.add(7).unwrap();
    assert_eq!(tracker.find(id), Some(&7));
    assert_eq!((tracker.front_pending(), tracker.unreported_count()), (Some(id), 1));

    tracker.pop_pending();
    assert_eq!((tracker.front_pending(), tracker.pending_count()), (None, 0));
    assert_eq!((tracker.front_in_flight(), tracker.unreported_count()), (Some(id), 1));

    *tracker.find_mut(id).unwrap() -= 1;
    assert_eq!(tracker.front_finished(), None, "partial completions change no queue");

    tracker.pop_in_flight();
    assert_eq!(tracker.front_finished(), Some(id));
    tracker.pop_finished();
    assert_eq!((tracker.find(id), tracker.unreported_count()), (None, 0));
    tracker.invariants();
}

/// Ids count up and are not reused, so that a late completion cannot name another request.
#[test]
fn the_tracker_never_gives_an_id_twice_and_refuses_when_full() {
    let mut tracker = WrTracker::<u8, 2>::new(0);
    for expected in 0..5 {
        assert_eq!(tracker.add(1), Ok(expected));
        tracker.pop_pending();
        tracker.pop_in_flight();
        tracker.pop_finished();
    }
    tracker.add(1).unwrap();
    tracker.add(2).unwrap();
    assert_eq!(tracker.add(3), Err(TrackerFull { capacity: 2 }));
    assert_eq!(tracker.take_back(), Some(2));
    assert_eq!(tracker.add(4), Ok(6));
}
