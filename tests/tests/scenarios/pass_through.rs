//! SENDs and atomics over several rails: their place among fragmented requests.
//! `core/docs/architecture.md`, "Order and buffer ownership" and "Routing over one rail and over
//! several".

use polyrail_core::hardware::{QpLimits, Refusal};
use polyrail_core::verbs::{
    Completion, DeviceId, LocalBuffer, Opcode, RecvWr, SendFlags, SendWr, WcOpcode, WcStatus,
};
use polyrail_core::virtual_cq::Event;
use polyrail_core::virtual_qp::{PassThroughOrder, PostRecvError, PostSendError, RailId};
use polyrail_tests::rig::{self, KEYS, REMOTE, Rig, Setup, done, local, ok};
use polyrail_tests::scripted::{LIMITS, QpHandle};

fn unordered() -> Setup {
    Setup::spray(2).fragment(128).unordered()
}

#[test]
fn ordered_a_send_waits_until_what_was_posted_before_is_acknowledged() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256), rig::send(2, 64), rig::fetch_add(3)]);
    assert_eq!(rig.opcodes(0), [Opcode::RdmaWrite]);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.opcodes(0), [], "rail 1's fragment is in flight");
    rig.rails[1].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.opcodes(0), [Opcode::Send, Opcode::FetchAdd], "RC keeps these two in order");
    rig.rails[0].complete(2);
    let expected = [done(2, WcOpcode::SEND, 64), done(3, WcOpcode::FETCH_ADD, 8)];
    assert_eq!(rig.poll(), expected);
}

#[test]
fn an_atomic_that_waits_keeps_its_operands_and_takes_two_places() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    let mut places = 0;
    while rig.qp.post_send(&rig::write(1, 128)).is_ok() {
        places += 1;
    }
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 128); 2]);
    rig.post((3..places - 1).map(|id| rig::write(id, 128)));
    let atomic = SendWr::compare_swap(2, local(8), REMOTE, 5, 6, &KEYS);
    rig.post([atomic]);
    let full = rig.qp.post_send(&rig::send(9, 8)).unwrap_err();
    assert!(matches!(full, PostSendError::Full(_)), "{full:?}");
    // With one place left, the atomic is refused, and a request that needs one place is not.
    let mut other = Setup::spray(2).fragment(128).rig();
    other.post((1..places).map(|id| rig::write(id, 128)));
    let full = other.qp.post_send(&atomic).unwrap_err();
    assert!(matches!(full, PostSendError::Full(_)), "{full:?}");
    other.post([rig::send(9, 8)]);
    let mut posted = Vec::new();
    for _ in 0..2 * places {
        for rail in &rig.rails {
            let requests = rail.take_doorbells().into_iter().flatten();
            posted.extend(requests.filter(|request| request.opcode != Opcode::RdmaWrite));
            rail.complete_all();
        }
        rig.poll();
    }
    let operands: Vec<_> =
        posted.iter().map(|request| (request.compare_add, request.swap)).collect();
    assert_eq!(operands, [(5, 6)]);
    assert_eq!(rig.qp.unreported_sends(), 0);
}

/// Only fragmented requests are waited for: a stream of SENDs must not slow down to one at a time
/// because one of them once had to wait.
#[test]
fn ordered_a_send_behind_deferred_sends_in_flight_goes_straight_to_the_rail() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::send(2, 64)]);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.opcodes(0), [Opcode::RdmaWrite, Opcode::Send]);
    rig.post([rig::send(3, 64)]);
    assert_eq!(rig.opcodes(0), [Opcode::Send]);
    rig.rails[0].complete(2);
    let mut ids: Vec<_> = rig.poll().iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [2, 3]);
}

#[test]
fn ordered_a_send_waits_for_the_notify_of_an_earlier_request() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 256, 9), rig::send(2, 64)]);
    rig.rails[0].complete(1);
    rig.rails[1].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.opcodes(0), [Opcode::RdmaWrite], "the notify is in flight");
    rig.notify().complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.opcodes(0), [Opcode::Send]);
}

