//! Batches of which a driver had accepted a part when their rail failed, and requests that are
//! posted again out of order. `core/docs/rails-that-fail.md`, "What happens to requests".

use super::{RAIL_0, RAIL_1, dqplb, fenced, ready, spray};
use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{PeerWindow, QpState, RailEventKind, RailId, RailState};
use polyrail_tests::rig::{self, Rig, ok};

/// Numbers of the fragments that wait on a rail, with the mark of the last one of a request.
fn numbers(rig: &Rig, rail: usize, last: u32) -> Vec<u32> {
    let imm = |number| rig::imm(number, number == last);
    let imms = rig.rails[rail].sends().into_iter().map(|send| send.imm);
    imms.map(|sent| (0..16).find(|number| imm(*number) == sent).expect("a number")).collect()
}

/// The peer takes receives for what was posted. What the driver never took is neither due nor lost
/// there: counted, it would pass for arrived, or the peer for one that lost completions.
#[test]
fn of_a_batch_that_was_taken_in_part_only_what_was_taken_can_have_arrived() {
    for arrived in 0..=2 {
        let mut rig = dqplb().rig();
        rig.rails[0].refuse_next(2, Refusal::QueueFull);
        rig.post([rig::write_imm(1, 8 * 128, 0)]);
        assert_eq!([rig.rails[0].sends().len(), rig.rails[1].sends().len()], [2, 4]);
        rig.qp.fail_rail(RAIL_0);
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.qp.rail_state(RAIL_0), Some(RailState::Fenced));
        rig.rail_events();
        rig.qp.control(fenced(RAIL_0, 0, arrived)).unwrap();
        assert_eq!((rig.qp.state(), rig.qp.failure()), (QpState::Degraded, None));
        let again: Vec<_> = (4..8).chain(arrived..4).collect();
        assert_eq!(numbers(&rig, 1, 7), again, "{arrived} arrived");
        let told = RailEventKind::Fenced { arrived, again: 4 - arrived };
        assert!(rig.rail_events().iter().any(|event| event.kind == told), "{told:?}");
        rig.rails[1].complete_all();
        assert_eq!(rig.poll_ids(), ok(&[1]));
    }
}

/// The same of notifies.
#[test]
fn of_notifies_that_were_taken_in_part_only_those_taken_can_have_arrived() {
    for arrived in 0..=1 {
        let mut rig = spray().rig();
        rig.notify().refuse_next(1, Refusal::QueueFull);
        rig.post_together((1..=3).map(|id| rig::write_imm(id, 128, id as u32)));
        rig.rails.iter().for_each(|rail| rail.complete_all());
        rig.poll();
        assert_eq!(rig.notifies(), [[1]]);
        rig.qp.fail_rail(RailId::Notify);
        assert_eq!(rig.poll(), []);
        rig.qp.control(fenced(RailId::Notify, 0, arrived)).unwrap();
        assert_eq!((rig.qp.state(), rig.qp.failure()), (QpState::Degraded, None));
        let done: Vec<_> = (1..=u64::from(arrived)).collect();
        assert_eq!(rig.poll_ids(), ok(&done));
        rig.replace(RailId::Notify, 1, 77);
        ready(&mut rig, RailId::Notify, 1);
        assert_eq!(rig.notifies(), [(arrived + 1..=3).collect::<Vec<_>>()]);
        rig.notify().complete_all();
        let rest: Vec<_> = (u64::from(arrived) + 1..=3).collect();
        assert_eq!(rig.poll_ids(), ok(&rest));
    }
}

/// The oldest number in flight is not that of the front any more: the sender must not run ahead of
/// the peer's window.
#[test]
fn what_is_posted_again_keeps_the_sender_within_the_window() {
    let mut rig = dqplb().rig();
    // Numbers that may be unacknowledged at once: 4.
    let window = PeerWindow { window: 20, receives_per_rail: 8 };
    rig.qp.set_peer_window(window).unwrap();
    rig.post([rig::write_imm(1, 256, 0)]);
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll(), []);
    rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
    assert_eq!(numbers(&rig, 1, 1), [1, 0]);
    rig.post([rig::write_imm(2, 5 * 128, 0)]);
    assert_eq!(numbers(&rig, 1, 1), [1, 0, 2, 3], "number 0 may not have arrived");
    rig.rails[1].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(numbers(&rig, 1, 1), [0, 2, 3]);
    rig.rails[1].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(numbers(&rig, 1, 6), [2, 3, 4, 5]);
    assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::InService));
}
