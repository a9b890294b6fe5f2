//! Requests that are taken back with a list of buffers, with a batch of which a driver took only
//! the front, or with copies that are lost as well.

use super::{numbers, on_purpose, reports, set, stops, taken_back};
use crate::lists::{List, place};
use crate::reroute::{RAIL_0, RAIL_1, dqplb, fail, fenced, ready, spray};
use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::{SendWr, WcStatus};
use polyrail_core::virtual_qp::{PostSendError, RailId, RailState, ReportedState};
use polyrail_tests::rig::{self, Rig, Setup, ok};
use polyrail_tests::view::write;

const RAIL_2: RailId = RailId::Data(2);

fn post_list(rig: &mut Rig, wr: &SendWr<'_>, lengths: &[u32]) -> Result<(), PostSendError> {
    let posted = rig.qp.post_list(wr, &List::new(lengths).parts());
    rig.qp.invariants();
    posted
}

/// All places of the ring are free: one for a request, and one for each buffer of its list.
fn assert_all_places_are_free(rig: &mut Rig) {
    assert_eq!(rig.qp.unreported_sends(), 0);
    post_list(rig, &rig::write(99, 0), &[1; 31]).unwrap();
    let reported: Vec<_> = rig.run_dry().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(reported, ok(&[99]));
}

/// Of a list that waits nothing is posted; its buffers keep their places until its turn.
#[test]
fn a_list_that_waits_is_dropped_with_its_buffers() {
    for setup in [spray().depth(2), dqplb().depth(2)] {
        let mut rig = setup.rig();
        rig.qp.prepare_receives().unwrap();
        rig.post([rig::write_imm(1, 512, 1)]);
        post_list(&mut rig, &rig::write_imm(2, 0, 2), &[8; 28]).unwrap();
        let refused = post_list(&mut rig, &rig::write(3, 0), &[8; 2]);
        assert!(matches!(refused, Err(PostSendError::Full(_))), "{refused:?}");
        rig.qp.cancel(2).unwrap();
        assert_eq!(rig.qp.fence_cancelled(), set(&[]));
        assert_eq!(reports(&mut rig), taken_back(2, 0));
        rig.rails.iter().for_each(|rail| rail.take_doorbells().clear());
        let reported: Vec<_> = rig.run_dry().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(reported, ok(&[1]));
        assert!(rig.rails.iter().all(|rail| rail.take_doorbells().is_empty()));
        assert_all_places_are_free(&mut rig);
    }
}

/// Of a list that is posted in part, the report names the bytes up to the last fragment, wherever
/// the borders of the buffers are.
#[test]
fn the_rest_of_a_list_is_dropped() {
    for setup in [spray().depth(1), dqplb().depth(1)] {
        let mut rig = setup.rig();
        rig.qp.prepare_receives().unwrap();
        post_list(&mut rig, &rig::write_imm(1, 0, 0), &[200, 100, 129]).unwrap();
        let posted: Vec<_> = rig.rails.iter().flat_map(|rail| rail.sends()).collect();
        let posted: Vec<_> = posted.iter().map(place).collect();
        assert_eq!(posted, [(0, 0, 128, 0), (0, 128, 72, 128)]);
        rig.qp.cancel(1).unwrap();
        rig.rails.iter().for_each(|rail| rail.complete_all());
        assert_eq!(reports(&mut rig), taken_back(1, 200));
        assert!(rig.rails.iter().all(|rail| rail.sends().is_empty()));
        assert_all_places_are_free(&mut rig);
    }
}

/// What is in flight of a list is fenced, and not posted again.
#[test]
fn a_list_in_flight_is_reported_after_the_fence() {
    let mut rig = spray().rig();
    post_list(&mut rig, &rig::write_imm(1, 0, 1), &[200, 100, 129]).unwrap();
    rig.post([rig::write(2, 256)]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    rig.rails[0].take_doorbells();
    rig.qp.cancel(1).unwrap();
    assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_1]));
    stops(&mut rig, RAIL_1, 0);
    assert_eq!(reports(&mut rig), taken_back(1, 429));
    assert_eq!(rig.pieces(0).concat().len(), 1, "of request 2");
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
    assert!(rig.notifies().is_empty());
    assert_all_places_are_free(&mut rig);
}

