//! What `tests/stations.sh` watches: a WRITE_WITH_IMM over SPRAY, from its post to its report.
//!
//! Four fragments on two rails: the smallest request that has everything. The script traces what
//! runs within [`post`] and [`poll`].

use polyrail_core::verbs::SendWr;
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_tests::rig::{self, Rig, Setup};

const FRAGMENT: u32 = 4096;

#[inline(never)]
fn post(rig: &mut Rig, request: &SendWr<'_>) {
    rig.qp.post_send(request).expect("room for one request");
}

#[inline(never)]
fn poll(rig: &mut Rig) -> Option<VirtualWc> {
    let mut reported = None;
    let polled = rig.cq.poll(&mut rig.qp, 32, |event| reported = event.completion());
    assert_eq!(polled.error, None);
    reported
}

fn main() {
    let mut rig = Setup::spray(2).fragment(FRAGMENT).rig();
    // The first poll looks at what was attached, too.
    assert_eq!(rig.poll(), []);
    post(&mut rig, &rig::write_imm(42, 4 * FRAGMENT, 7));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(poll(&mut rig), None, "the notify is on its way");
    rig.notify().complete_all();
    assert_eq!(poll(&mut rig).map(|wc| wc.wr_id), Some(42));
}
