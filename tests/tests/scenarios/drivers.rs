//! Drivers that accept a part of a batch, refuse it for now, or refuse it for good.
//! `core/docs/architecture.md`, "Rails and batches" and "Failures".

use polyrail_core::hardware::{QueuePair, Refusal, SendBatch};
use polyrail_core::verbs::{Completion, Imm, Opcode, RecvWr, SendFlags, WcOpcode, WcStatus};
use polyrail_core::virtual_qp::{PostSendError, QpState, RailId};
use polyrail_tests::rig::{self, Rig, Setup, done, ok};
use polyrail_tests::view::{Piece, inner, write};
use std::cmp::Ordering;

fn rig() -> Rig {
    Setup::spray(2).fragment(128).rig()
}

/// Four fragments on each rail, of which rail 0's driver took only `accepted`.
fn partly_taken(accepted: u32, refusal: Refusal) -> Rig {
    let mut rig = rig();
    assert_eq!(rig.poll(), [], "the first poll looks at what was attached");
    rig.rails[0].refuse_next(accepted, refusal);
    rig.post([rig::write(1, 8 * 128)]);
    rig
}

#[test]
fn the_rest_of_a_batch_goes_to_the_same_rail_before_anything_else() {
    let mut rig = partly_taken(2, Refusal::QueueFull);
    assert_eq!(rig.pieces(0), [[inner(write(0, 128)), inner(write(128, 128))]], "no tail");
    rig.post([rig::write(2, 128)]);
    assert_eq!(rig.pieces(1).len(), 2, "request 2 goes elsewhere");
    assert_eq!(rig.pieces(0), Vec::<Vec<Piece>>::new());
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(0), [[inner(write(256, 128)), write(384, 128)]], "the rest, at a poll");
    let wr_ids: Vec<_> = rig.rails[0].sends().iter().map(|request| request.wr_id).collect();
    assert!(wr_ids.is_sorted() && wr_ids.len() == 4, "tags go on where they stopped");
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[1, 2]));
}

#[test]
fn a_request_whose_last_batch_is_taken_in_part_is_with_its_rails() {
    let mut rig = rig();
    rig.rails[1].refuse_next(2, Refusal::QueueFull);
    rig.post([rig::write(1, 8 * 128)]);
    assert_eq!(rig.pieces(0).len(), 1, "its share, and no more");
    assert_eq!(rig.pieces(1), [[inner(write(512, 128)), inner(write(640, 128))]]);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(1), [[inner(write(768, 128)), write(896, 128)]]);
    assert_eq!(rig.pieces(0), Vec::<Vec<Piece>>::new());
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// The receiver is notified of what has numbers, so these wait for what has none, however its
/// driver took it.
#[test]
fn numbers_wait_for_a_write_whose_last_batch_was_taken_in_part() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.rails[1].refuse_next(1, Refusal::QueueFull);
    rig.post([rig::write(1, 4 * 128), rig::write_imm(2, 128, 0)]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    let of_request_1 = |opcodes: Vec<Opcode>| opcodes == [Opcode::RdmaWrite; 2];
    assert!(of_request_1(rig.opcodes(0)) && of_request_1(rig.opcodes(1)));
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!([rig.opcodes(0), rig.opcodes(1)].concat(), [Opcode::RdmaWriteWithImm]);
    assert_eq!(rig.run_dry(), [done(2, WcOpcode::RDMA_WRITE, 128)]);
}

#[test]
fn a_batch_may_be_taken_one_by_one() {
    let mut rig = rig();
    for accepted in [1, 0, 0, 1, 0, 0, 1] {
        rig.rails[0].refuse_next(accepted, Refusal::QueueFull);
    }
    rig.post([rig::write(1, 8 * 128)]);
    rig.rails[1].complete_all();
    let mut reports = Vec::new();
    while rig.qp.unreported_sends() > 0 {
        rig.rails[0].complete_all();
        reports.extend(rig.poll_ids());
    }
    assert_eq!(reports, ok(&[1]));
    assert_eq!(rig.pieces(0).concat().len(), 4);
    let counters = rig.qp.counters(RailId::Data(0)).unwrap();
    assert_eq!((counters.send_requests, counters.bytes, counters.doorbells), (4, 512, 4));
}

