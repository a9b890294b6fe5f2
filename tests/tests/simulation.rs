//! Simulated worlds: see `polyrail_tests::simulation`. `cargo run --release -p polyrail-tests --bin
//! simulate` runs many more of them, and finds the shortest failing prefix of one.
//!
//! `QUICKCHECK_TESTS=n` runs n worlds that bytes choose.

use polyrail_tests::allocations::{CountingAllocator, expect_counting};
use polyrail_tests::choices::quickcheck_seed;
use polyrail_tests::simulation::{FaultLevel, Summary, run_bytes, run_seed, shape_of};
use quickcheck::{Gen, QuickCheck};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn every_promise_is_kept_in_worlds_of_seeds() {
    for seed in 0..24 {
        let outcome = std::panic::catch_unwind(|| run_seed(seed, 300));
        assert!(outcome.is_ok(), "repeat: simulate --seed {seed} --steps 300");
    }
}

#[test]
fn every_promise_is_kept_in_worlds_of_bytes() {
    fn holds(bytes: Vec<u8>) {
        run_bytes(&bytes);
    }
    QuickCheck::new()
        .rng(Gen::from_size_and_seed(600, quickcheck_seed()))
        .quickcheck(holds as fn(Vec<u8>));
}

#[test]
fn a_seed_is_the_same_world_every_time() {
    for seed in [7, 8] {
        assert_eq!(run_seed(seed, 300), run_seed(seed, 300));
    }
    assert_ne!(run_seed(7, 300).history, run_seed(8, 300).history);
}

/// A simulation that does nothing finds nothing: checks that worlds are busy, and that some have
/// faults.
#[test]
fn much_happens_at_every_fault_level() {
    for fault_level in [FaultLevel::None, FaultLevel::Delays, FaultLevel::Failures] {
        let seeds = (0..).filter(|seed| shape_of(*seed).fault_level == fault_level);
        let mut total = Summary::default();
        seeds.take(8).for_each(|seed| total += run_seed(seed, 300));
        let busy = total.requests - total.refused > 150 && total.reports > 300;
        assert!(busy && total.nic_steps > 1000 && total.reattached > 0, "{total:?}");
        assert_eq!(total.faults > 0, fault_level != FaultLevel::None, "{total:?}");
        assert_eq!(total.strays > 0, fault_level == FaultLevel::Failures, "{total:?}");
    }
}

#[test]
fn the_counter_counts() {
    expect_counting();
}
