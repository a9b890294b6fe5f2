//! Two ends whose rails fail: by seed, and in every order of small worlds.

use polyrail_tests::ends::search::attempt;

#[test]
fn seeds() {
    let seeds: u64 =
        std::env::var("ENDS_SEEDS").map_or(100, |seeds| seeds.parse().expect("a number"));
    for seed in 1..=seeds {
        if let Err(failure) = attempt(seed, 600, &|_| {}) {
            let failure = failure.shortest();
            panic!("seed {seed}: {}\n{:#?}\n{:?}", failure.message, failure.actions, failure.shape);
        }
    }
}
