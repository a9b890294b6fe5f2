//! Several requests with one call. `core/docs/architecture.md`, "The life of a request" and "Rails
//! and batches".

use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::{SendFlags, SendWr};
use polyrail_core::virtual_qp::{PostManyError, PostSendError, QpState, RailId};
use polyrail_tests::rig::{self, KEYS, Rig, Setup, local, ok};

/// WRITEs of one fragment, or shorter.
fn short(ids: std::ops::Range<u64>) -> Vec<SendWr<'static>> {
    ids.map(|id| rig::write(id, 100)).collect()
}

fn fragments_of_128(setup: Setup) -> Rig {
    setup.fragment(128).rig()
}

fn doorbells(rig: &Rig) -> Vec<Vec<usize>> {
    let lengths = |batches: Vec<Vec<_>>| batches.iter().map(Vec::len).collect();
    rig.rails.iter().map(|rail| lengths(rail.take_doorbells())).collect()
}

#[test]
fn short_requests_ring_each_rail_once() {
    let mut rig = fragments_of_128(Setup::spray(4));
    rig.qp.post_many(&short(0..10)).unwrap();
    assert_eq!(doorbells(&rig), [[3], [3], [3], [1]]);
    let rung: u64 = (0..4).map(|at| rig.qp.counters(RailId::Data(at)).unwrap().doorbells).sum();
    assert_eq!(rung, 4);
    assert_eq!(
        rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(),
        (0..10).collect::<Vec<_>>()
    );
}

#[test]
fn numbered_requests_ring_each_rail_once_and_keep_their_numbers() {
    let mut rig = fragments_of_128(Setup::dqplb(2));
    let wrs: Vec<_> = (0..6).map(|id| rig::write_imm(id, 128, 0)).collect();
    rig.qp.post_many(&wrs).unwrap();
    let sent: Vec<Vec<_>> =
        rig.rails.iter().map(|rail| rail.sends().iter().map(|send| send.imm).collect()).collect();
    let numbers =
        |range: std::ops::Range<u32>| range.map(|n| rig::imm(n, true)).collect::<Vec<_>>();
    assert_eq!(sent, [numbers(0..3), numbers(3..6)]);
    assert_eq!(doorbells(&rig), [[3], [3]]);
    assert_eq!(rig.run_dry().len(), 6);
}

#[test]
fn a_notification_waits_for_the_plain_write_before_it_in_the_same_call() {
    let mut rig = fragments_of_128(Setup::dqplb(2));
    rig.qp.post_many(&[rig::write(1, 64), rig::write_imm(2, 64, 0)]).unwrap();
    assert_eq!(doorbells(&rig), [vec![1], vec![]]);
    assert_eq!(rig.run_dry().len(), 2);
}

