//! Two ends whose rails fail: by seed, and in every order of small worlds.
//!
//! `ENDS_SEEDS=n` runs n seeds; `simulate ends` runs many more of them; `simulate ends --states n`
//! explores n states of each small world.

use polyrail_tests::ends::{Shape, Summary};
use polyrail_tests::search::{Bounds, Explored, attempt, explore_all};

#[test]
fn the_worlds_of_all_seeds_keep_every_promise() {
    let seeds = std::env::var("ENDS_SEEDS").map_or(200, |seeds| seeds.parse().expect("a number"));
    let mut total = Summary::default();
    for seed in 1..=seeds {
        match attempt::<Shape>(seed, 600) {
            Ok(summary) => total += summary,
            Err(failure) => failure.raise(&format!("seed {seed}")),
        }
    }
    // Where nothing happens, nothing is found.
    let busy = total.requests > 2 * seeds && total.reports > total.requests;
    assert!(busy && total.failures > seeds && total.replaced > seeds, "{total:?}");
    assert!(total.stragglers > seeds / 20 && total.given_up > seeds / 20, "{total:?}");
    assert!(total.shared > seeds / 2 && total.out_of_service > seeds / 10, "{total:?}");
    assert!(total.sleeps > 10 * seeds && total.stood_in > seeds / 4, "{total:?}");
}

#[test]
fn every_order_of_two_requests_and_a_failure_keeps_every_promise() {
    let bounds = Bounds { states: 60, deviations: u32::MAX };
    let mut total = Explored::default();
    for (_, explored) in explore_all::<Shape>(bounds, 2) {
        let explored = explored.unwrap_or_else(|failure| failure.raise("in some order"));
        assert!(explored.states >= 60 || explored.is_complete && explored.ends > 0, "{explored}");
        total += explored;
    }
    assert!(total.ends < total.paths / 2, "orders do not meet in equal states: {total}");
}
