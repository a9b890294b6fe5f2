//! Requests that are reported when they are done, beside those that are reported in order.

use crate::reroute::{RAIL_1, fail, fenced, spray};
use polyrail_core::verbs::{ReportOrder, SendFlags, SendWr, WcStatus};
use polyrail_core::virtual_qp::PostSendError;
use polyrail_tests::rig::{self, Rig, Setup, ok};

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
