//! A rail that fails and returns, from the failure to the reports.
//!
//! Two ends with two rails each. Half of a WRITE_WITH_IMM is in flight on rail 1 when that rail
//! fails: the ends fence it, rail 0 takes the lost fragments, and a new queue pair takes the place
//! of the old one. The WRITE_WITH_IMM is then reported at both ends.

use crate::watched::{control, next_control, poll, replace_rail};
use polyrail_core::verbs::{RecvWr, WcStatus};
use polyrail_core::virtual_qp::{RailId, RailState};
use polyrail_tests::rig::{self, Rig, Setup};

const FRAGMENT: u32 = 4096;
const RAIL: RailId = RailId::Data(1);

pub(crate) fn run() {
    let [mut near, mut far] = [(); 2].map(|()| Setup::spray(2).fragment(FRAGMENT).reroute().rig());
    far.qp.post_recv(&RecvWr::notification(1)).expect("room for one receive");
    near.post([rig::write_imm(42, 4 * FRAGMENT, 7)]);
    // The first poll looks at what was attached, too.
    for end in [&mut near, &mut far] {
        assert_eq!(end.poll(), []);
    }
    near.rails[1].fail(WcStatus::RETRY_EXC_ERR);
    step_until(&mut near, &mut far, RailState::Down);
    assert_eq!(near.rails[0].sends().len(), 4, "the lost fragments go by rail 0");
    for end in [&mut near, &mut far] {
        let (queue_pair, handle) = end.nic.qp(77, &end.cqs[0], end.rails[1].limits());
        replace_rail((&mut end.cq, &mut end.qp), RAIL, 1, queue_pair);
        end.rails[1] = handle;
    }
    step_until(&mut near, &mut far, RailState::InService);
    near.rails[0].complete_all();
    assert_eq!(poll(&mut near.cq, &mut near.qp), None, "the notify is on its way");
    let imm = near.notify().sends()[0].imm;
    near.notify().complete_all();
    far.notify().deliver_imm(imm);
    assert_eq!(poll(&mut near.cq, &mut near.qp).map(|wc| wc.wr_id), Some(42));
    assert_eq!(poll(&mut far.cq, &mut far.qp).and_then(|wc| wc.imm), Some(7));
}

/// Polls both ends and carries their control messages until the rail is in this state at both.
fn step_until(near: &mut Rig, far: &mut Rig, state: RailState) {
    let is_there = |end: &Rig| end.qp.rail_state(RAIL) == Some(state);
    while !(is_there(near) && is_there(far)) {
        step(near, far);
        step(far, near);
    }
}

/// Polls one end and carries its control messages to the other.
fn step(from: &mut Rig, to: &mut Rig) {
    assert_eq!(poll(&mut from.cq, &mut from.qp), None);
    while let Some(message) = next_control(&mut from.qp) {
        control(&mut to.qp, message);
    }
}
