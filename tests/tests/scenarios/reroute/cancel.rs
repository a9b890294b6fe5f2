//! Requests that are taken back, seen from one end; the test plays the peer.
//! `core/docs/rails-that-fail.md`, "Fences on purpose, and requests that are taken back".

mod both_ends;
mod parts;

use super::{RAIL_0, RAIL_1, dqplb, fail, fenced, ready, replace, spray};
use polyrail_core::internals::SequenceImm;
use polyrail_core::verbs::{Opcode, SendFlags, WcStatus};
use polyrail_core::virtual_qp::{
    CANCEL_VERSION, CancelError, ControlMessage, FailedBecause, Failure, QpState, RailEventKind,
    RailId, RailReport, RailSet, RailState, ReportedState,
};
use polyrail_tests::rig::{self, Rig, Setup, ok};
use polyrail_tests::view::write;

fn on_purpose(rail: RailId, state: ReportedState, arrived: u32) -> ControlMessage {
    ControlMessage::Rail(RailReport {
        rail,
        generation: 0,
        state,
        arrived,
        previous_arrived: 0,
        on_purpose: true,
    })
}

/// What an end sends that asks for a fence on purpose.
fn asks(rail: RailId) -> ControlMessage {
    on_purpose(rail, ReportedState::Failed, 0)
}

/// The peer has stopped its queue pair, as it was asked, and reports what arrived.
fn stops(rig: &mut Rig, rail: RailId, arrived: u32) {
    assert_eq!(rig.qp.rail_state(rail), Some(RailState::InService), "until the peer has stopped");
    rig.qp.control(on_purpose(rail, ReportedState::Fenced, arrived)).unwrap();
}

/// The report of a request that was taken back, of which this many bytes may have been written.
fn taken_back(wr_id: u64, bytes: u32) -> Vec<(u64, WcStatus, u32)> {
    vec![(wr_id, WcStatus::CANCELLED, bytes)]
}

fn reports(rig: &mut Rig) -> Vec<(u64, WcStatus, u32)> {
    rig.poll().iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect()
}

fn set(rails: &[RailId]) -> RailSet {
    rails.iter().copied().collect()
}

/// The numbers of what was posted to a rail, their marks of the last one, and their bytes.
fn numbers(rig: &Rig, rail: usize) -> Vec<(u32, bool, u32)> {
    let posted = rig.rails[rail].take_doorbells().concat();
    let number = |imm| SequenceImm::decode(imm).expect("a number");
    posted
        .iter()
        .map(|it| (number(it.imm).number.get(), number(it.imm).last, it.sge.length()))
        .collect()
}

/// A request of which nothing is posted needs no fence, and its report does not wait for its turn.
#[test]
fn a_request_that_waits_is_reported_at_once() {
    let mut rig = spray().depth(2).rig();
    rig.post([rig::write(1, 512), rig::write(2, 512), rig::write(3, 256)]);
    rig.pieces(0);
    rig.pieces(1);
    rig.qp.cancel(2).unwrap();
    assert!(rig.cq.needs_poll(), "no completion will come");
    assert_eq!(rig.qp.fence_cancelled(), set(&[]));
    assert_eq!(reports(&mut rig), taken_back(2, 0));
    assert_eq!(rig.qp.unreported_sends(), 2);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.pieces(0).concat().len(), 1, "of request 3");
    assert_eq!(rig.pieces(1).concat().len(), 1);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[3]));
    assert_eq!(rig.qp.unreported_sends(), 0);
    assert_eq!(rig.control_messages(), []);
}

/// Of a request that is posted in part, the rest is dropped, and the report names the part.
#[test]
fn the_rest_of_a_request_is_dropped() {
    for setup in [spray().depth(2), dqplb().depth(2)] {
        let mut rig = setup.rig();
        rig.post([rig::write_imm(1, 1024, 0), rig::write_imm(2, 256, 7)]);
        rig.qp.cancel(1).unwrap();
        assert_eq!(rig.poll(), [], "half of it may be written");
        rig.rails.iter().for_each(|rail| rail.complete_all());
        assert_eq!(reports(&mut rig), taken_back(1, 512));
        rig.rails.iter().for_each(|rail| rail.complete_all());
        rig.poll().iter().for_each(|wc| assert_eq!((wc.wr_id, wc.status), (2, WcStatus::SUCCESS)));
        if let Some(notify) = &rig.notify {
            assert_eq!(rig.notifies(), [[7]], "of the second one only");
            notify.complete_all();
            assert_eq!(rig.poll_ids(), ok(&[2]));
        }
        assert_eq!(rig.qp.unreported_sends(), 0);
    }
}

