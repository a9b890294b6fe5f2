//! Two ends on their own NICs, which exchange what they send: both ask, and what is lost with the
//! link is sent again. What one end posts does not arrive at the other.

use super::{asks, numbers, on_purpose, reports, set, stops, taken_back};
use crate::reroute::{RAIL_0, RAIL_1, dqplb, fail, fenced, spray};
use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::{Opcode, WcStatus};
use polyrail_core::virtual_qp::{
    ControlMessage, FailedBecause, Failure, QpState, RailEventKind, RailId, RailState,
    ReportedState,
};
use polyrail_tests::rig::{self, Rig, Setup, ok};

/// Two ends that fail with a rail fewer than they have.
fn ends(setup: Setup) -> [Rig; 2] {
    let setup = setup.config(|config| config.min_rails = 2);
    [setup.rig(), setup.rig()]
}

fn hear(end: &mut Rig, messages: &[ControlMessage]) {
    messages.iter().for_each(|message| end.qp.control(*message).unwrap());
    end.qp.invariants();
}

/// What both ends have for each other, before either receives anything.
fn messages(ends: &mut [Rig; 2]) -> [Vec<ControlMessage>; 2] {
    ends.each_mut().map(Rig::control_messages)
}

/// Both ends receive what the other had sent.
fn cross(ends: &mut [Rig; 2]) {
    let [from_0, from_1] = messages(ends);
    hear(&mut ends[0], &from_1);
    hear(&mut ends[1], &from_0);
}

/// Both ends replace a rail, and are ready.
fn replace(ends: &mut [Rig; 2], rail: RailId) {
    for end in ends.iter_mut() {
        assert_eq!(end.qp.rail_state(rail), Some(RailState::Down));
        end.replace(rail, 1, 90 + rail_number(rail));
    }
    cross(ends);
    for end in ends.iter() {
        assert_eq!(end.qp.rail_state(rail), Some(RailState::InService));
    }
    // The answers change nothing.
    cross(ends);
}

fn rail_number(rail: RailId) -> u32 {
    match rail {
        RailId::Data(number) => number.into(),
        RailId::Notify => 7,
    }
}

fn failures(end: &mut Rig) -> Vec<(RailId, FailedBecause)> {
    let failed = |event: polyrail_core::virtual_qp::RailEvent| match event.kind {
        RailEventKind::Failed { why, .. } => Some((event.rail, why)),
        _ => None,
    };
    end.rail_events().into_iter().filter_map(failed).collect()
}

/// A WRITE of which one fragment is in flight, on this rail, and which is taken back.
fn write_and_take_back(end: &mut Rig, wr_id: u64, on: usize) {
    end.post([rig::write(wr_id, 256)]);
    end.rails[1 - on].complete_all();
    assert_eq!(end.poll(), []);
    end.qp.cancel(wr_id).unwrap();
    assert_eq!(end.qp.fence_cancelled(), set(&[RailId::Data(on as u8)]));
}

/// Both ends ask for the same rail, and what they send crosses: each takes the other's question for
/// the answer.
#[test]
fn both_ends_ask_for_the_same_rail() {
    let mut ends = ends(spray());
    ends.iter_mut().for_each(|end| write_and_take_back(end, 1, 1));
    let sent = messages(&mut ends);
    assert_eq!(sent, [[asks(RAIL_1)], [asks(RAIL_1)]]);
    hear(&mut ends[0], &sent[1]);
    hear(&mut ends[1], &sent[0]);
    for end in &mut ends {
        assert!(end.rails[1].is_errored());
        assert_eq!(end.poll(), [], "the other end may still execute it");
        assert_eq!(failures(end), [(RAIL_1, FailedBecause::OnPurpose)]);
    }
    let sent = messages(&mut ends);
    assert_eq!(sent, [0, 1].map(|_| [on_purpose(RAIL_1, ReportedState::Fenced, 0)]));
    hear(&mut ends[0], &sent[1]);
    assert_eq!(reports(&mut ends[0]), taken_back(1, 256));
    assert_eq!(ends[1].poll(), []);
    hear(&mut ends[1], &sent[0]);
    assert_eq!(reports(&mut ends[1]), taken_back(1, 256));
    replace(&mut ends, RAIL_1);
    for end in &mut ends {
        assert_eq!((end.qp.state(), end.qp.failure()), (QpState::Ready, None));
        end.post([rig::write(2, 256)]);
        end.rails.iter().for_each(|rail| rail.complete_all());
        assert_eq!(end.poll_ids(), ok(&[2]));
    }
}

