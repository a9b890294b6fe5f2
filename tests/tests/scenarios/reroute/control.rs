//! The messages that one end sends, and how it handles the messages that it receives.
//! `core/docs/rails-that-fail.md`, "Messages between the ends".

use super::{RAIL_0, RAIL_1, dqplb, fail, failed, fenced, news, ready, spray};
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{
    ControlError, ControlMessage, FailedBecause, Failure, QpState, RailEventKind, RailId,
    RailReport, RailState, ReportedState,
};
use polyrail_tests::rig::{self, Setup, ok};

#[test]
fn the_end_that_notices_a_failure_reports_it_and_the_other_end_follows() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 256)]);
    rig.qp.control(failed(RAIL_1)).unwrap();
    assert!(rig.rails[1].is_errored(), "it answers its peer no more");
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.control_messages(), [fenced(RAIL_1, 0, 0)]);
    let events = rig.rail_events();
    let why = FailedBecause::Peer;
    assert_eq!(events[0].kind, RailEventKind::Failed { why, refused: None });
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// An unsent state gives way to a newer one.
#[test]
fn only_the_newest_state_is_sent() {
    let mut rig = spray().rig();
    rig.qp.fail_rail(RAIL_1);
    assert_eq!(
        rig.control_messages(),
        [fenced(RAIL_1, 0, 0)],
        "nothing was posted: drained at once"
    );
    assert_eq!(rig.control_messages(), []);
    rig.qp.control_lost();
    assert_eq!(rig.control_messages(), [fenced(RAIL_1, 0, 0)]);
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    rig.replace(RAIL_1, 1, 77);
    ready(&mut rig, RAIL_1, 1);
    let ready = news(RAIL_1, 1, ReportedState::Ready, 0);
    assert_eq!(rig.control_messages(), [ready]);
    rig.qp.control_lost();
    assert_eq!(rig.control_messages(), [ready], "in service again, and said again all the same");
}

/// In the other order, the peer would have no rail in service between the two, and fail.
#[test]
fn a_rail_that_is_back_is_reported_before_a_rail_that_failed() {
    let mut rig = spray().rig();
    rig.qp.fail_rail(RAIL_1);
    assert_eq!(rig.control_messages(), [fenced(RAIL_1, 0, 0)]);
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    rig.replace(RAIL_1, 1, 77);
    ready(&mut rig, RAIL_1, 1);
    rig.qp.fail_rail(RAIL_0);
    let messages = [news(RAIL_1, 1, ReportedState::Ready, 0), fenced(RAIL_0, 0, 0)];
    assert_eq!(rig.control_messages(), messages);
    rig.qp.control_lost();
    assert_eq!(rig.control_messages(), messages);
}

#[test]
fn a_virtual_queue_pair_that_fails_for_good_reports_it() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 256)]);
    rig.rails[1].fail(WcStatus::REM_ACCESS_ERR);
    let reports = rig.poll_ids();
    assert_eq!(rig.control_messages(), [ControlMessage::Error]);
    assert_eq!(rig.control_messages(), []);
    rig.qp.control_lost();
    assert_eq!(rig.control_messages(), [ControlMessage::Error]);
    let reports = [reports, rig.poll_ids()].concat();
    assert_eq!(reports, [(1, WcStatus::REM_ACCESS_ERR)]);
    assert!(rig.rails[0].is_errored(), "all queue pairs are drained");
}

#[test]
fn a_peer_that_failed_for_good_ends_this_side() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 256)]);
    rig.qp.control(ControlMessage::Error).unwrap();
    assert_eq!(rig.qp.failure(), Some(Failure::Peer));
    assert_eq!(rig.poll_ids(), [(1, WcStatus::WR_FLUSH_ERR)]);
    assert!(rig.qp.unfenced().eq([RAIL_0, RAIL_1]));
    rig.qp.control(failed(RAIL_1)).unwrap();
    assert_eq!(rig.qp.ignored_controls(), 1);
}

#[test]
fn a_message_that_no_correct_peer_sends_ends_the_virtual_queue_pair() {
    let cases = [
        (fenced(RAIL_1, 0, 3), ControlError::Arrived { rail: RAIL_1, arrived: 3, posted: 2 }),
        (fenced(RailId::Data(5), 0, 0), ControlError::NoRail(RailId::Data(5))),
        (fenced(RailId::Notify, 0, 0), ControlError::NoRail(RailId::Notify)),
        (
            news(RAIL_1, 1, ReportedState::Ready, 0),
            ControlError::Generation {
                rail: RAIL_1,
                state: RailState::InService,
                generation: 0,
                reported: 1,
            },
        ),
    ];
    for (message, error) in cases {
        let mut rig = dqplb().rig();
        rig.qp.prepare_receives().unwrap();
        rig.post([rig::write_imm(1, 512, 0)]);
        assert_eq!(rig.qp.control(message), Err(error));
        assert_eq!(rig.qp.failure(), Some(Failure::Control(error)));
        assert_eq!(rig.poll_ids(), [(1, WcStatus::WR_FLUSH_ERR)]);
        assert_eq!(rig.control_messages(), [ControlMessage::Error]);
    }
}

