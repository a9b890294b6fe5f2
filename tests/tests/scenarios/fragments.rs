//! Fragments: where a request is cut, what each fragment carries, what waits and what resumes.
//! `core/docs/architecture.md`, "The life of a request" and "Rails and batches";
//! `core/docs/reference.md`, defect 14.

use polyrail_core::verbs::{SendFlags, SendRequest, SendWr, WcOpcode};
use polyrail_core::virtual_qp::{PostSendError, RailId};
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

/// Defect 14: `length + max_msg_size` overflows 32 bits in the reference.
#[test]
fn defect_14_the_largest_fragment_size_does_not_overflow() {
    let largest = u32::MAX - 127;
    let mut setup = Setup::spray(2).fragment(largest);
    setup.limits.max_msg_size = u32::MAX;
    let mut rig = setup.rig();
    rig.post([rig::write(1, u32::MAX), rig::read(2, largest)]);
    assert_eq!(rig.pieces(0)[0], [write(0, largest)]);
    assert_eq!(rig.pieces(1)[0], [write(u64::from(largest), 127)]);
    assert_eq!(rig.run_dry().len(), 2);
}

/// Defect 14: 4 GiB - 1 in 4 fragments, and in 2^20; every one is checked.
#[test]
fn defect_14_the_longest_request_covers_every_byte_once() {
    covers_every_byte_once(1 << 30, 4);
    covers_every_byte_once(4096, 1 << 20);
}

/// Defect 14: the maximum number of fragments. Takes some seconds without optimisation.
#[test]
#[ignore = "slow: seconds without optimisation; tests/gate.sh runs it"]
fn defect_14_the_longest_request_in_the_shortest_fragments_covers_every_byte_once() {
    covers_every_byte_once(128, 1 << 25);
}

fn covers_every_byte_once(fragment: u32, expected_fragments: u64) {
    let setup = Setup::spray(3).fragment(fragment).depth(1024).deep();
    let mut rig: Rig<3, 1024, 2> = setup.build();
    rig.post([rig::write(1, u32::MAX)]);
    let mut bytes = 0u64;
    let mut fragments = 0u64;
    let mut ends = std::collections::BTreeSet::from([0u64]);
    let mut reported = Vec::new();
    while rig.qp.unreported_sends() > 0 {
        for rail in &rig.rails {
            for batch in rail.take_doorbells() {
                let (start, end) = span(&batch, fragment);
                fragments += batch.len() as u64;
                bytes += end - start;
                assert!(ends.insert(end), "no byte twice");
            }
            rail.complete_all();
        }
        reported.extend(rig.poll());
    }
    assert_eq!(reported, [done(1, WcOpcode::RDMA_WRITE, u32::MAX)]);
    assert_eq!((bytes, fragments), (u64::from(u32::MAX), expected_fragments));
    assert_eq!(ends.last(), Some(&u64::from(u32::MAX)));
}

/// Where a batch of consecutive fragments starts and ends.
fn span(batch: &[SendRequest], fragment: u32) -> (u64, u64) {
    let start = batch[0].sge.addr() - rig::LOCAL;
    let mut end = start;
    for request in batch {
        assert_eq!(request.sge.addr() - rig::LOCAL, end);
        assert_eq!(request.remote_addr - rig::REMOTE, end);
        assert_eq!(end % u64::from(fragment), 0);
        end += u64::from(request.sge.length());
    }
    (start, end)
}

/// Defect 14: a remote range past the end of the address space.
#[test]
fn defect_14_a_remote_range_that_wraps_is_refused() {
    let mut rig = Setup::spray(2).rig();
    let addr = u64::MAX - 99;
    let wr = SendWr { remote_addr: addr, ..rig::write(1, 100) };
    assert_eq!(rig.qp.post_send(&wr), Err(PostSendError::RemoteRange { addr, length: 100 }));
    rig.post([SendWr { remote_addr: addr - 1, ..rig::write(2, 100) }]);
    assert_eq!(rig.run_dry().len(), 1);
}