/// One end still waits for its own atomics when it is asked for the rail that it wants to have
/// fenced: it stops once they are complete, and asks no more. A new atomic goes to the rail after
/// its return.
#[test]
fn an_end_that_waits_for_its_atomics_is_asked() {
    let mut ends = ends(spray());
    ends[0].post([rig::fetch_add(5)]);
    for end in &mut ends {
        write_and_take_back(end, 1, 0);
    }
    ends[0].opcodes(0);
    let sent = messages(&mut ends);
    assert_eq!(sent, [vec![], vec![asks(RAIL_0)]]);
    hear(&mut ends[0], &sent[1]);
    assert!(!ends[0].rails[0].is_errored());
    ends[0].post([rig::fetch_add(6)]);
    assert_eq!(ends[0].opcodes(0), []);
    assert_eq!(ends[0].poll(), []);
    assert_eq!(ends[0].control_messages(), []);
    // What it wanted by itself is still wanted, and changes nothing.
    assert_eq!(ends[0].qp.fence_cancelled(), set(&[RAIL_0]));
    assert_eq!(ends[0].control_messages(), []);
    ends[0].rails[0].complete(1);
    assert_eq!(ends[0].poll_ids(), ok(&[5]));
    assert!(ends[0].rails[0].is_errored());
    assert_eq!(failures(&mut ends[0]), [(RAIL_0, FailedBecause::PeerOnPurpose)]);
    assert_eq!(ends[0].poll(), []);
    assert!(!ends[1].rails[0].is_errored(), "until the answer");
    cross(&mut ends);
    assert_eq!(failures(&mut ends[1]), [(RAIL_0, FailedBecause::OnPurpose)]);
    assert_eq!(reports(&mut ends[1]), taken_back(1, 256));
    cross(&mut ends);
    assert_eq!(reports(&mut ends[0]), taken_back(1, 256));
    replace(&mut ends, RAIL_0);
    assert_eq!(ends[0].opcodes(0), [Opcode::FetchAdd]);
    ends[0].post([rig::fetch_add(7)]);
    assert_eq!(ends[0].opcodes(0), [Opcode::FetchAdd], "nothing holds atomics any more");
    ends[0].rails[0].complete_all();
    assert_eq!(ends[0].poll_ids(), ok(&[6, 7]));
    assert!(ends.iter().all(|end| end.qp.state() == QpState::Ready));
}

/// Both wait for their atomics: whichever is ready first asks.
#[test]
fn both_ends_wait_for_their_atomics() {
    let mut ends = ends(spray());
    for end in &mut ends {
        end.post([rig::fetch_add(5)]);
        write_and_take_back(end, 1, 0);
        assert_eq!(end.control_messages(), []);
    }
    ends[0].rails[0].complete(1);
    assert_eq!(ends[0].poll_ids(), ok(&[5]));
    cross(&mut ends);
    assert!(ends.iter().all(|end| !end.rails[0].is_errored()));
    ends[1].rails[0].complete(1);
    assert_eq!(ends[1].poll_ids(), ok(&[5]));
    assert!(ends[1].rails[0].is_errored() && !ends[0].rails[0].is_errored());
    assert_eq!(ends[1].poll(), []);
    cross(&mut ends);
    assert_eq!(reports(&mut ends[0]), taken_back(1, 256));
    cross(&mut ends);
    assert_eq!(reports(&mut ends[1]), taken_back(1, 256));
    replace(&mut ends, RAIL_0);
    for end in &mut ends {
        end.post([rig::fetch_add(6)]);
        end.rails[0].complete_all();
        assert_eq!(end.poll_ids(), ok(&[6]));
    }
}