#[test]
fn dqplb_numbers_go_on_in_the_rest_of_a_batch() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.rails[0].refuse_next(1, Refusal::QueueFull);
    rig.post([rig::write_imm(1, 6 * 128, 0)]);
    assert_eq!(rig.poll(), []);
    let wire = |rail: usize| {
        let sends = rig.rails[rail].sends();
        sends.iter().map(|request| request.imm.wire()).collect::<Vec<_>>()
    };
    assert_eq!(wire(0), [[0, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0]]);
    assert_eq!(wire(1), [[3, 0, 0, 0], [4, 0, 0, 0], [5, 0, 0, 0x80]]);
    assert!(rig.rails[0].sends().iter().all(|r| r.opcode == Opcode::RdmaWriteWithImm));
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn a_full_queue_with_nothing_in_flight_recovers_at_the_next_poll() {
    let mut rig = rig();
    rig.rails[0].refuse_all(Some(Refusal::QueueFull));
    rig.rails[1].refuse_all(Some(Refusal::QueueFull));
    rig.post([rig::write(1, 256)]);
    for _ in 0..3 {
        assert_eq!(rig.poll(), [], "there is no completion to wait for");
    }
    rig.rails[1].refuse_all(None);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.rails[1].sends().len(), 2, "one driver is enough");
    rig.rails[0].refuse_all(None);
    assert_eq!(rig.run_dry(), [done(1, WcOpcode::RDMA_WRITE, 256)]);
    assert_eq!(rig.qp.state(), QpState::Ready, "back-pressure is not an error");
}

#[test]
fn a_full_rail_leaves_its_share_to_the_others() {
    let mut rig = Setup::spray(3).fragment(128).rig();
    rig.rails[0].refuse_next(0, Refusal::QueueFull);
    rig.post([rig::write(1, 6 * 128)]);
    let posted: Vec<_> = rig.rails.iter().map(|rail| rail.sends().len()).collect();
    assert_eq!(posted, [0, 3, 3]);
    assert_eq!(rig.run_dry().len(), 1);
}

/// A prefix without a tail: only the rest, or an error, can retire it.
#[test]
fn the_prefix_of_a_batch_that_failed_while_the_rest_waits_is_flushed_and_reported() {
    let mut rig = partly_taken(2, Refusal::QueueFull);
    rig.rails[0].refuse_all(Some(Refusal::Driver(107)));
    rig.rails[1].complete_all();
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    let mut reports = rig.poll_ids();
    reports.extend(rig.poll_ids());
    assert_eq!(reports, [(1, WcStatus::RETRY_EXC_ERR)], "nothing more can come from that rail");
    assert_eq!(rig.poll(), []);
}

#[test]
fn a_prefix_whose_rest_the_driver_refuses_for_good_is_reported_when_flushed() {
    let mut rig = partly_taken(3, Refusal::Driver(5));
    assert_eq!(rig.qp.state(), QpState::Error);
    rig.rails[0].refuse_all(Some(Refusal::Driver(5)));
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), [], "three fragments are in flight");
    rig.rails[0].flush();
    let mut reports = rig.poll_ids();
    reports.extend(rig.poll_ids());
    assert_eq!(reports, [(1, WcStatus::GENERAL_ERR)]);
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.offset, error.errno), (3 * 128, Some(5)));
}

#[test]
fn a_prefix_whose_rest_the_driver_takes_later_is_retired_by_it() {
    let mut rig = partly_taken(3, Refusal::Driver(5));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), [], "the rest is posted");
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), [(1, WcStatus::GENERAL_ERR)]);
}