/// Otherwise the receiver is notified of an atomic that has not been carried out.
#[test]
fn ordered_a_notify_waits_for_an_earlier_send_that_went_straight_through() {
    for earlier in
        [rig::send(1, 64), rig::fetch_add(1), rig::send(1, 64).with_flags(SendFlags::empty())]
    {
        let mut rig = Setup::spray(2).fragment(128).rig();
        rig.post([earlier, rig::write_imm(2, 256, 9)]);
        rig.rails[1].complete_all();
        rig.rails[0].complete(1);
        let signaled = earlier.flags.contains(SendFlags::SIGNALED);
        assert_eq!(rig.poll_ids(), ok(if signaled { &[1] } else { &[] }));
        assert!(rig.notify().sends().is_empty(), "its own data is in flight");

        let mut rig = Setup::spray(2).fragment(128).rig();
        rig.post([rig::write(7, 128)]);
        assert_eq!(rig.run_dry().len(), 1);
        rig.post([earlier, rig::write_imm(2, 128, 9)]);
        rig.rails[1].complete_all();
        assert_eq!(rig.poll(), []);
        assert!(rig.notify().sends().is_empty(), "the earlier one is in flight");
        rig.rails[0].complete_all();
        assert_eq!(rig.poll_ids(), ok(if signaled { &[1] } else { &[] }));
        assert_eq!(rig.notifies(), [[9]]);
    }
}

#[test]
fn ordered_numbers_wait_for_an_earlier_send_that_went_straight_through() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::fetch_add(1), rig::write_imm(2, 256, 0)]);
    assert_eq!(rig.opcodes(0), [Opcode::FetchAdd]);
    assert!(rig.rails[1].sends().is_empty());
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.rails[1].sends().len(), 1);
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn ordered_numbers_wait_for_an_earlier_atomic_that_was_deferred() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::fetch_add(2), rig::write_imm(3, 256, 0)]);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.opcodes(0), [Opcode::RdmaWrite, Opcode::FetchAdd]);
    assert!(rig.rails[1].sends().is_empty());
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[2]));
    assert_eq!(rig.rails[1].sends().len(), 1);
}

#[test]
fn unordered_a_notify_waits_for_no_send() {
    let mut rig = unordered().rig();
    rig.post([rig::write(7, 128)]);
    assert_eq!(rig.run_dry().len(), 1);
    // Its data goes over rail 1, past the SEND.
    assert!(rig.qp.reserve_rail(0, true));
    rig.post([rig::send(1, 64), rig::write_imm(2, 256, 9)]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[9]]);
}

/// No other rail can carry it.
#[test]
fn a_send_that_was_accepted_goes_out_though_rail_0_is_taken_out_of_service() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256), rig::send(2, 64), rig::write(3, 256)]);
    assert!(rig.qp.set_rail_in_service(0, false));
    assert_eq!(rig.qp.post_send(&rig::send(4, 64)), Err(PostSendError::RailDown));
    assert_eq!(rig.run_dry().len(), 3);
    rig.post([rig::write(5, 256)]);
    assert!(rig.rails[0].sends().is_empty(), "it gets no new fragments");
    assert!(rig.qp.set_rail_in_service(0, true));
    rig.post([rig::send(6, 64)]);
    assert_eq!(rig.run_dry().len(), 2);
}