/// What is acknowledged in time needs no fence.
#[test]
fn a_request_that_is_delivered_after_all_is_reported_as_success() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 256)]);
    rig.qp.cancel(1).unwrap();
    assert_eq!(rig.poll(), []);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.control_messages(), []);
    assert_eq!(rig.qp.state(), QpState::Ready);
}

/// The report comes after the fence of the rails that carry the request; what another request has
/// there is posted again, the one that was taken back is not.
#[test]
fn a_request_in_flight_is_reported_after_the_fence_of_its_rails() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 256), rig::write(2, 256)]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    rig.pieces(0);
    rig.qp.cancel(1).unwrap();
    assert_eq!(rig.control_messages(), [], "the caller decides when");
    assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_1]));
    assert_eq!(rig.control_messages(), [asks(RAIL_1)]);
    assert!(!rig.rails[1].is_errored(), "the peer stops first");
    assert_eq!(rig.poll(), []);
    stops(&mut rig, RAIL_1, 0);
    assert!(rig.rails[1].is_errored());
    assert_eq!(reports(&mut rig), taken_back(1, 256));
    assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::Down));
    assert_eq!(rig.pieces(0), [[write(128, 128)]], "of request 2");
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
    assert_eq!(rig.control_messages(), [on_purpose(RAIL_1, ReportedState::Fenced, 0)]);
    let why = FailedBecause::OnPurpose;
    assert_eq!(rig.rail_events()[0].kind, RailEventKind::Failed { why, refused: None });
}

/// A rail that has failed is fenced already; a WRITE waits for the peer's word, and the local
/// memory of a READ does not.
#[test]
fn a_fence_under_way_is_joined() {
    for is_read in [false, true] {
        let mut rig = spray().rig();
        rig.post([if is_read { rig::read(1, 256) } else { rig::write(1, 256) }]);
        rig.rails[0].complete_all();
        rig.rails[1].fail(WcStatus::RETRY_EXC_ERR);
        rig.rails[0].refuse_all(Some(polyrail_core::hardware::Refusal::QueueFull));
        rig.pieces(0);
        assert_eq!(rig.poll(), []);
        rig.control_messages();
        rig.qp.cancel(1).unwrap();
        if is_read {
            assert_eq!(reports(&mut rig), taken_back(1, 256));
            continue;
        }
        assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_1]));
        assert_eq!(rig.control_messages(), [], "nothing new");
        assert_eq!(rig.poll(), [], "it may be written late");
        rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
        assert_eq!(reports(&mut rig), taken_back(1, 256));
        rig.rails[0].refuse_all(None);
        assert_eq!(rig.poll(), []);
        assert!(rig.pieces(0).is_empty());
    }
}

/// Of two copies, the second is acknowledged, and the first may be executed still.
#[test]
fn a_lost_copy_is_awaited_though_another_one_is_acknowledged() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 256)]);
    rig.rails[0].complete_all();
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    rig.qp.cancel(1).unwrap();
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_1]));
    assert_eq!(rig.qp.rail_state(RAIL_0), Some(RailState::InService));
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]), "all of it is acknowledged");
}

/// A rail fails while the peer is asked to fence it.
#[test]
fn a_rail_may_fail_while_it_waits_for_its_fence() {
    let mut rig = spray().config(|config| config.min_rails = 2).rig();
    rig.post([rig::write(1, 256)]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    rig.qp.cancel(1).unwrap();
    assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_1]));
    rig.rails[1].fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.qp.state(), QpState::Degraded, "the peer's queue pair may have stopped");
    assert_eq!(rig.control_messages(), [fenced(RAIL_1, 0, 0)]);
    rig.qp.control(on_purpose(RAIL_1, ReportedState::Fenced, 0)).unwrap();
    assert_eq!(reports(&mut rig), taken_back(1, 256));
}

