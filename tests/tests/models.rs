//! The engine's structures beside the seeds' (see `polyrail_tests::model`). `QUICKCHECK_TESTS=n` runs n cases of each.

use polyrail_tests::model;
use quickcheck::{Gen, QuickCheck};

/// Runs a model on byte strings of up to `longest` bytes; a failure is shrunk.
fn check(longest: usize, property: fn(Vec<u8>)) {
    QuickCheck::new().rng(Gen::new(longest)).quickcheck(property);
}

#[test]
fn the_ring_agrees_with_the_seeds_three_structures() {
    check(400, |bytes| model::tracker(&bytes));
}

#[test]
fn the_window_agrees_with_the_seeds_map() {
    check(600, |bytes| model::window(&bytes));
}

#[test]
fn the_routing_table_agrees_with_a_hash_map() {
    check(600, |bytes| model::routing(&bytes));
}

#[test]
fn tags_keep_their_fields() {
    check(20, |bytes| model::tag(&bytes));
}

#[test]
fn text_from_outside_is_read_or_refused() {
    check(60, |bytes| {
        model::card(&bytes);
        model::size(&bytes);
    });
}