/// The link takes the question with it, then the answer: each is sent again over the next one.
#[test]
fn question_and_answer_are_sent_again_over_a_new_link() {
    for atomics in [false, true] {
        let mut ends = ends(spray());
        if atomics {
            ends[1].post([rig::fetch_add(5)]);
        }
        write_and_take_back(&mut ends[0], 1, 0);
        let new_link = |ends: &mut [Rig; 2]| ends.iter_mut().for_each(|end| end.qp.control_lost());
        assert_eq!(messages(&mut ends), [vec![asks(RAIL_0)], vec![]]);
        new_link(&mut ends);
        assert_eq!(ends[0].poll(), []);
        let sent = messages(&mut ends);
        assert_eq!(sent, [vec![asks(RAIL_0)], vec![]], "the question again");
        hear(&mut ends[1], &sent[0]);
        assert_eq!(ends[1].rails[0].is_errored(), !atomics);
        if atomics {
            new_link(&mut ends);
            let sent = messages(&mut ends);
            assert_eq!(sent, [vec![asks(RAIL_0)], vec![]], "once more");
            hear(&mut ends[1], &sent[0]);
            assert_eq!(ends[1].qp.ignored_controls(), 1);
            assert!(!ends[1].rails[0].is_errored());
            ends[1].rails[0].complete(1);
            assert_eq!(ends[1].poll_ids(), ok(&[5]));
        }
        assert_eq!(ends[1].poll(), []);
        let answer = on_purpose(RAIL_0, ReportedState::Fenced, 0);
        assert_eq!(messages(&mut ends), [vec![], vec![answer]], "it is lost");
        new_link(&mut ends);
        let sent = messages(&mut ends);
        assert_eq!(sent, [[asks(RAIL_0)], [answer]]);
        let ignored = ends[1].qp.ignored_controls();
        hear(&mut ends[1], &sent[0]);
        assert_eq!(ends[1].qp.ignored_controls(), ignored + 1, "it has stopped");
        hear(&mut ends[0], &sent[1]);
        assert_eq!(failures(&mut ends[0]), [(RAIL_0, FailedBecause::OnPurpose)]);
        assert_eq!(reports(&mut ends[0]), taken_back(1, 256));
        // Nor does it matter that the last word is lost.
        messages(&mut ends);
        new_link(&mut ends);
        cross(&mut ends);
        replace(&mut ends, RAIL_0);
        assert!(ends.iter().all(|end| end.qp.state() == QpState::Ready));
    }
}

/// A rail fails by itself after the peer was asked, and that is what is sent again over a new link.
/// It counts as in service at both ends, because the peer's queue pair had stopped.
#[test]
fn a_rail_that_fails_after_the_question_stays_out_on_purpose_over_a_new_link() {
    let mut ends = ends(spray());
    write_and_take_back(&mut ends[0], 1, 1);
    let question = messages(&mut ends);
    hear(&mut ends[1], &question[0]);
    assert_eq!(ends[1].poll(), []);
    messages(&mut ends);
    fail(&mut ends[0], 1, WcStatus::RETRY_EXC_ERR);
    messages(&mut ends);
    ends.iter_mut().for_each(|end| end.qp.control_lost());
    let sent = messages(&mut ends);
    assert_eq!(sent, [[fenced(RAIL_1, 0, 0)], [on_purpose(RAIL_1, ReportedState::Fenced, 0)]]);
    hear(&mut ends[0], &sent[1]);
    hear(&mut ends[1], &sent[0]);
    assert_eq!(reports(&mut ends[0]), taken_back(1, 256));
    assert!(ends.iter().all(|end| end.qp.failure().is_none()), "min_rails is 2");
    replace(&mut ends, RAIL_1);
    assert!(ends.iter().all(|end| end.qp.state() == QpState::Ready));
}

/// Without the question, the peer can only count it as failed.
#[test]
fn a_question_that_was_lost_excuses_no_failure_at_the_peer() {
    let mut ends = ends(spray());
    write_and_take_back(&mut ends[0], 1, 1);
    messages(&mut ends);
    fail(&mut ends[0], 1, WcStatus::RETRY_EXC_ERR);
    ends.iter_mut().for_each(|end| end.qp.control_lost());
    cross(&mut ends);
    let too_few = Failure::TooFewRails { in_service: 1, min_rails: 2 };
    assert_eq!(ends[1].qp.failure(), Some(too_few));
    assert_eq!(ends[0].qp.failure(), None);
    cross(&mut ends);
    assert_eq!(ends[0].qp.failure(), Some(Failure::Peer));
    assert_eq!(ends[0].poll_ids(), [(1, WcStatus::WR_FLUSH_ERR)]);
}

