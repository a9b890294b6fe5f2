//! The order of reports: the order of posting, or the order of completion for requests that ask for
//! it. `core/docs/architecture.md`, "Order and buffer ownership" and "One ring with four cursors".

use crate::reroute::{RAIL_1, fail, fenced, spray};
use polyrail_core::verbs::{Imm, RecvWr, ReportOrder, SendFlags, SendWr, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::Event;
use polyrail_core::virtual_qp::PostSendError;
use polyrail_tests::rig::{self, Rig, Setup, done, ok};

/// Requests 1 (on rails 0 and 1), 2 (on rails 2 and 3) and 3 (on rail 0).
fn abc() -> Rig {
    let mut rig = Setup::spray(4).fragment(128).rig();
    rig.post([rig::write(1, 256), rig::write(2, 256), rig::write(3, 128)]);
    rig
}

/// The requests complete in the order B, A, C, A.
#[test]
fn c_waits_for_b_even_though_a_is_reported() {
    let mut rig = abc();
    for (rail, expected) in [(2, vec![]), (0, vec![]), (0, vec![]), (1, ok(&[1]))] {
        rig.rails[rail].complete(1);
        assert_eq!(rig.poll_ids(), expected);
    }
    rig.rails[3].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[2, 3]));
}

/// A batch gives the same results as its completions one by one.
#[test]
fn completions_in_one_batch_and_one_by_one_report_the_same() {
    let wanted = {
        let mut rig = abc();
        rig.rails.iter().for_each(|rail| rail.complete_all());
        rig.poll_ids()
    };
    assert_eq!(wanted, ok(&[1, 2, 3]));
    let mut rig = abc();
    rig.rails.iter().for_each(|rail| rail.complete_all());
    let mut one_by_one = Vec::new();
    while rig.nic.unpolled() > 0 || rig.qp.unreported_sends() > 0 {
        let (events, _) = rig.poll_events(1);
        one_by_one.extend(events.into_iter().filter_map(Event::completion));
    }
    let ids: Vec<_> = one_by_one.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ids, wanted);
}

/// Completions of receives never wait for pending sends.
#[test]
fn sends_and_receives_are_ordered_independently() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256)]);
    let recv = RecvWr::notification(50);
    rig.qp.post_recv(&recv).unwrap();
    rig.notify().deliver_imm(Imm::from_number(9));
    let mut expected = done(50, WcOpcode::RECV_RDMA_WITH_IMM, 0);
    expected.imm = Some(9);
    assert_eq!(rig.poll(), [expected]);
    assert_eq!(rig.run_dry(), [done(1, WcOpcode::RDMA_WRITE, 256)]);
}

/// Sends and receives are ordered separately; neither keeps the other waiting.
#[test]
fn finished_sends_and_receives_are_reported_in_turns() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    for id in [11, 12, 13] {
        rig.qp.post_recv(&RecvWr::notification(id)).unwrap();
        rig.notify().deliver_imm(Imm::from_number(0));
    }
    rig.post((1..=3).map(|id| rig::write(id, 128)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[11, 1, 12, 2, 13, 3]));
}

/// Fragments of 128 bytes, so that short requests take rails in turns.
fn two_rails() -> Rig {
    Setup::spray(2).fragment(128).rig()
}

/// A WRITE of one fragment that is reported when it is done.
fn ahead(wr_id: u64) -> SendWr<'static> {
    rig::write(wr_id, 128).reported(ReportOrder::WhenDone)
}

#[test]
fn one_that_is_done_is_reported_though_those_before_it_are_not() {
    let mut rig = two_rails();
    rig.post([rig::write(1, 128), ahead(2), rig::write(3, 128), ahead(4)]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2, 4]));
    assert_eq!(rig.qp.unreported_sends(), 2);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1, 3]));
    assert_eq!(rig.qp.unreported_sends(), 0);
}

#[test]
fn it_is_reported_when_its_last_fragment_is_acknowledged() {
    let mut rig = two_rails();
    let long = rig::write(2, 512).reported(ReportOrder::WhenDone);
    rig.post([rig::write(1, 128), long]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), []);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids().len(), 2);
}

