//! Simulated worlds of connections of the p2p protocol.
//!
//! `P2P_SEEDS=n` runs n seeds; `simulate p2p` runs many more of them.

use polyrail_tests::p2p::{Shape, Summary, on_large_stack};
use polyrail_tests::search::attempt;

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
            Err(failure) => {
                let failure = failure.shortest();
                failure.show();
                panic!(
                    "seed {seed}: {}\n{:?}\n{:#?}",
                    failure.message, failure.shape, failure.actions
                );
            }
        }
    }
    // Where nothing happens, nothing is found.
    let busy = total.receives > 5 * seeds && total.reports > total.sends && total.flushes > seeds;
    assert!(busy && total.failures > seeds && total.again > seeds, "{total:?}");
}