#[test]
fn a_request_that_wakes_its_receiver_waits_for_those_before_it_in_the_same_call_that_do_not() {
    let mut rig = fragments_of_128(Setup::dqplb(2));
    let wakes = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let wrs = [1, 2, 3].map(|id| rig::write_imm(id, 64, 0));
    rig.qp.post_many(&[wrs[0], wrs[1].with_flags(wakes), wrs[2]]).unwrap();
    assert_eq!(doorbells(&rig), [vec![1], vec![]]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(doorbells(&rig).concat(), [1, 1]);
    assert_eq!(rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_long_one_a_send_and_a_fenced_one_go_in_their_order() {
    let mut rig = fragments_of_128(Setup::spray(2));
    let fence = SendFlags::SIGNALED | SendFlags::FENCE;
    let fenced = rig::read(5, 64).with_flags(fence);
    let wrs = [rig::write(1, 64), rig::write(2, 64), rig::write(3, 512), rig::send(4, 8), fenced];
    rig.qp.post_many(&wrs).unwrap();
    assert_eq!(rig.run_dry().len(), 5);
}

#[test]
fn over_a_single_rail_all_ring_once() {
    let mut rig = Setup::spray(1).rig();
    let wrs = [rig::write(1, 64), rig::send(2, 64), rig::read(3, 64)];
    rig.qp.post_many(&wrs).unwrap();
    assert_eq!(doorbells(&rig), [[3]]);
    let counters = rig.qp.counters(RailId::Data(0)).unwrap();
    assert_eq!((counters.doorbells, counters.send_requests, counters.bytes), (1, 3, 192));
    assert_eq!(rig.run_dry().len(), 3);
    rig.qp.post_many(&[]).unwrap();
    assert_eq!(doorbells(&rig), [[0; 0]]);
}

#[test]
fn over_a_single_rail_the_error_reports_how_many_requests_the_driver_took() {
    let mut rig = Setup::spray(1).rig();
    rig.rails[0].refuse_next(2, Refusal::QueueFull);
    let error = PostSendError::QueueFull(RailId::Data(0));
    assert_eq!(rig.qp.post_many(&short(0..4)), Err(PostManyError { posted: 2, error }));
    let unknown = SendWr { keys: &[], ..rig::write(9, 8) };
    let refused = rig.qp.post_many(&[rig::write(7, 8), unknown]).unwrap_err();
    assert_eq!(refused.posted, 1);
    assert!(matches!(refused.error, PostSendError::MissingKeys { .. }), "{refused:?}");
    assert_eq!(rig.run_dry().len(), 3);
}

#[test]
fn what_finds_no_room_on_the_rails_waits_and_what_finds_none_in_the_ring_is_refused() {
    let mut rig: Rig<4, 16, 8> = Setup::spray(2).fragment(128).depth(2).build();
    let refused = rig.qp.post_many(&short(0..12)).unwrap_err();
    assert_eq!(refused.posted, 8);
    assert!(matches!(refused.error, PostSendError::Full(_)), "{refused:?}");
    assert_eq!(rig.rails.iter().map(|rail| rail.sends().len()).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(rig.run_dry().len(), 8);
}

#[test]
fn a_driver_that_has_no_room_leaves_the_rest_to_the_others() {
    let mut rig = fragments_of_128(Setup::spray(2));
    rig.rails[0].refuse_next(1, Refusal::QueueFull);
    rig.qp.post_many(&short(0..4)).unwrap();
    assert_eq!(rig.rails.iter().map(|rail| rail.sends().len()).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn a_driver_that_refuses_one_for_good_ends_the_call_there() {
    let mut rig = fragments_of_128(Setup::spray(2));
    rig.rails[0].refuse_next(1, Refusal::Driver(5));
    let error = PostSendError::Driver { rail: RailId::Data(0), errno: 5 };
    assert_eq!(rig.qp.post_many(&short(0..4)), Err(PostManyError { posted: 1, error }));
    assert_eq!((rig.qp.state(), rig.qp.unreported_sends()), (QpState::Ready, 1));
    assert_eq!(rig.poll(), []);
    rig.post([rig::write(9, 8)]);
    assert_eq!(rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 9]);
}

#[test]
fn re_routed_the_rest_of_a_run_goes_to_another_rail() {
    let mut rig = fragments_of_128(Setup::spray(2).reroute());
    rig.rails[0].refuse_next(1, Refusal::Driver(5));
    rig.qp.post_many(&short(0..4)).unwrap();
    assert_eq!(rig.qp.state(), QpState::Degraded);
    assert_eq!(rig.rails[1].sends().len(), 3);
}

#[test]
fn one_that_makes_no_sense_ends_the_call_there() {
    let mut rig = fragments_of_128(Setup::spray(2));
    let quiet = rig::write(3, 64).with_flags(SendFlags::empty());
    let refused = rig.qp.post_many(&[rig::write(1, 64), rig::write(2, 64), quiet]).unwrap_err();
    assert_eq!(refused.posted, 2);
    assert!(matches!(refused.error, PostSendError::Unsignaled(_)), "{refused:?}");
    assert_eq!(rig.poll_ids(), []);
    assert_eq!(rig.run_dry().len(), 2);
    let send = SendWr::send(4, local(8), &KEYS);
    rig.post([rig::write(5, 64)]);
    rig.rails.iter().for_each(|rail| rail.flush());
    rig.poll();
    let refused = rig.qp.post_many(&[send, send]).unwrap_err();
    assert_eq!(refused, PostManyError { posted: 0, error: PostSendError::InErrorState });
}

#[test]
fn requests_behind_others_that_wait_stay_behind_them() {
    let mut rig = Setup::spray(2).fragment(128).depth(1).rig();
    rig.post([rig::write(0, 512)]);
    rig.qp.post_many(&short(1..4)).unwrap();
    let reported: Vec<_> = rig.run_dry().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(reported, ok(&[0, 1, 2, 3]));
}

#[test]
fn long_requests_ring_each_rail_once_too() {
    for setup in [Setup::spray(4), Setup::dqplb(4)] {
        let mut rig = fragments_of_128(setup);
        let numbered = rig.notify.is_none();
        let wr = |id: u64| {
            let length = 100 + 128 * id as u32;
            if numbered { rig::write_imm(id, length, 0) } else { rig::write(id, length) }
        };
        rig.qp.post_many(&(0..8).map(wr).collect::<Vec<_>>()).unwrap();
        // 36 fragments.
        assert_eq!(doorbells(&rig), [[9], [9], [9], [9]]);
        let rung: u64 = (0..4).map(|at| rig.qp.counters(RailId::Data(at)).unwrap().doorbells).sum();
        assert_eq!(rung, 4);
        let lengths: Vec<_> = rig.run_dry().iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
        assert_eq!(lengths, (0..8).map(|id| (id, 100 + 128 * id as u32)).collect::<Vec<_>>());
    }
}

#[test]
fn a_driver_that_takes_a_part_of_a_long_request_gets_the_rest_of_it_later() {
    for taken in 0..6 {
        let mut rig = fragments_of_128(Setup::spray(2));
        rig.rails[0].refuse_next(taken, Refusal::QueueFull);
        let wrs: Vec<_> = (0..4).map(|id| rig::write(id, 384)).collect();
        rig.qp.post_many(&wrs).unwrap();
        let whole = |rig: &Rig| {
            let counters = (0..2).map(|at| rig.qp.counters(RailId::Data(at)).unwrap());
            counters.fold((0, 0), |(sends, bytes), c| (sends + c.send_requests, bytes + c.bytes))
        };
        assert_eq!(rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(whole(&rig), (12, 4 * 384), "{taken} taken");
        let rung = |at: u8| rig.qp.counters(RailId::Data(at)).unwrap().doorbells;
        assert_eq!(rung(0) + rung(1), rig.doorbells_rung(), "{taken} taken");
    }
}

#[test]
fn with_dqplb_numbers_of_what_a_driver_did_not_take_are_given_out_again() {
    for taken in 0..6 {
        let mut rig = fragments_of_128(Setup::dqplb(2));
        rig.rails[0].refuse_next(taken, Refusal::QueueFull);
        let wrs: Vec<_> = (0..4).map(|id| rig::write_imm(id, 384, 0)).collect();
        rig.qp.post_many(&wrs).unwrap();
        let mut numbers = Vec::new();
        for _ in 0..3 {
            for rail in &rig.rails {
                numbers.extend(rail.sends().iter().map(|send| send.imm));
                rail.complete_all();
            }
            rig.poll();
        }
        let mut numbers: Vec<_> =
            numbers.iter().map(|imm| (0..12).find(|n| *imm == rig::imm(*n, n % 3 == 2))).collect();
        numbers.sort();
        assert_eq!(numbers, (0..12).map(Some).collect::<Vec<_>>(), "{taken} taken");
        assert_eq!(rig.qp.unreported_sends(), 0);
    }
}

#[test]
fn a_driver_that_refuses_in_the_midst_of_a_long_request_fails_the_queue_pair() {
    for (taken, posted) in [(0, Some(0)), (1, None), (2, None), (3, Some(1))] {
        let mut rig = fragments_of_128(Setup::spray(2));
        rig.rails[0].refuse_next(taken, Refusal::Driver(5));
        let wrs: Vec<_> = (0..4).map(|id| rig::write(id, 384)).collect();
        let refused = rig.qp.post_many(&wrs);
        let error = PostSendError::Driver { rail: RailId::Data(0), errno: 5 };
        assert_eq!(refused.err(), posted.map(|posted| PostManyError { posted, error }));
        let failed = posted.is_none();
        assert_eq!(rig.qp.state() == QpState::Error, failed, "{taken} taken");
        let expected = posted.unwrap_or(4);
        rig.rails.iter().for_each(|rail| if failed { rail.flush() } else { rail.complete_all() });
        assert_eq!(rig.poll().len(), expected, "{taken} taken");
    }
}

#[test]
fn inline_requests_share_a_doorbell_and_those_that_would_wait_are_refused() {
    let inline = SendFlags::SIGNALED | SendFlags::INLINE;
    let mut rig = Setup::spray(2).fragment(128).depth(3).rig();
    let wrs: Vec<_> = (0..8).map(|id| rig::write(id, 64).with_flags(inline)).collect();
    rig.qp.post_many(&wrs[..4]).unwrap();
    assert_eq!(doorbells(&rig), [[2], [2]]);
    let error = PostSendError::InlineMustWait;
    assert_eq!(rig.qp.post_many(&wrs[4..]), Err(PostManyError { posted: 2, error }));
    assert_eq!(rig.qp.unreported_sends(), 6);
    assert_eq!(rig.run_dry().len(), 6);
    let mixed = [rig::write(1, 64), rig::write(2, 1024), wrs[0]];
    assert_eq!(rig.qp.post_many(&mixed), Err(PostManyError { posted: 2, error }));
    assert_eq!(rig.qp.post_many(&wrs[..2]), Err(PostManyError { posted: 0, error }));
    assert_eq!(rig.run_dry().len(), 2);
}

#[test]
fn sends_and_atomics_share_a_doorbell_of_rail_0() {
    let mut rig = fragments_of_128(Setup::spray(2));
    let fenced = rig::send(4, 8).with_flags(SendFlags::SIGNALED | SendFlags::FENCE);
    let quiet = rig::send(2, 8).with_flags(SendFlags::empty());
    let wrs = [rig::send(1, 8), quiet, rig::fetch_add(3), fenced, rig::send(5, 8)];
    rig.qp.post_many(&wrs).unwrap();
    assert_eq!(doorbells(&rig), [vec![3], vec![]]);
    let counters = rig.qp.counters(RailId::Data(0)).unwrap();
    assert_eq!((counters.doorbells, counters.send_requests), (1, 3));
    let ids: Vec<_> = rig.run_dry().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 3, 4, 5]);
}

#[test]
fn a_driver_that_takes_some_sends_gets_the_others_later() {
    for (taken, refusal) in
        [(0, Refusal::QueueFull), (2, Refusal::QueueFull), (2, Refusal::Driver(5))]
    {
        let mut rig = fragments_of_128(Setup::spray(2));
        rig.rails[0].refuse_next(taken, refusal);
        let wrs: Vec<_> = (0..4).map(|id| rig::send(id, 8)).collect();
        rig.qp.post_many(&wrs).unwrap();
        assert_eq!(rig.poll(), []);
        let ids: Vec<_> = rig.run_dry().iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, [0, 1, 2, 3], "{refusal:?}");
        let rung = rig.qp.counters(RailId::Data(0)).unwrap();
        assert_eq!((rung.send_requests, rung.doorbells), (4, rig.doorbells_rung()));
    }
}

/// Requests of 4 GiB - 1, each 2^25 fragments.
fn longest(count: u64) -> Vec<SendWr<'static>> {
    (0..count).map(|id| rig::write(id, u32::MAX)).collect()
}

/// 2^32 fragments: no count of them fits 32 bits.
#[test]
fn requests_of_more_fragments_than_32_bits_count_go_out_as_others_do() {
    for count in [127, 128, 129] {
        let mut rig: Rig<2, 16, 256> = Setup::spray(2).fragment(128).build();
        rig.qp.post_many(&longest(count)).unwrap();
        for (at, first) in [0, 16].into_iter().enumerate() {
            let offsets: Vec<_> =
                rig.pieces(at).concat().iter().map(|piece| (piece.offset, piece.length)).collect();
            let expected: Vec<_> = (first..first + 16).map(|at| (at * 128, 128)).collect();
            assert_eq!(offsets, expected, "rail {at} of {count} requests");
        }
        rig.rails[1].complete_all();
        assert_eq!(rig.poll(), []);
        let next = rig.pieces(1).concat();
        assert_eq!((next.len(), next[0].offset), (16, 32 * 128), "{count} requests");
    }
}

/// 2^32 fragments and as many again as there are requests.
#[test]
fn requests_whose_fragments_wrap_to_their_number_are_not_of_one_fragment_each() {
    let mut rig: Rig<2, 16, 256> = Setup::spray(2).fragment(128).build();
    let mut wrs = longest(128);
    wrs.extend([rig::write(128, 65 * 128), rig::write(129, 65 * 128)]);
    rig.qp.post_many(&wrs).unwrap();
    for rail in 0..2 {
        let lengths = rig.pieces(rail).concat().iter().map(|piece| piece.length).max();
        assert_eq!(lengths, Some(128), "rail {rail}");
    }
}

/// One run of a rail with credits for 256 fragments looks at 256 requests.
#[test]
fn a_rail_with_room_for_many_requests_takes_the_first_fragments_of_the_first() {
    let setup = Setup::spray(2).deep().fragment(128).depth(u32::MAX);
    let mut rig: Rig<2, 256, 256> = setup.build();
    rig.qp.post_many(&longest(256)).unwrap();
    let last = rig.pieces(1).concat().last().map(|piece| piece.offset);
    assert_eq!(last, Some(511 * 128));
}