/// With SPRAY a request that was taken back sends no notification, and later ones do not wait for
/// it.
#[test]
fn no_notification_is_sent_of_what_was_taken_back() {
    let mut rig = spray().rig();
    rig.post([rig::write_imm(1, 256, 1), rig::write_imm(2, 256, 2)]);
    rig.qp.cancel(1).unwrap();
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(reports(&mut rig), taken_back(1, 256));
    assert_eq!(rig.notifies(), [[2]]);
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
}

/// A notification that is posted cannot be taken back, with its data or without.
#[test]
fn it_is_too_late_once_the_notification_is_posted() {
    let mut rig = spray().rig();
    rig.post([rig::write_imm(1, 64, 1)]);
    assert_eq!(rig.qp.cancel(1), Err(CancelError::TooLate), "its data is in its notify");
    rig.notify().take_doorbells();
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.post([rig::write_imm(2, 256, 2)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.qp.cancel(2), Err(CancelError::TooLate));
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
    // A signal that waits for what was posted before it.
    rig.post([rig::write(3, 256), rig::write_imm(4, 0, 4)]);
    rig.qp.cancel(4).unwrap();
    assert_eq!(reports(&mut rig), taken_back(4, 0));
    assert_eq!(rig.qp.cancel(4), Err(CancelError::Unknown { wr_id: 4 }));
    rig.notifies();
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[3]));
    assert!(rig.notifies().is_empty());
}

/// With DQPLB, numbers that did not arrive go out without data and without the mark of the last
/// one, again after a second failure, and hold up the place of their request, not its report.
#[test]
fn numbers_that_did_not_arrive_go_out_without_data() {
    let mut rig = dqplb().config(|config| config.min_rails = 0).rig();
    rig.qp.prepare_receives().unwrap();
    rig.post([rig::write_imm(1, 768, 0)]);
    assert_eq!(numbers(&rig, 0), [(0, false, 128), (1, false, 128), (2, false, 128)]);
    assert_eq!(numbers(&rig, 1), [(3, false, 128), (4, false, 128), (5, true, 128)]);
    rig.qp.cancel(1).unwrap();
    rig.rails[0].complete_all();
    assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_0, RAIL_1]));
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_1]));
    assert_eq!(numbers(&rig, 0), []);
    stops(&mut rig, RAIL_1, 1);
    assert_eq!(reports(&mut rig), taken_back(1, 768));
    assert_eq!(numbers(&rig, 0), [(4, false, 0), (5, false, 0)]);
    // They are lost once more, with the first rail.
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll(), []);
    rig.qp.control(fenced(RAIL_0, 0, 4)).unwrap();
    rig.replace(RAIL_1, 1, 90);
    ready(&mut rig, RAIL_1, 1);
    assert_eq!(numbers(&rig, 1), [(5, false, 0)]);
    rig.post([rig::write_imm(2, 128, 0)]);
    assert_eq!(numbers(&rig, 1), [(6, true, 128)]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
    assert_eq!(rig.qp.unreported_sends(), 0);
}

