//! Simulated worlds of connections of the p2p protocol.
//!
//! `P2P_SEEDS=n` runs n seeds; `simulate p2p` runs many more of them; `simulate p2p --states n`
//! explores n states of each small world.

use polyrail_tests::p2p::{Shape, Summary, on_large_stack};
use polyrail_tests::search::{Bounds, Explored, Small as _, attempt, explore_all};

#[test]
fn the_worlds_of_all_seeds_keep_every_promise() {
    on_large_stack(all_seeds);
}

fn all_seeds() {
    let seeds = std::env::var("P2P_SEEDS").map_or(200, |seeds| seeds.parse().expect("a number"));
    let mut total = Summary::default();
    for seed in 1..=seeds {
        match attempt::<Shape>(seed, 600) {
            Ok(summary) => total += summary,
            Err(failure) => failure.raise(&format!("seed {seed}")),
        }
    }
    // Where nothing happens, nothing is found.
    let busy = total.receives > 5 * seeds && total.reports > total.sends && total.flushes > seeds;
    assert!(busy && total.failures > seeds && total.again > seeds, "{total:?}");
    assert!(total.stood_in > seeds / 4, "{total:?}");
}

#[test]
fn every_order_of_two_messages_and_a_failure_keeps_every_promise() {
    let bounds = Bounds { states: u64::MAX, deviations: 1 };
    let mut total = Explored::default();
    for (shape, explored) in explore_all::<Shape>(bounds, 2) {
        let explored = explored.unwrap_or_else(|failure| failure.raise("in some order"));
        assert!(explored.is_complete && explored.ends > 0, "{}: {explored}", shape.describe());
        total += explored;
    }
    assert!(total.states > 3000, "{total}");
    assert!(total.ends < total.paths / 2, "orders do not meet in equal states: {total}");
}
