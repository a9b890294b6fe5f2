//! What the type system forbids. (Impossible sizes: the examples of `Setup::build` in
//! `tests/src/rig.rs`.)

#[test]
#[ignore = "slow: checks a package of its own; tests/gate.sh runs it"]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    for case in
        ["address_without_unsafe", "batch_after_commit", "sge_from_numbers", "use_after_move"]
    {
        cases.compile_fail(format!("tests/ui/{case}.rs"));
    }
}
