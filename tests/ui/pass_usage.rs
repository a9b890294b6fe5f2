//! The same without mistakes.
use polyrail_tests::rig::{self, Rig, Setup};

fn main() {
    let mut rig: Rig<2, 16, 32> = Setup::spray(2).build();
    rig.post([rig::write(1, 8)]);
    assert_eq!(rig.run_dry().len(), 1);
}
