//! Defect 19 of `core/docs/reference.md`: a queue pair that was moved away cannot be posted to.
use polyrail_tests::rig::{self, Rig, Setup};

fn main() {
    let rig: Rig = Setup::spray(2).rig();
    let mut old = rig.qp;
    let new = old;
    let _ = old.post_send(&rig::write(1, 8));
    drop(new);
}