/// They may overtake it, so it holds up neither their fragments nor their reports.
#[test]
fn ordered_fragmented_requests_behind_a_deferred_send_wait_for_nothing() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256), rig::send(2, 64), rig::write(3, 256), rig::read(4, 128)]);
    let expected = [Opcode::RdmaWrite, Opcode::RdmaWrite, Opcode::RdmaRead];
    assert_eq!(rig.opcodes(0), expected);
    assert_eq!(rig.rails[1].sends().len(), 2);
    rig.rails[1].complete_all();
    rig.rails[0].complete(3);
    assert_eq!(rig.poll_ids(), ok(&[1, 3, 4]));
    assert_eq!(rig.opcodes(0), [Opcode::Send]);
    assert_eq!(rig.qp.unreported_sends(), 1);
    rig.post([rig::write(5, 256)]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.run_dry(), [done(2, WcOpcode::SEND, 64), done(5, WcOpcode::RDMA_WRITE, 256)]);
}

/// Rounds in each of which everything in flight is acknowledged.
fn rounds(order: PassThroughOrder) -> u32 {
    let mut rig: Rig<4, 32, 128> =
        Setup::spray(4).fragment(128).config(|config| config.pass_through = order).build();
    let mut reported = 0;
    for id in 0..50 {
        rig.post([rig::write(2 * id, 128), rig::send(2 * id + 1, 8)]);
    }
    for round in 1.. {
        rig.rails.iter().for_each(QpHandle::complete_all);
        reported += rig.poll().len();
        if reported == 100 {
            return round;
        }
    }
    unreachable!()
}

#[test]
fn pairs_of_write_and_send_take_at_most_twice_as_long_ordered_as_unordered() {
    let ordered = rounds(PassThroughOrder::Ordered);
    let unordered = rounds(PassThroughOrder::Unordered);
    assert!(ordered <= 2 * unordered, "{ordered} and {unordered} rounds");
}

/// A peer that posts receives for SENDs after a notification would wait forever.
#[test]
fn unordered_a_send_without_credit_blocks_no_notification_and_no_idle_rail() {
    let mut rig = unordered().depth(2).rig();
    rig.post([rig::send(1, 8), rig::send(2, 8), rig::send(3, 8)]);
    rig.post([rig::write_imm(4, 256, 9), rig::write(5, 128)]);
    assert_eq!(rig.opcodes(0), [Opcode::Send; 2]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[9]]);
    rig.rails[1].complete_all();
    rig.notify().complete(1);
    assert_eq!(rig.poll_ids(), ok(&[4, 5]));
    assert_eq!(rig.qp.unreported_sends(), 3, "1 to 3");
    assert_eq!(rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3]);
}

/// The ring goes on around a request that stays: its slot and its contents are kept.
#[test]
fn a_deferred_request_keeps_its_slot_while_the_ring_goes_on() {
    let mut rig = unordered().depth(1).rig();
    rig.post([rig::send(1, 8), rig::send(2, 16)]);
    for id in 10..41 {
        rig.post([rig::write(id, 128)]);
        rig.rails[1].complete_all();
        assert_eq!(rig.poll_ids(), ok(&[id]));
    }
    let full = rig.qp.post_send(&rig::write(41, 128));
    assert!(matches!(full, Err(PostSendError::Full(_))), "32 slots: {full:?}");
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), [done(2, WcOpcode::SEND, 16)]);
    rig.post([rig::write(41, 128)]);
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn deferred_requests_that_will_not_be_posted_any_more_are_reported_as_flushed() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256), rig::send(2, 8).with_flags(SendFlags::empty())]);
    rig.post([rig::fetch_add(3), rig::write(4, 128)]);
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    rig.rails[1].fail(WcStatus::WR_FLUSH_ERR);
    let mut seen = Vec::new();
    for _ in 0..8 {
        seen.extend(rig.poll_events(1).0.into_iter().filter_map(|event| event.completion()));
    }
    seen.sort_by_key(|wc| wc.wr_id);
    let seen: Vec<_> = seen.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
    let flushed = WcStatus::WR_FLUSH_ERR;
    let expected = [
        (1, WcStatus::RETRY_EXC_ERR, WcOpcode::RDMA_WRITE),
        (2, flushed, WcOpcode::SEND),
        (3, flushed, WcOpcode::FETCH_ADD),
        (4, flushed, WcOpcode::RDMA_WRITE),
    ];
    assert_eq!(seen, expected);
    assert_eq!(rig.qp.unreported_sends(), 0);
}