#[test]
fn in_its_turn_it_is_reported_in_its_turn() {
    let mut rig = two_rails();
    rig.post([ahead(1), rig::write(2, 128), ahead(3)]);
    assert_eq!(rig.run_dry().len(), 3);
    assert_eq!(rig.qp.unreported_sends(), 0);
}

#[test]
fn the_queue_pair_decides_for_requests_that_do_not() {
    let setup = Setup::spray(2).fragment(128);
    let setup = setup.config(|config| config.report_order = ReportOrder::WhenDone);
    let mut rig: Rig = setup.rig();
    rig.post([rig::write(1, 128), rig::write(2, 128)]);
    rig.post([rig::write(3, 128), rig::write(4, 128).reported(ReportOrder::InOrder)]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
    rig.rails[0].complete_all();
    let reported = rig.poll_ids();
    assert!(reported.iter().all(|one| ok(&[1, 3, 4]).contains(one)), "{reported:?}");
    assert_eq!(reported.last(), ok(&[4]).last());
}

#[test]
fn one_reported_ahead_of_its_turn_keeps_its_place() {
    let mut rig: Rig<4, 16, 4> = Setup::spray(2).fragment(128).build();
    rig.post([rig::write(1, 128), ahead(2), rig::write(3, 128), ahead(4)]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2, 4]));
    let refused = rig.qp.post_send(&rig::write(5, 128));
    assert!(matches!(refused, Err(PostSendError::Full(_))), "{refused:?}");
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.post([rig::write(5, 128), rig::write(6, 128)]);
    assert_eq!(rig.run_dry().len(), 3);
}

#[test]
fn the_budget_holds_for_reports_ahead_of_their_turn() {
    let mut rig = two_rails();
    rig.post([rig::write(1, 128), ahead(2), rig::write(3, 128), ahead(4)]);
    rig.rails[1].complete_all();
    rig.rails[0].complete_all();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let (events, _) = rig.poll_events(1);
        seen.extend(events.iter().filter_map(|event| event.completion()).map(|wc| wc.wr_id));
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4]);
    assert_eq!(rig.poll(), []);
}

#[test]
fn each_is_reported_once_with_the_status_that_it_failed_with() {
    let mut rig = two_rails();
    rig.post([rig::write(1, 128), ahead(2), rig::write(3, 128), ahead(4)]);
    rig.rails[1].fail(WcStatus::REM_ACCESS_ERR);
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(rig.poll_ids(), [(2, WcStatus::REM_ACCESS_ERR), (4, flushed)]);
    rig.rails[0].flush();
    assert_eq!(rig.poll_ids(), [(1, flushed), (3, flushed)]);
    assert_eq!(rig.qp.unreported_sends(), 0);
}

#[test]
fn one_that_no_rail_got_is_flushed_at_once() {
    let mut rig = Setup::spray(2).fragment(128).depth(1).rig();
    rig.post([rig::write(1, 128), rig::write(2, 128), ahead(3), rig::write(4, 128)]);
    rig.rails[1].fail(WcStatus::REM_ACCESS_ERR);
    assert_eq!(rig.poll_ids(), [(3, WcStatus::WR_FLUSH_ERR)], "the others wait for the first");
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids().iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 4]);
}

#[test]
fn the_success_of_an_unsignaled_one_is_not_reported() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    let quiet = rig::write_imm(2, 128, 0).reported(ReportOrder::WhenDone);
    rig.post([rig::write_imm(1, 128, 0), quiet.with_flags(SendFlags::empty())]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), []);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.qp.unreported_sends(), 0);
}

#[test]
fn with_spray_one_that_notifies_is_reported_when_its_receiver_is_notified() {
    let mut rig = two_rails();
    let notifying = rig::write_imm(2, 128, 7).reported(ReportOrder::WhenDone);
    rig.post([rig::write(1, 128), notifying]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), []);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.notifies(), [[7]]);
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
}

/// A lost fragment may still be carried out, so nothing is reported before the fence.
#[test]
fn one_that_was_posted_again_is_reported_after_the_fence() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 128), ahead(2), rig::write(3, 128)]);
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    let again = rig.rails[0].sends().len();
    assert_eq!(again, 3);
    // The lost one of the middle is acknowledged before the others: it went out last.
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1, 2, 3]));
}