/// If the last number arrived, the peer is notified once all others have: the request is posted to
/// its end.
#[test]
fn a_request_whose_last_number_arrived_is_posted_to_its_end() {
    let mut rig = dqplb().rig();
    rig.qp.prepare_receives().unwrap();
    rig.post([rig::write_imm(1, 768, 0)]);
    rig.qp.cancel(1).unwrap();
    numbers(&rig, 0);
    numbers(&rig, 1);
    fail(&mut rig, 0, WcStatus::RETRY_EXC_ERR);
    rig.rails[1].complete_all();
    rig.qp.control(fenced(RAIL_0, 0, 1)).unwrap();
    assert_eq!(rig.poll(), []);
    assert_eq!(numbers(&rig, 1), [(1, false, 128), (2, false, 128)]);
    assert_eq!(rig.qp.cancel(1), Err(CancelError::TooLate));
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

#[test]
fn requests_that_cannot_be_taken_back_are_refused_and_nothing_changes() {
    let refused = |rig: &mut Rig, wr_id, error| {
        let before = format!("{:?}", rig.qp);
        assert_eq!(rig.qp.cancel(wr_id), Err(error));
        assert_eq!(before, format!("{:?}", rig.qp));
    };
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256)]);
    refused(&mut rig, 1, CancelError::NotRerouting);
    let mut rig = Setup::spray(1).rig();
    rig.post([rig::write(1, 256)]);
    refused(&mut rig, 1, CancelError::NotRerouting);

    let mut rig = spray().rig();
    refused(&mut rig, 1, CancelError::Unknown { wr_id: 1 });
    rig.post([rig::write(1, 256), rig::write(1, 256), rig::send(2, 8), rig::fetch_add(3)]);
    refused(&mut rig, 1, CancelError::NotUnique { wr_id: 1, count: 2 });
    refused(&mut rig, 2, CancelError::Opcode(Opcode::Send));
    refused(&mut rig, 3, CancelError::Opcode(Opcode::FetchAdd));
    rig.post([rig::write(4, 256)]);
    for version in [0, CANCEL_VERSION + 1] {
        rig.qp.set_peer_cancel_version(version);
        refused(&mut rig, 4, CancelError::Peer { version });
    }
    rig.qp.set_peer_cancel_version(CANCEL_VERSION);
    rig.qp.cancel(4).unwrap();
    refused(&mut rig, 4, CancelError::AlreadyCancelled);
    rig.run_dry();
    refused(&mut rig, 4, CancelError::Unknown { wr_id: 4 });
    refused(&mut rig, 2, CancelError::Unknown { wr_id: 2 });
    rig.post([rig::write(5, 256)]);
    rig.qp.fail();
    refused(&mut rig, 5, CancelError::InErrorState);
}

/// The parts of a transfer have one `wr_id`. What cannot be taken back is reported as usual.
#[test]
fn all_requests_with_a_wr_id_are_taken_back_at_once() {
    let mut rig = spray().rig();
    assert_eq!(rig.qp.cancel_all(1), Ok(0), "there is none");
    rig.qp.set_peer_cancel_version(0);
    assert_eq!(rig.qp.cancel_all(1), Err(CancelError::Peer { version: 0 }));
    rig.qp.set_peer_cancel_version(CANCEL_VERSION);
    rig.post([rig::send(1, 8), rig::write(1, 256), rig::write(2, 256), rig::read(1, 100)]);
    rig.rails[0].complete_all();
    rig.rails[1].complete_all();
    rig.post([rig::write(1, 300)]);
    // Before a poll sees the completions.
    assert_eq!(rig.qp.cancel_all(1), Ok(3), "all but the SEND");
    assert_eq!(rig.qp.cancel_all(1), Ok(0), "they are being taken back already");
    let ok = |wr_id, bytes| (wr_id, WcStatus::SUCCESS, bytes);
    let mut all = reports(&mut rig);
    all.sort_unstable_by_key(|(wr_id, _, bytes)| (*wr_id, *bytes));
    assert_eq!(all, [ok(1, 8), ok(1, 100), ok(1, 256), ok(2, 256)], "delivered all the same");
    assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_0, RAIL_1]), "the last one is in flight");
    stops(&mut rig, RAIL_0, 1);
    stops(&mut rig, RAIL_1, 0);
    assert_eq!(reports(&mut rig), taken_back(1, 300));
}

/// The number of a request that is being taken back stays lost while it is not final what becomes
/// of the request. What the same rail lost behind it must not be posted over it.
#[test]
fn a_lost_number_that_waits_keeps_its_place() {
    let mut rig = dqplb().depth(16).rig();
    rig.qp.prepare_receives().unwrap();
    rig.post([rig::write_imm(1, 256, 0), rig::write_imm(2, 30 * 128, 7)]);
    assert_eq!((numbers(&rig, 0).len(), numbers(&rig, 1).len()), (16, 16), "both rails are full");
    rig.qp.cancel(1).unwrap();
    fail(&mut rig, 0, WcStatus::RETRY_EXC_ERR);
    rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
    replace(&mut rig, RAIL_0);
    assert_eq!(numbers(&rig, 0), [], "the number in front waits");
    for _ in 0..4 {
        rig.rails.iter().for_each(|rail| rail.complete_all());
        rig.poll();
    }
    assert_eq!(rig.qp.unreported_sends(), 0);
}