#[test]
fn unordered_a_send_overtakes_fragments() {
    let mut rig = unordered().rig();
    rig.post([rig::write(1, 256), rig::send(2, 64)]);
    assert_eq!(rig.opcodes(0), [Opcode::RdmaWrite, Opcode::Send]);
    rig.rails[0].complete(2);
    assert_eq!(rig.poll_ids(), ok(&[2]), "reported when it arrives");
    rig.rails[1].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

#[test]
fn unordered_sends_keep_their_own_order() {
    let mut rig = unordered().depth(2).rig();
    rig.post([rig::send(1, 64), rig::send(2, 64), rig::send(3, 64), rig::send(4, 64)]);
    assert_eq!(rig.rails[0].sends().len(), 2);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.post([rig::send(5, 64)]);
    let reports: Vec<_> = rig.run_dry().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(reports, [2, 3, 4, 5]);
}

#[test]
fn unordered_sends_that_had_to_wait_leave_nothing_to_wait_for() {
    let mut rig = unordered().depth(2).rig();
    rig.post([rig::send(1, 64), rig::send(2, 64), rig::send(3, 64)]);
    assert_eq!(rig.run_dry().len(), 3);
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::read(4, 64), rig::write(5, 64).with_flags(fenced), rig::send(6, 64)]);
    assert_eq!(rig.opcodes(0).last(), Some(&Opcode::Send), "it overtakes 5");
    assert_eq!(rig.run_dry().len(), 3);
}

#[test]
fn unordered_a_send_that_waits_for_room_waits_for_no_read() {
    let mut rig = unordered().depth(2).rig();
    rig.post([rig::read(1, 4 * 128), rig::send(2, 64)]);
    assert_eq!(rig.opcodes(0), [Opcode::RdmaRead; 2], "no room");
    rig.rails[0].complete(2);
    assert_eq!(rig.poll(), [], "half of the READ is in flight");
    assert_eq!(rig.opcodes(0), [Opcode::Send]);
}

#[test]
fn unordered_an_inline_send_that_had_to_wait_leaves_nothing_to_wait_for() {
    let mut rig = unordered().rig();
    rig.post([rig::read(1, 256)]);
    let flags = SendFlags::SIGNALED | SendFlags::FENCE | SendFlags::INLINE;
    let refused = rig.qp.post_send(&rig::send(2, 64).with_flags(flags));
    assert_eq!(refused, Err(PostSendError::InlineMustWait));
    rig.post([rig::send(3, 64)]);
    rig.rails[0].complete(2);
    assert_eq!(rig.poll_ids(), ok(&[3]), "it took no place in the ring");
}

