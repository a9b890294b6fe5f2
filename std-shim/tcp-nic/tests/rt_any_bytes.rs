//! Peers and strangers that are made of any bytes, as in the fuzz targets: of the seeds of these,
//! and of random bytes. `MODEL_SEEDS=N` runs N random strings of each kind (200).

mod support;

use polyrail_nic_parts::sync::SplitMix64;
use std::path::Path;
use support::fuzz;

fn check(name: &str, property: fn(&[u8])) {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(name);
    let seeds: Vec<_> = std::fs::read_dir(seeds).unwrap().map(|entry| entry.unwrap()).collect();
    assert!(!seeds.is_empty());
    for seed in seeds {
        property(&std::fs::read(seed.path()).unwrap());
    }
    let count = std::env::var("MODEL_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..count.unwrap_or(200) {
        let mut rng = SplitMix64::new(seed);
        let length = rng.below(300);
        let bytes: Vec<_> = (0..length).map(|_| rng.next() as u8).collect();
        if std::panic::catch_unwind(|| property(&bytes)).is_err() {
            panic!("{name}: seed {seed}");
        }
    }
}

#[test]
fn a_peer_that_sends_any_frames_breaks_its_connection_only() {
    check("frames", fuzz::frames);
}

#[test]
fn a_stranger_that_sends_anything_connects_to_nothing() {
    check("first_frames", fuzz::first_frames);
}