/// Its caller waits for the report.
#[test]
fn an_unsignaled_request_that_is_taken_back_is_reported() {
    let mut rig = dqplb().rig();
    rig.qp.prepare_receives().unwrap();
    rig.post([rig::write_imm(1, 256, 0).with_flags(SendFlags::empty())]);
    rig.qp.cancel(1).unwrap();
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// Nothing says any more what arrived.
#[test]
fn what_is_being_taken_back_fails_with_the_virtual_queue_pair() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 256)]);
    rig.qp.cancel(1).unwrap();
    rig.qp.fail();
    assert_eq!(rig.poll_ids(), [(1, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!(rig.qp.unfenced(), set(&[RAIL_0, RAIL_1]));
}

/// A rail that is out on purpose counts for `min_rails`, at both ends, until its replacement fails.
#[test]
fn a_rail_counts_as_in_service_until_its_replacement_fails() {
    for is_asked in [false, true] {
        let mut rig = spray().config(|config| config.min_rails = 2).rig();
        rig.post([rig::write(1, 256)]);
        rig.rails[0].complete_all();
        assert_eq!(rig.poll(), []);
        if is_asked {
            rig.qp.control(asks(RAIL_1)).unwrap();
            assert!(rig.rails[1].is_errored());
            let why = FailedBecause::PeerOnPurpose;
            assert_eq!(rig.rail_events()[0].kind, RailEventKind::Failed { why, refused: None });
            assert_eq!(rig.poll(), []);
            rig.qp.control(on_purpose(RAIL_1, ReportedState::Fenced, 0)).unwrap();
            rig.rails[0].complete_all();
            assert_eq!(rig.poll_ids(), ok(&[1]));
        } else {
            rig.qp.cancel(1).unwrap();
            rig.qp.fence_cancelled();
            stops(&mut rig, RAIL_1, 0);
            assert_eq!(reports(&mut rig), taken_back(1, 256));
        }
        assert_eq!(rig.qp.state(), QpState::Degraded);
        assert_eq!(rig.qp.rails_in_service(), set(&[RAIL_0]));
        assert_eq!(
            rig.control_messages().last(),
            Some(&on_purpose(RAIL_1, ReportedState::Fenced, 0))
        );
        rig.replace(RAIL_1, 1, 90);
        assert_eq!(rig.qp.state(), QpState::Degraded);
        rig.qp.fail_rail(RAIL_1);
        assert_eq!(rig.qp.failure(), Some(Failure::TooFewRails { in_service: 1, min_rails: 2 }));
    }
}

/// The peer's replacement fails before there is one here.
#[test]
fn a_rail_counts_as_in_service_until_the_peers_replacement_fails() {
    let mut rig = spray().config(|config| config.min_rails = 2).rig();
    rig.qp.control(asks(RAIL_1)).unwrap();
    rig.qp.control(on_purpose(RAIL_1, ReportedState::Fenced, 0)).unwrap();
    assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::Down));
    assert_eq!(rig.qp.state(), QpState::Degraded);
    rig.qp.control(super::news(RAIL_1, 1, ReportedState::Failed, 0)).unwrap();
    assert_eq!(rig.qp.failure(), Some(Failure::TooFewRails { in_service: 1, min_rails: 2 }));
}

/// A lost atomic would fail the virtual queue pair: rail 0 is fenced when there is none at either
/// end.
#[test]
fn rail_0_is_fenced_once_its_atomics_are_complete() {
    let mut rig = spray().rig();
    rig.post([rig::fetch_add(1), rig::write(2, 256)]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), []);
    rig.qp.cancel(2).unwrap();
    assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_0]));
    assert_eq!(rig.control_messages(), [], "its own atomic comes first");
    rig.opcodes(0);
    rig.post([rig::fetch_add(3)]);
    assert_eq!(rig.opcodes(0), [], "a new one waits");
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.control_messages(), [asks(RAIL_0)]);
    assert_eq!(rig.opcodes(0), []);
    stops(&mut rig, RAIL_0, 0);
    assert_eq!(reports(&mut rig), taken_back(2, 256));
    rig.replace(RAIL_0, 1, 90);
    ready(&mut rig, RAIL_0, 1);
    assert_eq!(rig.opcodes(0), [Opcode::FetchAdd]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[3]));
}

