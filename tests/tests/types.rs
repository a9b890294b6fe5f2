//! What the type system forbids. (Impossible sizes: see the examples of `Setup::build`.)

use polyrail_tests::rig::{self, Rig, Setup};

#[test]
#[ignore = "slow: checks a package of its own; tests/full.sh runs it"]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    for case in
        ["address_without_unsafe", "batch_after_commit", "sge_from_numbers", "use_after_move"]
    {
        cases.compile_fail(format!("ui/{case}.rs"));
    }
}

/// Here and not among trybuild's cases, which are only checked, and not built, as long as none is to run.
#[test]
fn the_same_without_mistakes_runs() {
    let mut rig: Rig<2, 16, 32> = Setup::spray(2).build();
    rig.post([rig::write(1, 8)]);
    assert_eq!(rig.run_dry().len(), 1);
}