#[test]
fn the_record_of_a_refused_rest_names_the_fragment_that_was_refused() {
    let mut rig = partly_taken(1, Refusal::QueueFull);
    rig.rails[0].refuse_next(1, Refusal::Driver(5));
    assert_eq!(rig.poll(), []);
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.rail, error.offset, error.errno), (RailId::Data(0), 256, Some(5)));
}

#[test]
fn a_pending_request_that_a_driver_refuses_fails_with_what_is_behind_it() {
    let mut rig = Setup::spray(2).fragment(128).depth(1).rig();
    rig.post([rig::write(1, 256), rig::write(2, 128), rig::write(3, 128)]);
    rig.rails[0].refuse_next(0, Refusal::Driver(22));
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    rig.rails[1].complete(1);
    let expected =
        [(1, WcStatus::SUCCESS), (2, WcStatus::GENERAL_ERR), (3, WcStatus::WR_FLUSH_ERR)];
    let reports = [rig.poll_ids(), rig.poll_ids()].concat();
    assert_eq!(reports, expected);
}

#[test]
fn a_dropped_batch_posts_nothing() {
    let mut rig = rig();
    rig.post([rig::write(1, 128)]);
    let request = rig.rails[0].take_doorbells()[0][0];
    // SAFETY: the queue pair stays where it is, and nothing is posted.
    let qp = unsafe { rig.qp.physical_mut(RailId::Data(1)) }.unwrap();
    qp.start_send().add(&request);
    assert!(rig.rails[1].sends().is_empty());
}

/// A queue pair with `sq_sig_all` reports the success of unsignaled requests too.
#[test]
fn successes_of_unsignaled_requests_are_ignored() {
    let mut rig = rig();
    rig.post([rig::write(1, 8 * 128)]);
    for request in rig.rails[0].sends() {
        let signaled = request.flags.contains(SendFlags::SIGNALED);
        let completion = Completion::success(10, request.wr_id, WcOpcode::RDMA_WRITE);
        rig.rails[0].inject(completion);
        assert_eq!(rig.poll(), [], "{signaled}");
    }
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!((rig.qp.protocol_errors(), rig.qp.first_error()), (0, None));
    assert_eq!(rig.qp.state(), QpState::Ready);
}

#[test]
fn notifies_cut_off_by_a_failure_fail_their_requests() {
    let mut rig = rig();
    rig.post_together((1..=4).map(|id| rig::write_imm(id, 128, id as u32)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    rig.notify().refuse_next(2, Refusal::QueueFull);
    rig.notify().refuse_all(Some(Refusal::QueueFull));
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[1, 2]]);
    rig.notify().fail_after(1, WcStatus::RETRY_EXC_ERR);
    let flush = WcStatus::WR_FLUSH_ERR;
    let expected = [(1, WcStatus::SUCCESS), (2, WcStatus::RETRY_EXC_ERR), (3, flush), (4, flush)];
    assert_eq!([rig.poll_ids(), rig.poll_ids()].concat(), expected);
}

#[test]
fn notifies_may_be_taken_one_by_one() {
    let mut rig = rig();
    rig.post_together((1..=3).map(|id| rig::write_imm(id, 128, id as u32)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    for accepted in [1, 0, 0, 1, 0] {
        rig.notify().refuse_next(accepted, Refusal::QueueFull);
    }
    for _ in 0..6 {
        assert_eq!(rig.poll(), []);
    }
    assert_eq!(rig.notifies(), [[1], [2], [3]]);
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1, 2, 3]));
    let counters = rig.qp.counters(RailId::Notify).unwrap();
    assert_eq!((counters.send_requests, counters.doorbells), (3, 3));
}

