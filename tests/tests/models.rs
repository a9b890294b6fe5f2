//! The engine's structures beside the reference implementation's (see `polyrail_tests::model`).
//! `QUICKCHECK_TESTS=n` runs n cases of each, and `QUICKCHECK_SEED=n` others than usual.

use polyrail_tests::choices::quickcheck_seed;
use polyrail_tests::search::run_bytes;
use polyrail_tests::{ends, model, p2p, simulation};
use quickcheck::{Gen, QuickCheck};

/// Runs a model on byte strings of up to `longest` bytes; a failure is shrunk.
fn check(longest: usize, property: fn(Vec<u8>)) {
    QuickCheck::new().rng(Gen::from_size_and_seed(longest, quickcheck_seed())).quickcheck(property);
}

#[test]
fn the_ring_agrees_with_a_map_and_two_queues() {
    check(400, |bytes| model::tracker(&bytes));
}

#[test]
fn the_window_agrees_with_a_map_of_early_numbers() {
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
fn control_messages_leave_an_end_sound() {
    check(600, |bytes| model::control(&bytes));
}

#[test]
fn ends_keep_their_promises_in_any_world() {
    check(800, |bytes| {
        run_bytes::<ends::Shape>(&bytes);
    });
}

#[test]
fn messages_keep_their_promises_in_any_world() {
    p2p::on_large_stack(|| {
        check(800, |bytes| {
            run_bytes::<p2p::Shape>(&bytes);
        });
    });
}

#[test]
fn a_peer_of_messages_that_sends_anything_breaks_its_connection_only() {
    check(400, |bytes| model::messages(&bytes));
    check(800, |bytes| p2p::any_peer(&bytes));
}

#[test]
fn cards_from_outside_are_read_or_refused() {
    check(60, |bytes| model::card(&bytes));
}

/// Inputs that once broke a model, or that guide the fuzzer, are kept with the fuzz targets; here
/// they run without fuzzing.
#[test]
fn the_seeds_of_the_fuzz_targets_pass() {
    p2p::on_large_stack(run_seeds);
}

fn run_seeds() {
    type Model = fn(&[u8]);
    let targets: [(&str, Model); 11] = [
        ("card", model::card),
        ("control", model::control),
        ("ends", |bytes| {
            run_bytes::<ends::Shape>(bytes);
        }),
        ("messages", model::messages),
        ("p2p", |bytes| {
            run_bytes::<p2p::Shape>(bytes);
        }),
        ("peer", p2p::any_peer),
        ("routing", model::routing),
        ("tag", model::tag),
        ("tracker", model::tracker),
        ("window", model::window),
        ("world", |bytes| {
            simulation::run_bytes(bytes);
        }),
    ];
    for (name, target) in targets {
        model::seeds(name).iter().for_each(|seed| target(seed));
    }
    // Run by `any_bytes` of the TCP NIC, whose sockets are not models, and by `program_text`.
    let elsewhere = ["first_frames", "frames", "handshake", "size"];
    for target in model::seeds_folder().read_dir().unwrap() {
        let name = target.unwrap().file_name().into_string().unwrap();
        let run = targets.iter().any(|(target, _)| *target == name);
        assert!(run || elsewhere.contains(&name.as_str()), "{name} is not a target");
    }
}