/// With DQPLB, the numbers of a list go out without data like those of other requests; if the last
/// one arrived, the missing ones go out with the buffers that they had.
#[test]
fn numbers_of_a_list_go_out_without_data_or_with_their_buffers() {
    for last_arrives in [false, true] {
        let mut rig = dqplb().rig();
        rig.qp.prepare_receives().unwrap();
        post_list(&mut rig, &rig::write_imm(1, 0, 0), &[200, 100, 129, 7]).unwrap();
        let of_0 = numbers(&rig, 0);
        assert_eq!(of_0, [(0, false, 128), (1, false, 72), (2, false, 100)]);
        assert_eq!(numbers(&rig, 1), [(3, false, 128), (4, false, 1), (5, true, 7)]);
        rig.qp.cancel(1).unwrap();
        rig.rails[usize::from(last_arrives)].complete_all();
        assert_eq!(rig.poll(), []);
        if last_arrives {
            assert_eq!(rig.qp.fence_cancelled(), set(&[]));
            assert_eq!(rig.control_messages(), [], "it is delivered in any case");
            fail(&mut rig, 0, WcStatus::RETRY_EXC_ERR);
            rig.qp.control(fenced(RAIL_0, 0, 1)).unwrap();
            let again: Vec<_> = rig.rails[1].sends().iter().map(place).collect();
            assert_eq!(again, [(0, 128, 72, 128), (1, 0, 100, 200)]);
            rig.rails[1].complete_all();
            assert_eq!(rig.poll_ids(), ok(&[1]));
        } else {
            assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_1]));
            stops(&mut rig, RAIL_1, 1);
            assert_eq!(reports(&mut rig), taken_back(1, 436));
            assert_eq!(numbers(&rig, 0), [(4, false, 0), (5, false, 0)]);
            rig.rails[0].complete_all();
            assert_eq!(rig.poll(), []);
        }
        assert_all_places_are_free(&mut rig);
    }
}

/// The rest of a batch of which the driver took the front still follows it, or the batch would stay
/// without a completion: then the request is done.
#[test]
fn the_rest_of_a_batch_follows_though_the_request_is_taken_back() {
    for setup in [spray(), dqplb()] {
        let mut rig = setup.rig();
        rig.qp.prepare_receives().unwrap();
        rig.rails[1].refuse_next(2, Refusal::QueueFull);
        rig.post([rig::write_imm(1, 1024, 1)]);
        assert_eq!([rig.rails[0].sends().len(), rig.rails[1].sends().len()], [4, 2]);
        rig.qp.cancel(1).unwrap();
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.rails[1].sends().len(), 4, "the rest of its own batch, and nothing else");
        assert_eq!(rig.rails[0].sends().len(), 4);
        rig.rails.iter().for_each(|rail| rail.complete_all());
        let wanted = match &rig.notify {
            // Its receiver would be notified now, but is not.
            Some(_) => taken_back(1, 1024),
            None => vec![(1, WcStatus::SUCCESS, 1024)],
        };
        assert_eq!(reports(&mut rig), wanted);
        assert!(rig.notify.is_none() || rig.notifies().is_empty());
        assert_eq!(rig.qp.unreported_sends(), 0);
    }
}