/// All rails are fenced at once, so nothing is in service for a while, at either end: what is
/// posted meanwhile waits, and numbers of DQPLB as well.
#[test]
fn all_rails_are_out_on_purpose_and_return() {
    for is_numbered in [false, true] {
        let mut ends = ends(if is_numbered { dqplb() } else { spray() });
        ends.iter_mut().for_each(|end| end.qp.prepare_receives().unwrap());
        ends[0].post([rig::write_imm(1, 256, 0)]);
        ends[1].post([rig::write(8, 256)]);
        ends[0].qp.cancel(1).unwrap();
        assert_eq!(ends[0].qp.fence_cancelled(), set(&[RAIL_0, RAIL_1]));
        ends[0].rails.iter().for_each(|rail| drop(rail.take_doorbells()));
        cross(&mut ends);
        for end in &mut ends {
            assert_eq!(end.poll(), []);
        }
        cross(&mut ends);
        assert_eq!(reports(&mut ends[0]), taken_back(1, 256));
        assert_eq!(ends[1].poll(), []);
        cross(&mut ends);
        for end in &mut ends {
            assert_eq!(end.qp.rails_in_service(), set(&[]));
            assert_eq!((end.qp.state(), end.qp.failure()), (QpState::Degraded, None));
        }
        ends[0].post([rig::write_imm(2, 256, 2), rig::write(3, 128)]);
        assert_eq!(ends[0].qp.cancel(3), Ok(()));
        assert_eq!(reports(&mut ends[0]), taken_back(3, 0), "nothing of it is posted");
        replace(&mut ends, RAIL_0);
        if is_numbered {
            let all = [(0, false, 0), (1, false, 0), (2, false, 128), (3, true, 128)];
            assert_eq!(numbers(&ends[0], 0), all, "old numbers first");
        } else {
            assert_eq!(ends[0].pieces(0).concat().len(), 2);
        }
        replace(&mut ends, RAIL_1);
        assert!(ends[0].rails[1].take_doorbells().is_empty());
        ends[0].rails.iter().for_each(|rail| rail.complete_all());
        let done = ends[0].poll_ids();
        if let Some(notify) = ends[0].notify.clone() {
            assert_eq!((done, ends[0].notifies()), (vec![], vec![vec![2]]));
            notify.complete_all();
            assert_eq!(ends[0].poll_ids(), ok(&[2]));
        } else {
            assert_eq!(done, ok(&[2]));
        }
        ends[1].rails.iter().for_each(|rail| rail.complete_all());
        assert_eq!(ends[1].poll_ids(), ok(&[8]), "posted again");
        for end in &ends {
            assert_eq!((end.qp.state(), end.qp.unreported_sends()), (QpState::Ready, 0));
        }
    }
}

/// A READ may write local memory until this end's queue pair is drained: neither its own failed
/// completion nor the peer's word is enough, and after the drain the peer's word is not needed.
#[test]
fn a_read_is_reported_after_the_local_drain() {
    for is_peer_fenced in [false, true] {
        let mut rig = spray().rig();
        rig.post([rig::read(1, 256)]);
        rig.rails[0].complete_all();
        assert_eq!(rig.poll(), []);
        rig.pieces(0);
        rig.qp.cancel(1).unwrap();
        assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_1]));
        rig.rails[1].refuse_error(Some(Refusal::Driver(5)));
        if is_peer_fenced {
            stops(&mut rig, RAIL_1, 0);
        } else {
            rig.qp.control(asks(RAIL_1)).unwrap();
        }
        assert_eq!(rig.poll(), [], "it is in flight");
        rig.rails[1].flush();
        assert_eq!(rig.poll(), [], "its queue pair may still answer");
        assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::Draining));
        rig.rails[1].refuse_error(None);
        assert_eq!(reports(&mut rig), taken_back(1, 256));
        let state = if is_peer_fenced { RailState::Down } else { RailState::Fenced };
        assert_eq!(rig.qp.rail_state(RAIL_1), Some(state));
        assert!(rig.pieces(0).is_empty(), "nothing of it is posted again");
    }
}

/// A rail is fenced once more after its return, by the other end.
#[test]
fn a_rail_that_returned_is_fenced_again() {
    let mut ends = ends(spray());
    write_and_take_back(&mut ends[0], 1, 1);
    for _ in 0..3 {
        cross(&mut ends);
        assert_eq!(ends[1].poll(), []);
        let reported = reports(&mut ends[0]);
        assert!(reported.is_empty() || reported == taken_back(1, 256), "{reported:?}");
    }
    replace(&mut ends, RAIL_1);
    ends[0].post([rig::fetch_add(2)]);
    write_and_take_back(&mut ends[1], 1, 1);
    let [_, sent] = messages(&mut ends);
    hear(&mut ends[0], &sent);
    assert_eq!(ends[0].poll(), []);
    assert_eq!(failures(&mut ends[0]).last(), Some(&(RAIL_1, FailedBecause::PeerOnPurpose)));
    cross(&mut ends);
    assert_eq!(reports(&mut ends[1]), taken_back(1, 256));
    ends[0].rails[0].complete_all();
    assert_eq!(ends[0].poll_ids(), ok(&[2]), "rail 0 is not concerned");
    assert!(ends.iter().all(|end| end.qp.failure().is_none()));
}