#[test]
fn unordered_sends_and_fragments_that_complete_together_are_each_reported_once() {
    let mut rig = unordered().rig();
    let unsignaled = rig::send(4, 64).with_flags(SendFlags::empty());
    rig.post([rig::send(1, 64), rig::write(2, 256), rig::send(3, 64), unsignaled]);
    rig.post([rig::send(5, 64), rig::fetch_add(6)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    let reports = rig.poll();
    let opcodes = [WcOpcode::SEND, WcOpcode::SEND, WcOpcode::SEND, WcOpcode::FETCH_ADD];
    assert!(reports.iter().map(|wc| wc.opcode).take(4).eq(opcodes));
    let ids: Vec<_> = reports.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ids, ok(&[1, 3, 5, 6, 2]));
    assert_eq!(rig.qp.unreported_sends(), 0);
}

#[test]
fn a_send_that_fails_behind_one_that_succeeded_has_its_own_status() {
    let mut rig = Setup::spray(2).rig();
    rig.post([rig::send(1, 64), rig::send(2, 64), rig::send(3, 64)]);
    rig.rails[0].fail_after(1, WcStatus::RNR_RETRY_EXC_ERR);
    rig.rails[0].flush();
    let expected =
        [(1, WcStatus::SUCCESS), (2, WcStatus::RNR_RETRY_EXC_ERR), (3, WcStatus::WR_FLUSH_ERR)];
    assert_eq!(rig.poll_ids(), expected);
}

#[test]
fn a_completion_without_a_tag_behind_sends_is_foreign() {
    let mut rig = Setup::spray(2).rig();
    // Until each place of the rail's queue has had a SEND.
    for _ in 0..100 {
        rig.post([rig::send(1, 64)]);
        rig.rails[0].complete(1);
        rig.poll();
    }
    rig.post([rig::send(1, 64)]);
    rig.rails[0].complete(1);
    let completion = Completion::success(rig.rails[0].qp_num(), 0, WcOpcode::SEND);
    rig.rails[0].inject(completion);
    let (events, _) = rig.poll_events(usize::MAX);
    let device = DeviceId(0);
    assert!(events.contains(&Event::Foreign { device, completion }), "{events:?}");
    assert_eq!((events.len(), rig.qp.protocol_errors()), (2, 0));
}

/// It is signaled underneath, so that its credit comes back.
#[test]
fn an_unsignaled_send_is_swallowed_on_success() {
    for setup in [unordered(), Setup::spray(2).fragment(128)] {
        let mut rig = setup.rig();
        let unsignaled = rig::send(2, 64).with_flags(SendFlags::empty());
        rig.post([unsignaled, rig::write(1, 256), unsignaled]);
        for rail in &rig.rails {
            assert!(rail.sends().iter().all(|r| r.flags.contains(SendFlags::SIGNALED)));
        }
        assert_eq!(rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1]);
        assert_eq!((rig.qp.unreported_sends(), rig.rails[0].slots()), (0, 0));
        // Credits come back: many more than there are slots.
        for _ in 0..100 {
            rig.post([unsignaled]);
            rig.rails[0].complete(1);
            assert_eq!(rig.poll(), []);
        }
    }
}

#[test]
fn an_unsignaled_send_that_fails_is_reported() {
    let mut rig = Setup::spray(2).rig();
    rig.post([rig::send(9, 64).with_flags(SendFlags::empty())]);
    rig.rails[0].fail(WcStatus::RNR_RETRY_EXC_ERR);
    let wcs = rig.poll();
    assert_eq!(wcs.len(), 1);
    assert_eq!((wcs[0].wr_id, wcs[0].status), (9, WcStatus::RNR_RETRY_EXC_ERR));
    assert_eq!(wcs[0].opcode, WcOpcode::SEND, "a tag knows what it was");
}

#[test]
fn a_deferred_unsignaled_send_that_fails_is_reported() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::send(2, 64).with_flags(SendFlags::empty())]);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.rails[0].fail(WcStatus::REM_OP_ERR);
    assert_eq!(rig.poll_ids(), [(2, WcStatus::REM_OP_ERR)]);
}

#[test]
fn a_deferred_request_that_the_driver_refuses_fails_with_what_waits_behind_it() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::send(2, 64), rig::write(3, 128), rig::fetch_add(4)]);
    rig.rails[0].refuse_next(0, Refusal::Driver(22));
    rig.rails[0].complete(1);
    rig.rails[1].complete(1);
    let expected = [
        (1, WcStatus::SUCCESS),
        (3, WcStatus::SUCCESS),
        (2, WcStatus::GENERAL_ERR),
        (4, WcStatus::WR_FLUSH_ERR),
    ];
    assert_eq!(rig.poll_ids(), expected);
    assert_eq!(rig.qp.first_error().unwrap().errno, Some(22));
}