/// The fence comes before the driver took the rest: that is never posted. With DQPLB its numbers
/// go out all the same, like those that did not arrive.
#[test]
fn the_rest_of_a_batch_is_withheld_by_a_fence_on_purpose() {
    for setup in [spray(), dqplb()] {
        let mut rig = setup.rig();
        rig.qp.prepare_receives().unwrap();
        rig.rails[1].refuse_next(2, Refusal::QueueFull);
        rig.rails[1].refuse_all(Some(Refusal::QueueFull));
        rig.post([rig::write_imm(1, 1024, 1)]);
        rig.qp.cancel(1).unwrap();
        rig.rails[0].complete_all();
        assert_eq!(rig.poll(), []);
        rig.rails[0].take_doorbells();
        rig.rails[1].take_doorbells();
        assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_1]));
        let is_numbered = rig.notify.is_none();
        stops(&mut rig, RAIL_1, u32::from(is_numbered));
        rig.rails[1].refuse_all(None);
        assert_eq!(reports(&mut rig), taken_back(1, 1024));
        let again = numbers(&rig, 0);
        let gaps = [(5, false, 0), (6, false, 0), (7, false, 0)];
        assert_eq!(again, if is_numbered { &gaps[..] } else { &[] });
        let sent = rig.rails[1].take_doorbells().concat();
        assert!(sent.iter().all(|mark| mark.sge.length() == 0), "{sent:?}");
        rig.rails[0].complete_all();
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.qp.unreported_sends(), 0);
        assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::Down));
    }
}

/// A copy of a WRITE is lost with a second rail: each of the two rails is awaited, in either order,
/// and a third gets nothing.
#[test]
fn both_rails_that_lost_a_copy_are_awaited() {
    for order in [[RAIL_1, RAIL_2], [RAIL_2, RAIL_1]] {
        let mut rig = Setup::spray(3).fragment(128).reroute().rig();
        rig.post([rig::write(1, 384)]);
        rig.rails[0].complete_all();
        rig.rails[2].complete_all();
        assert_eq!(rig.poll(), []);
        rig.rails.iter().for_each(|rail| drop(rail.take_doorbells()));
        fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
        let copies = [rig.pieces(0), rig.pieces(2)].concat().concat();
        assert_eq!(copies, [write(128, 128)], "one copy");
        let at = if rig.rails[2].sends().is_empty() { 0 } else { 2 };
        rig.qp.cancel(1).unwrap();
        fail(&mut rig, at, WcStatus::RETRY_EXC_ERR);
        let second = [RAIL_0, RAIL_1, RAIL_2][at];
        let order = order.map(|rail| if rail == RAIL_2 { second } else { rail });
        assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_1, second]));
        rig.control_messages();
        rig.qp.control(fenced(order[0], 0, 0)).unwrap();
        assert_eq!(rig.poll(), [], "the copy on {:?} may be executed", order[1]);
        rig.qp.control(fenced(order[1], 0, 0)).unwrap();
        assert_eq!(reports(&mut rig), taken_back(1, 384));
        assert!(rig.rails.iter().all(|rail| rail.take_doorbells().is_empty()));
        assert_eq!(rig.qp.unreported_sends(), 0);
    }
}

/// The second copy is on a rail that is fenced on purpose, and fails after the first fence.
#[test]
fn a_copy_is_lost_with_the_rail_that_was_asked_for() {
    let mut rig = Setup::spray(3).fragment(128).reroute().rig();
    rig.post([rig::write(1, 384)]);
    rig.rails[0].complete_all();
    rig.rails[2].complete_all();
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    let at = if rig.rails[2].sends().is_empty() { 0 } else { 2 };
    let second = [RAIL_0, RAIL_1, RAIL_2][at];
    rig.control_messages();
    rig.qp.cancel(1).unwrap();
    assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_1, second]));
    assert_eq!(rig.control_messages(), [super::asks(second)]);
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.poll(), []);
    fail(&mut rig, at, WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll(), []);
    rig.qp.control(on_purpose(second, ReportedState::Fenced, 0)).unwrap();
    assert_eq!(reports(&mut rig), taken_back(1, 384));
    let third = [2, 0][at / 2];
    assert!(rig.rails[third].sends().is_empty());
    rig.replace(RAIL_1, 1, 90);
    ready(&mut rig, RAIL_1, 1);
    rig.post([rig::write(2, 384)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[2]));
}
