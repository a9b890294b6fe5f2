//! What the type system forbids. (Impossible sizes: see the examples of `Setup::build`.)

#[test]
#[ignore = "slow: compiles a package of its own; tests/full.sh runs it"]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("ui/pass_usage.rs");
    for case in
        ["address_without_unsafe", "batch_after_commit", "sge_from_numbers", "use_after_move"]
    {
        cases.compile_fail(format!("ui/{case}.rs"));
    }
}
