//! The program's readers of text that comes from outside. `QUICKCHECK_TESTS=n` runs n cases.

use polyrail_tests::model;
use quickcheck::{Gen, QuickCheck};

/// Runs the seeds of a fuzz target, and random byte strings.
fn check(target: &str, property: fn(Vec<u8>)) {
    model::seeds(target).into_iter().for_each(property);
    QuickCheck::new().rng(Gen::new(60)).quickcheck(property);
}

#[test]
fn messages_of_a_handshake_are_read_or_refused() {
    check("handshake", |bytes| model::handshake(&bytes));
}

#[test]
fn sizes_are_read_or_refused() {
    check("size", |bytes| model::size(&bytes));
}
