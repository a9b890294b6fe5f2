//! The program's readers of text that comes from outside. `QUICKCHECK_TESTS=n` runs n cases,
//! and `QUICKCHECK_SEED=n` others than usual.

use polyrail_tests::choices::quickcheck_seed;
use polyrail_tests::model;
use quickcheck::{Gen, QuickCheck};

/// Runs the seeds of a fuzz target, and random byte strings.
fn check(target: &str, property: fn(Vec<u8>)) {
    model::seeds(target).into_iter().for_each(property);
    QuickCheck::new().rng(Gen::from_size_and_seed(60, quickcheck_seed())).quickcheck(property);
}

#[test]
fn messages_of_a_handshake_are_read_or_refused() {
    check("handshake", |bytes| model::handshake(&bytes));
}

#[test]
fn sizes_are_read_or_refused() {
    check("size", |bytes| model::size(&bytes));
}
