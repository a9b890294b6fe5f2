//! Receives that were posted to a rail that failed. `core/docs/rails-that-fail.md`, "What happens
//! to requests".

use super::{RAIL_0, RAIL_1, dqplb, fenced, ready, spray};
use polyrail_core::verbs::{Imm, RecvWr, WcStatus};
use polyrail_core::virtual_qp::{
    ControlMessage, Failure, PostRecvError, RailError, RailId, RailState, ReportedState,
};
use polyrail_tests::rig::{self, KEYS, Rig, imm, local, ok};

fn reported_arrived(rig: &mut Rig, rail: RailId) -> u32 {
    let told = rig.control_messages();
    let [ControlMessage::Rail(news)] = told[..] else { panic!("{told:?}") };
    assert_eq!((news.rail, news.state), (rail, ReportedState::Fenced));
    news.arrived
}

/// What arrived before the flush counts, whatever was flushed does not.
#[test]
fn what_arrived_is_reported_once_all_receives_are_taken() {
    let mut rig = dqplb().rig();
    rig.qp.prepare_receives().unwrap();
    for number in 0..3 {
        rig.rails[1].deliver_imm(imm(number, false));
    }
    rig.rails[1].flush();
    assert_eq!(rig.poll(), []);
    assert_eq!(reported_arrived(&mut rig, RAIL_1), 3);
}

/// DQPLB's flushed receives vanish; its new queue pair has the full number before Ready is sent.
#[test]
fn a_replacement_has_all_receives_before_ready_is_sent() {
    let mut rig = dqplb().rig();
    rig.qp.prepare_receives().unwrap();
    rig.qp.fail_rail(RAIL_1);
    assert_eq!(rig.poll(), []);
    rig.control_messages();
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    let handle = rig.replace(RAIL_1, 1, 77);
    assert_eq!(handle.recvs().len(), 8);
    let [ControlMessage::Rail(news)] = rig.control_messages()[..] else { panic!("one message") };
    assert_eq!((news.state, news.generation), (ReportedState::Ready, 1));
    assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::Joining));
    handle.deliver_imm(imm(0, true));
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]), "completions are taken while it joins");
}

/// Notification receives of SPRAY wait for the replacement, in order, and those posted meanwhile
/// behind.
#[test]
fn notification_receives_are_posted_again_in_order() {
    let mut rig = spray().rig();
    for id in 1..=3 {
        rig.qp.post_recv(&RecvWr::notification(id)).unwrap();
    }
    rig.notify().deliver_imm(Imm::from_number(5));
    rig.notify().flush();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(reported_arrived(&mut rig, RailId::Notify), 1);
    rig.qp.post_recv(&RecvWr::notification(4)).unwrap();
    assert!(rig.notify().recvs().is_empty());
    rig.qp.control(fenced(RailId::Notify, 0, 0)).unwrap();
    let handle = rig.replace(RailId::Notify, 1, 77);
    assert_eq!(handle.recvs().len(), 3);
    ready(&mut rig, RailId::Notify, 1);
    (0..3).for_each(|number| handle.deliver_imm(Imm::from_number(number)));
    assert_eq!(rig.poll_ids(), ok(&[2, 3, 4]));
}

/// The same for receives with buffers, on rail 0.
#[test]
fn data_receives_are_posted_again_in_order() {
    let mut rig = spray().depth(4).rig();
    let data = |id| RecvWr::data(id, rig::local(8 * id as u32), &rig::KEYS);
    (1..=3).for_each(|id| rig.qp.post_recv(&data(id)).unwrap());
    rig.rails[0].deliver_send(8, None);
    rig.rails[0].flush();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(reported_arrived(&mut rig, RAIL_0), 1);
    (4..=5).for_each(|id| rig.qp.post_recv(&data(id)).unwrap());
    assert_eq!(rig.qp.post_recv(&data(6)), Err(PostRecvError::QueueFull(RAIL_0)));
    rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
    let handle = rig.replace(RAIL_0, 1, 77);
    let lengths: Vec<_> = handle.recvs().iter().map(|recv| recv.sge.length()).collect();
    assert_eq!(lengths, [16, 24, 32, 40]);
    ready(&mut rig, RAIL_0, 1);
    (0..4).for_each(|_| handle.deliver_send(8, None));
    assert_eq!(rig.poll_ids(), ok(&[2, 3, 4, 5]));
}

/// Given up while rail 0 is down: every receive is reported, flushed, once and in order.
#[test]
fn receives_that_wait_for_a_rail_are_flushed_when_all_is_given_up() {
    let mut rig = spray().rig();
    let data = |id| RecvWr::data(id, rig::local(8), &rig::KEYS);
    (1..=2).for_each(|id| rig.qp.post_recv(&data(id)).unwrap());
    (3..=4).for_each(|id| rig.qp.post_recv(&RecvWr::notification(id)).unwrap());
    rig.qp.fail_rail(RAIL_0);
    assert_eq!(rig.poll(), []);
    rig.qp.fail();
    let mut reports = rig.poll_ids();
    reports.extend(rig.poll_ids());
    reports.sort_unstable_by_key(|(id, _)| *id);
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(reports, [(1, flushed), (2, flushed), (3, flushed), (4, flushed)]);
    assert_eq!(rig.control_messages(), [ControlMessage::Error]);
}

/// A sender's device reports for a port that is down what a receiver's reports for a buffer that is
/// too short.
#[test]
fn a_bad_buffer_of_a_receive_is_no_failure_of_its_rail() {
    let fails = |mut rig: Rig| {
        rig.rails[0].fail_recv(WcStatus::LOC_QP_OP_ERR);
        let reports = rig.poll_ids();
        let failure = rig.qp.failure();
        let is_it = |error: RailError| error.status == WcStatus::LOC_QP_OP_ERR;
        assert!(matches!(failure, Some(Failure::Rail(error)) if is_it(error)), "{failure:?}");
        reports
    };
    let mut rig = spray().rig();
    rig.qp.post_recv(&RecvWr::data(1, local(64), &KEYS)).unwrap();
    assert_eq!(fails(rig), [(1, WcStatus::LOC_QP_OP_ERR)]);
    let mut rig = dqplb().rig();
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    assert_eq!(fails(rig), [(1, WcStatus::WR_FLUSH_ERR)]);
}
