//! A WRITE_WITH_IMM over SPRAY, from its post to its report.
//!
//! Four fragments on two rails: the smallest request that has everything.

use crate::watched::{poll, post};
use polyrail_tests::rig::{self, Setup};

const FRAGMENT: u32 = 4096;

pub(crate) fn run() {
    let mut rig = Setup::spray(2).fragment(FRAGMENT).rig();
    // The first poll looks at what was attached, too.
    assert_eq!(rig.poll(), []);
    post(&mut rig.qp, &rig::write_imm(42, 4 * FRAGMENT, 7));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(poll(&mut rig.cq, &mut rig.qp), None, "the notify is on its way");
    rig.notify().complete_all();
    assert_eq!(poll(&mut rig.cq, &mut rig.qp).map(|wc| wc.wr_id), Some(42));
}
