//! Fragments: where they go, what waits, what resumes. The examples are those of the C++ design
//! that polyrail implements.

use polyrail_core::internals::WrTracker;
use polyrail_core::verbs::{SendFlags, WcOpcode};
use polyrail_core::virtual_qp::RailId;
use polyrail_core::virtual_qp::TrackerFull;
use polyrail_tests::rig::{self, Rig, Setup, done, ok};
use polyrail_tests::view::{Piece, inner, write};

const KB_100: u32 = 100 << 10;

/// 300 KB in fragments of 100 KB; they complete in the order 1, 2, 0.
#[test]
fn a_300_kb_message_in_three_fragments_is_reported_once_with_its_whole_length() {
    let mut rig = Setup::spray(3).fragment(KB_100).rig();
    rig.post([rig::write(42, 3 * KB_100)]);
    for rail in 0..3u32 {
        let expected = write(u64::from(rail * KB_100), KB_100);
        assert_eq!(rig.pieces(rail as usize), [[expected]], "rail {rail}");
    }
    for rail in [1, 2] {
        rig.rails[rail].complete(1);
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.qp.unreported_sends(), 1);
    }
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), [done(42, WcOpcode::RDMA_WRITE, 3 * KB_100)]);
    assert_eq!(rig.qp.unreported_sends(), 0);
}

/// Three fragments over two rails. A rail's share is one batch, to save doorbells and completions,
/// so rail 0 gets fragments 0 and 1 with one doorbell, of which only the second is signaled.
#[test]
fn a_rails_share_is_one_batch_whose_last_fragment_alone_is_signaled() {
    let mut rig = Setup::spray(2).fragment(KB_100).rig();
    rig.post([rig::write(42, 3 * KB_100)]);
    let first = inner(write(0, KB_100));
    let second = write(u64::from(KB_100), KB_100);
    assert_eq!(rig.pieces(0), [[first, second]]);
    assert_eq!(rig.pieces(1), [[write(u64::from(2 * KB_100), KB_100)]]);
    rig.rails[0].complete(2);
    rig.rails[1].complete(1);
    assert_eq!(rig.nic.unpolled(), 2, "two completions for three fragments");
    assert_eq!(rig.poll(), [done(42, WcOpcode::RDMA_WRITE, 3 * KB_100)]);
}

#[test]
fn the_last_fragment_is_shorter() {
    let mut rig = Setup::spray(2).fragment(1024).rig();
    rig.post([rig::write(1, 2 * 1024 + 1)]);
    assert_eq!(rig.pieces(0), [[inner(write(0, 1024)), write(1024, 1024)]]);
    assert_eq!(rig.pieces(1), [[write(2048, 1)]]);
}

#[test]
fn what_fits_one_fragment_is_one_fragment() {
    let mut rig = Setup::spray(4).fragment(1024).rig();
    rig.post([rig::write(1, 1024), rig::write(2, 1)]);
    assert_eq!(rig.pieces(0), [[write(0, 1024)]]);
    assert_eq!(rig.pieces(1), [[write(0, 1)]]);
    assert_eq!(rig.run_dry().len(), 2);
}

#[test]
fn every_fragment_carries_the_keys_of_its_rails_device() {
    let mut rig = Setup::spray(4).devices(2).fragment(128).rig();
    rig.post([rig::write(1, 4 * 128)]);
    for (rail, handle) in rig.rails.iter().enumerate() {
        let request = handle.sends()[0];
        let keys = rig::keys_on(rail as u32 % 2);
        assert_eq!((request.sge.lkey(), request.rkey), (keys.lkey, keys.rkey), "rail {rail}");
    }
}

/// Full queue pairs: one slot on each of two rails, three fragments.
#[test]
fn a_request_that_finds_the_rails_full_goes_on_where_it_stopped() {
    let mut rig = Setup::spray(2).fragment(KB_100).depth(1).rig();
    rig.post([rig::write(42, 3 * KB_100 + 5)]);
    assert_eq!(rig.pieces(0), [[write(0, KB_100)]]);
    assert_eq!(rig.pieces(1), [[write(u64::from(KB_100), KB_100)]]);
    rig.rails[1].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(1), [[write(u64::from(2 * KB_100), KB_100)]], "the freed rail");
    assert_eq!(rig.pieces(0), Vec::<Vec<Piece>>::new());
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(0), [[write(u64::from(3 * KB_100), 5)]]);
    assert_eq!(rig.run_dry(), [done(42, WcOpcode::RDMA_WRITE, 3 * KB_100 + 5)]);
}

/// The request at the front of those that wait for rails is always the next one.
#[test]
fn requests_behind_a_waiting_one_wait_too() {
    let mut rig = Setup::spray(2).fragment(128).depth(1).rig();
    rig.post([rig::write(1, 3 * 128), rig::write(2, 128)]);
    rig.rails[0].take_doorbells();
    rig.rails[1].take_doorbells();
    rig.rails[1].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(1), [[write(256, 128)]], "the rest of request 1");
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(0), [[write(0, 128)]], "then request 2");
    rig.rails[1].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[2]));
}

/// The C++ design describes its map and its two queues by this table. Here they are one ring with
/// cursors, so the columns are the ring's counts and fronts.
#[test]
fn the_trackers_queues_evolve_as_in_the_table() {
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

#[test]
fn users_may_give_the_same_name_twice() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(5, 256), rig::read(5, 128)]);
    let expected = [done(5, WcOpcode::RDMA_WRITE, 256), done(5, WcOpcode::RDMA_READ, 128)];
    assert_eq!(rig.run_dry(), expected);
}

#[test]
fn credits_are_bounded_by_config_queue_pair_and_type() {
    for (max_msgs, max_send_wr, expected) in [(5, 1024, 5), (100, 7, 7), (u32::MAX, 1024, 16)] {
        let mut setup = Setup::spray(2).fragment(128).depth(max_msgs);
        setup.limits.max_send_wr = max_send_wr;
        let mut rig: Rig = setup.build();
        rig.post([rig::write(1, 128 * 64)]);
        for rail in &rig.rails {
            assert_eq!(rail.sends().len(), expected);
            assert!(rail.sends().last().unwrap().flags.contains(SendFlags::SIGNALED));
        }
        assert_eq!(rig.qp.counters(RailId::Data(0)).unwrap().doorbells, 1);
        assert_eq!(rig.run_dry(), [done(1, WcOpcode::RDMA_WRITE, 128 * 64)]);
    }
}