/// The same at the end that is asked.
#[test]
fn an_end_that_is_asked_completes_its_atomics_first() {
    let mut rig = spray().rig();
    rig.post([rig::fetch_add(1)]);
    rig.qp.control(asks(RAIL_0)).unwrap();
    assert!(!rig.rails[0].is_errored());
    rig.opcodes(0);
    rig.post([rig::fetch_add(2)]);
    assert_eq!(rig.opcodes(0), [], "a new one waits");
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert!(rig.rails[0].is_errored());
    assert_eq!(rig.qp.state(), QpState::Degraded);
}

/// A fence on purpose takes nothing from the count of rails in service, although maintenance has
/// left too few: the end that takes back, and the end that is asked.
#[test]
fn a_fence_on_purpose_fails_nothing_during_maintenance() {
    for is_asked in [false, true] {
        let mut rig = spray().config(|config| config.min_rails = 2).rig();
        assert!(rig.qp.set_rail_in_service(1, false));
        if is_asked {
            rig.qp.control(asks(RAIL_0)).unwrap();
        } else {
            rig.post([rig::write(1, 256)]);
            rig.qp.cancel(1).unwrap();
            assert_eq!(rig.qp.fence_cancelled(), set(&[RAIL_0]));
            stops(&mut rig, RAIL_0, 0);
        }
        assert_ne!(rig.qp.rail_state(RAIL_0), Some(RailState::InService));
        assert_eq!(rig.qp.failure(), None, "asked: {is_asked}");
    }
}

/// A replacement that fails at the peer takes nothing more from the count of a rail that had failed
/// by itself.
#[test]
fn an_adopted_failure_of_a_failed_rail_is_counted_once() {
    const RAIL_2: RailId = RailId::Data(2);
    let setup = Setup::spray(3).fragment(128).reroute();
    let mut rig = setup.config(|config| config.min_rails = 2).rig();
    rig.post([rig::write(1, 384)]);
    fail(&mut rig, 2, WcStatus::RETRY_EXC_ERR);
    rig.qp.control(fenced(RAIL_2, 0, 0)).unwrap();
    assert_eq!(rig.qp.rail_state(RAIL_2), Some(RailState::Down));
    assert!(rig.qp.set_rail_in_service(1, false));
    let failed = RailReport {
        rail: RAIL_2,
        generation: 1,
        state: ReportedState::Failed,
        arrived: 0,
        previous_arrived: 0,
        on_purpose: false,
    };
    rig.qp.control(ControlMessage::Rail(failed)).unwrap();
    assert_eq!(rig.qp.failure(), None);
}

/// The owner need not wait for a peer that is gone: with `fail_rail`, a rail that is fenced on
/// purpose counts as failed.
#[test]
fn an_owner_that_waits_no_longer_ends_a_fence_on_purpose() {
    let mut rig = spray().config(|config| config.min_rails = 2).rig();
    rig.qp.control(asks(RAIL_0)).unwrap();
    assert_ne!(rig.qp.rail_state(RAIL_0), Some(RailState::InService));
    assert_eq!(rig.qp.failure(), None);
    assert!(rig.qp.fail_rail(RAIL_0), "it is news");
    assert_eq!(rig.qp.failure(), Some(Failure::TooFewRails { in_service: 1, min_rails: 2 }));
    assert!(!rig.qp.fail_rail(RAIL_0));
}

/// What became of a request is reported as soon as it is final, also if it is done.
#[test]
fn a_request_that_is_done_after_all_does_not_wait_for_its_turn() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 128), rig::write(2, 128)]);
    rig.qp.cancel(2).unwrap();
    rig.rails[1].complete_all();
    assert_eq!(reports(&mut rig), vec![(2, WcStatus::SUCCESS, 128)]);
    assert_eq!(rig.qp.fence_cancelled(), set(&[]));
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}