#[test]
fn later_notifies_wait_for_the_rest_of_a_batch_that_a_driver_took_in_part() {
    let mut rig = rig();
    rig.post_together((1..=2).map(|id| rig::write_imm(id, 128, id as u32)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    rig.notify().refuse_next(1, Refusal::QueueFull);
    assert_eq!(rig.poll(), []);
    rig.notify().refuse_all(Some(Refusal::QueueFull));
    rig.post([rig::write_imm(3, 128, 3)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    rig.notify().refuse_all(None);
    assert_eq!((rig.poll(), rig.poll()), (vec![], vec![]));
    assert_eq!(rig.notifies(), [[1], [2], [3]]);
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1, 2, 3]));
}

/// The rest is still offered again: what was taken of the batch retires with it.
#[test]
fn a_notify_that_the_driver_refuses_for_good_is_given_up_with_what_is_behind_it() {
    for (first, second) in [(Some(1), 1), (Some(1), 0), (None, 2)] {
        let mut rig = rig();
        rig.post_together((1..=4).map(|id| rig::write_imm(id, 128, id as u32)));
        rig.rails.iter().for_each(|rail| rail.complete_all());
        if let Some(accepted) = first {
            rig.notify().refuse_next(accepted, Refusal::QueueFull);
        }
        rig.notify().refuse_next(second, Refusal::Driver(5));
        let mut reports = Vec::new();
        for _ in 0..8 {
            reports.extend(rig.poll_ids());
        }
        assert_eq!(reports, []);
        let sent = first.unwrap_or(0) + second;
        let posted = rig.notify().take_doorbells().concat();
        let notifications: Vec<_> =
            posted.iter().filter(|one| one.opcode == Opcode::RdmaWriteWithImm).collect();
        assert_eq!(
            notifications.len(),
            sent as usize,
            "no notification at or past what was given up"
        );
        let [.., marker] = &posted[..] else { panic!("{posted:?}") };
        assert_eq!((marker.opcode, marker.flags), (Opcode::RdmaWrite, SendFlags::SIGNALED));
        rig.notify().complete_all();
        let status = |id: u64| match id.cmp(&(u64::from(sent) + 1)) {
            Ordering::Less => WcStatus::SUCCESS,
            Ordering::Equal => WcStatus::GENERAL_ERR,
            Ordering::Greater => WcStatus::WR_FLUSH_ERR,
        };
        assert_eq!(rig.poll_ids(), [1, 2, 3, 4].map(|id| (id, status(id))));
        let counters = rig.qp.counters(RailId::Notify).unwrap();
        assert_eq!(counters.send_requests, u64::from(sent) + 1, "what the device was handed");
        let doorbells = 1 + u64::from(first.is_some() && second > 0) + 1;
        assert_eq!(counters.doorbells, doorbells, "those that rang, the marker's among them");
    }
}

/// Nothing that could make room is in flight, or only the front of a partial batch; also after
/// every queue pair was moved to ERR.
#[test]
fn a_driver_that_never_takes_the_rest_of_a_batch_ends_in_an_error() {
    let mut rig = partly_taken(2, Refusal::QueueFull);
    rig.rails.iter().for_each(|rail| rail.refuse_all(Some(Refusal::QueueFull)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    for _ in 0..4 {
        assert_eq!(rig.poll(), []);
    }
    assert_eq!(rig.qp.state(), QpState::Ready);
    assert!(rig.qp.check_stalled().is_empty(), "the first check");
    assert_eq!(rig.poll(), []);
    assert!(rig.qp.check_stalled().contains(RailId::Data(0)));
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.rail, error.errno), (RailId::Data(0), Some(12)));
    assert_eq!(rig.qp.state(), QpState::Error);
    assert_eq!(rig.qp.post_send(&rig::write(2, 128)), Err(PostSendError::InErrorState));
    assert_eq!(rig.poll(), [], "what ends the batch is refused, too");
    // A driver that takes requests again, for example flushed ones, ends the request too.
    rig.rails.iter().for_each(|rail| rail.refuse_all(None));
    assert_eq!(rig.poll(), []);
    rig.rails[0].flush();
    assert_eq!(rig.poll_ids(), [(1, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn a_driver_that_is_always_full_is_named_and_ends_in_an_error() {
    for rails in [&[0, 1][..], &[0]] {
        let mut rig = Setup::spray(2).fragment(128).depth(1).rig();
        rails.iter().for_each(|rail| rig.rails[*rail].refuse_all(Some(Refusal::QueueFull)));
        rig.post([rig::write(1, 256), rig::write(2, 256)]);
        assert_eq!(rig.poll(), []);
        assert!(rig.qp.check_stalled().is_empty());
        assert_eq!(rig.poll(), []);
        let stalled = rig.qp.check_stalled();
        assert!(
            rails.iter().all(|rail| stalled.contains(RailId::Data(*rail as u8))),
            "{stalled:?}"
        );
        assert_eq!(rig.qp.first_error().map(|error| error.errno), Some(Some(12)));
        rig.rails.iter().for_each(|rail| rail.complete_all());
        let flushed = WcStatus::WR_FLUSH_ERR;
        assert_eq!(rig.poll_ids(), [(1, flushed), (2, flushed)]);
    }
}

/// A completion would make room, so nothing has failed yet.
#[test]
fn a_driver_that_is_full_with_something_in_flight_is_named_and_may_go_on() {
    let mut rig = rig();
    rig.post([rig::write(1, 256)]);
    rig.rails.iter().for_each(|rail| rail.refuse_all(Some(Refusal::QueueFull)));
    rig.post([rig::write(2, 256)]);
    assert_eq!(rig.poll(), []);
    assert!(rig.qp.check_stalled().is_empty(), "the first check");
    let stalled: Vec<_> = rig.qp.check_stalled().collect();
    assert_eq!(stalled, [RailId::Data(0), RailId::Data(1)]);
    assert_eq!((rig.qp.state(), rig.qp.first_error()), (QpState::Ready, None));
    rig.rails.iter().for_each(|rail| rail.refuse_all(None));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.run_dry().len(), 1);
}

/// What it took at last was in flight at one check only.
#[test]
fn a_driver_that_was_full_for_a_moment_is_not_stalled() {
    let mut rig = rig();
    rig.rails.iter().for_each(|rail| rail.refuse_all(Some(Refusal::QueueFull)));
    rig.post([rig::write(1, 256)]);
    assert!(rig.qp.check_stalled().is_empty(), "the first check");
    rig.rails.iter().for_each(|rail| rail.refuse_all(None));
    assert_eq!(rig.poll(), []);
    assert!(rig.qp.check_stalled().is_empty(), "the device was given it a moment ago");
    let stalled: Vec<_> = rig.qp.check_stalled().collect();
    assert_eq!(stalled, [RailId::Data(0), RailId::Data(1)], "now it is the peer's turn");
    assert_eq!(rig.run_dry().len(), 1);
}

/// It is refused and forgotten, so nothing waits for the driver.
#[test]
fn a_refused_inline_request_is_not_a_stall() {
    let mut rig = rig();
    let inline = rig::send(1, 8).with_flags(SendFlags::SIGNALED | SendFlags::INLINE);
    for _ in 0..3 {
        rig.rails[0].refuse_next(0, Refusal::QueueFull);
        assert_eq!(rig.qp.post_send(&inline), Err(PostSendError::InlineMustWait));
        assert!(rig.qp.check_stalled().is_empty());
        assert_eq!(rig.qp.state(), QpState::Ready);
        assert_eq!(rig.poll(), []);
    }
    rig.post([inline]);
    assert_eq!(rig.run_dry().len(), 1);
}

/// A breach of the contract: an error although everything is taken.
#[test]
fn a_driver_that_takes_everything_and_complains_has_everything_in_flight() {
    let requests = [rig::write(1, 8 * 128), rig::write(1, 128), rig::send(1, 8), rig::fetch_add(1)];
    for (request, accepted) in
        requests.into_iter().flat_map(|r| [1, 4, 5, u32::MAX].map(|n| (r, n)))
    {
        for refusal in [Refusal::QueueFull, Refusal::Driver(5)] {
            let mut rig = rig();
            rig.rails[0].complain_next(accepted, refusal);
            let posted = rig.qp.post_send(&request);
            assert_eq!(posted, Ok(()), "{request:?}, {accepted}, {refusal}");
            rig.qp.invariants();
            let failed =
                refusal == Refusal::Driver(5) && accepted >= rig.rails[0].sends().len() as u32;
            rig.rails.iter().for_each(|rail| rail.complete_all());
            let mut reports = rig.poll();
            rig.rails.iter().for_each(|rail| rail.complete_all());
            reports.extend(rig.poll());
            assert_eq!(reports.len(), 1, "{request:?}, {accepted}, {refusal}");
            assert_eq!(rig.qp.unreported_sends(), 0);
            assert!(!failed || rig.qp.state() == QpState::Error);
            assert!(rig.rails.iter().all(|rail| rail.sends().is_empty()));
        }
    }
}

/// The tag of a fragment that the driver never took cannot complete anything.
#[test]
fn a_completion_of_what_was_never_posted_is_a_protocol_error() {
    let complete = {
        let mut rig = rig();
        rig.post([rig::write(1, 8 * 128)]);
        rig.rails[0].sends()
    };
    let mut rig = partly_taken(2, Refusal::QueueFull);
    rig.rails[0].refuse_all(Some(Refusal::QueueFull));
    for request in &complete[2..] {
        rig.rails[0].inject(Completion::success(10, request.wr_id, WcOpcode::RDMA_WRITE));
        let failed = Completion::failure(10, request.wr_id, WcStatus::WR_FLUSH_ERR, 0);
        rig.rails[0].inject(failed);
    }
    assert_eq!(rig.poll(), []);
    assert_eq!((rig.qp.protocol_errors(), rig.qp.state()), (4, QpState::Ready));
    rig.rails[0].refuse_all(None);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.run_dry().len(), 1);
}

/// Receives that are posted make room when they complete, however silent the peer is.
#[test]
fn a_full_receive_queue_is_not_a_stall_while_it_holds_receives() {
    let mut rig = rig();
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    rig.notify().refuse_all_recvs(Some(Refusal::QueueFull));
    rig.qp.post_recv(&RecvWr::notification(2)).unwrap();
    for _ in 0..4 {
        assert_eq!(rig.poll(), []);
        assert!(rig.qp.check_stalled().is_empty());
    }
    rig.post([rig::write_imm(3, 256, 0)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies().len(), 1, "sends are not refused");
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[3]));
    rig.notify().deliver_imm(Imm::from_number(0));
    assert_eq!(rig.poll_ids(), ok(&[1]));
    // Without posted receives nothing can make room any more.
    assert!(rig.qp.check_stalled().is_empty());
    assert_eq!(rig.poll(), []);
    assert!(rig.qp.check_stalled().contains(RailId::Notify));
    assert_eq!(rig.qp.first_error().map(|error| error.errno), Some(Some(12)));
    assert_eq!(rig.poll_ids(), [(2, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn a_driver_that_takes_receives_and_complains_has_them_posted() {
    for (accepted, refusal) in [1, 5].into_iter().flat_map(|accepted| {
        [Refusal::QueueFull, Refusal::Driver(5)].map(|refusal| (accepted, refusal))
    }) {
        let mut rig = rig();
        rig.notify().complain_next_recv(accepted, refusal);
        assert_eq!(rig.qp.post_recv(&RecvWr::notification(1)), Ok(()), "{accepted}, {refusal}");
        assert_eq!((rig.qp.unreported_recvs(), rig.notify().recvs().len()), (1, 1));
        assert_eq!(rig.qp.state() == QpState::Error, refusal == Refusal::Driver(5));
        assert_eq!(rig.poll(), []);
        rig.notify().flush();
        assert_eq!(rig.poll_ids(), [(1, WcStatus::WR_FLUSH_ERR)]);
    }
}