/// Receives of a DQPLB peer have no buffers.
#[test]
fn with_dqplb_a_send_over_several_rails_is_refused() {
    let mut rig = Setup::dqplb(2).rig();
    let refused = rig.qp.post_send(&rig::send(1, 64));
    assert_eq!(refused, Err(PostSendError::SendWithDqplb(Opcode::Send)));
    assert!(rig.rails[0].take_doorbells().is_empty());
    assert_eq!(rig.qp.unreported_sends(), 0);
    let mut single = Setup::dqplb(1).rig();
    single.post([rig::send(1, 64)]);
    assert_eq!(single.run_dry().len(), 1);
}

#[test]
fn a_send_that_finds_the_drivers_queue_full_is_offered_again() {
    for setup in [unordered(), Setup::spray(2)] {
        let mut rig = setup.rig();
        rig.rails[0].refuse_next(0, Refusal::QueueFull);
        rig.post([rig::send(1, 64), rig::send(2, 64)]);
        assert_eq!(rig.rails[0].sends().len(), 0, "2 must not overtake 1");
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2]);
    }
}

#[test]
fn an_empty_send_needs_no_keys() {
    let mut rig = Setup::spray(2).rig();
    rig.post([SendWr::send(1, LocalBuffer::EMPTY, &[])]);
    assert_eq!(rig.run_dry(), [done(1, WcOpcode::SEND, 0)]);
}

/// When none is unreported, the caller may take the buffers back.
#[test]
fn a_request_is_unreported_until_it_is_complete_whichever_way_it_takes() {
    let mut rig = Setup::spray(2).fragment(128).depth(1).rig();
    let mut unsignaled = rig::send(1, 8);
    unsignaled.flags.remove(SendFlags::SIGNALED);
    rig.post([unsignaled]);
    assert_eq!(rig.qp.unreported_sends(), 1, "it passed straight through");
    rig.post([rig::send(2, 8)]);
    assert_eq!(rig.qp.unreported_sends(), 2, "it waits for a credit");
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.qp.unreported_sends(), 1);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[2]));
    assert_eq!(rig.qp.unreported_sends(), 0);
}

/// Defect 22: pass-through requests take credits of rail 0.
#[test]
fn defect_22_pass_through_takes_credits_of_rail_0() {
    let mut rig = Setup::spray(2).fragment(128).depth(4).unordered().rig();
    rig.post((0..3).map(|id| rig::send(id, 8)));
    rig.post([rig::write(3, 16 * 128)]);
    assert_eq!(rig.rails[0].sends().len(), 4, "three SENDs leave one credit");
    assert_eq!(rig.rails[1].sends().len(), 4);
    rig.post([rig::send(4, 8)]);
    assert_eq!(rig.rails[0].sends().len(), 4, "a SEND without credit waits");
    assert_eq!(rig.rails[0].slots(), 4);
    assert_eq!(rig.run_dry().len(), 5);
}

/// Defect 22: on a single rail the driver's own queue-full is the back-pressure.
#[test]
fn defect_22_a_single_rail_reports_the_drivers_queue_full() {
    let mut setup = Setup::spray(1);
    setup.limits = QpLimits { max_send_wr: 2, max_recv_wr: 1, ..LIMITS };
    let mut rig = setup.rig();
    rig.post([rig::write(1, 8), rig::send(2, 8)]);
    assert_eq!(rig.qp.post_send(&rig::write(3, 8)), Err(PostSendError::QueueFull(RailId::Data(0))));
    rig.qp.post_recv(&RecvWr::data(4, local(8), &KEYS)).unwrap();
    let full = rig.qp.post_recv(&RecvWr::data(5, local(8), &KEYS));
    assert_eq!(full, Err(PostRecvError::QueueFull(RailId::Data(0))));
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), [done(1, WcOpcode::RDMA_WRITE, 0)]);
    assert_eq!(rig.qp.post_send(&rig::write(3, 8)), Ok(()));
}