/// The peer took fewer completions than its NIC acknowledged: its completion queue broke.
#[test]
fn a_peer_that_lost_completions_ends_the_virtual_queue_pair() {
    let mut rig = dqplb().rig();
    rig.qp.prepare_receives().unwrap();
    rig.post([rig::write_imm(1, 512, 0)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.qp.fail_rail(RAIL_1);
    assert_eq!(rig.poll(), []);
    rig.qp.control(fenced(RAIL_1, 0, 1)).unwrap();
    let lost = Failure::CompletionsLost { rail: RAIL_1, arrived: 1, acknowledged: 2 };
    assert_eq!(rig.qp.failure(), Some(lost));
}

#[test]
fn without_rerouting_messages_change_nothing() {
    let mut rig = Setup::spray(2).rig();
    assert_eq!(rig.qp.control(failed(RAIL_1)), Err(ControlError::NotRerouting));
    assert_eq!(rig.qp.control(ControlMessage::Error), Err(ControlError::NotRerouting));
    assert!(!rig.qp.fail_rail(RAIL_1));
    assert_eq!(rig.qp.state(), QpState::Ready);
    rig.qp.control_lost();
    assert_eq!(rig.control_messages(), []);
}

/// "g + 1: Failed, Fenced: adopt g + 1 and answer Fenced with 0 at once, without a queue pair."
#[test]
fn a_queue_pair_that_failed_before_there_was_one_here_is_answered() {
    let mut rig = spray().rig();
    fail_idle(&mut rig, RAIL_1);
    rig.qp.control(news(RAIL_1, 1, ReportedState::Failed, 0)).unwrap();
    assert_eq!(rig.control_messages(), [fenced(RAIL_1, 1, 0)]);
    rig.qp.control(fenced(RAIL_1, 1, 0)).unwrap();
    assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::Down));
    assert_eq!(rig.qp.rail_generation(RAIL_1), Some(1));
    rig.replace(RAIL_1, 2, 77);
    ready(&mut rig, RAIL_1, 2);
    rig.post([rig::write(1, 256)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// The peer's Fenced was lost with the link; its next message carries the number.
#[test]
fn a_peer_that_is_one_generation_ahead_reports_what_arrived_before() {
    let mut rig = dqplb().rig();
    rig.qp.prepare_receives().unwrap();
    rig.post([rig::write_imm(1, 512, 0)]);
    rig.rails[0].complete_all();
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    rig.qp
        .control(ControlMessage::Rail(RailReport {
            rail: RAIL_1,
            generation: 1,
            state: ReportedState::Ready,
            arrived: 0,
            previous_arrived: 2,
            on_purpose: false,
        }))
        .unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.replace(RAIL_1, 1, 77);
    assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::InService), "the peer is ready");
}

/// A message of the next generation ends this one, then adopts the next: each event names the
/// generation that it is of, and none takes the place of another, however many generations the peer
/// goes through. An owner that reads them after each message misses none.
#[test]
fn events_of_generations_that_are_adopted_come_in_their_order() {
    let mut rig = dqplb().rig();
    rig.qp.prepare_receives().unwrap();
    rig.post([rig::write_imm(1, 512, 0)]);
    rig.rails[0].complete_all();
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    let mut events = Vec::new();
    for generation in 1..3 {
        rig.qp
            .control(ControlMessage::Rail(RailReport {
                rail: RAIL_1,
                generation,
                state: ReportedState::Failed,
                arrived: 0,
                previous_arrived: if generation == 1 { 2 } else { 0 },
                on_purpose: false,
            }))
            .unwrap();
        events.extend(rig.rail_events());
    }
    rig.qp.control(fenced(RAIL_1, 3, 0)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    events.extend(rig.rail_events());
    let happened: Vec<_> = events
        .iter()
        .map(|event| (event.generation, matches!(event.kind, RailEventKind::Failed { .. })))
        .collect();
    let expected: Vec<_> = (0..4).flat_map(|of| [(of, true), (of, false)]).collect();
    assert_eq!(happened, expected, "each failure, then its fence");
    assert_eq!(events[1].kind, RailEventKind::Fenced { arrived: 2, again: 0 });
    assert_eq!(events[3].kind, RailEventKind::Fenced { arrived: 0, again: 0 });
}

fn fail_idle(rig: &mut polyrail_tests::rig::Rig, rail: RailId) {
    rig.qp.fail_rail(rail);
    rig.control_messages();
    rig.qp.control(fenced(rail, 0, 0)).unwrap();
    assert_eq!(rig.qp.rail_state(rail), Some(RailState::Down));
}
