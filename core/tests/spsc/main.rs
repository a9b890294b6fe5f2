//! The ring between two threads, from both ends at once.
//!
//! The scenarios run twice. Here they meet whatever interleavings the machine happens to take,
//! often and with many values. Under `--cfg polyrail_loom` (`tests/gate.sh loom`) loom runs them
//! with few values in every interleaving that the memory model allows, and prints how many there
//! were: seconds for each. The last one has three threads, and millions of them that take minutes:
//! of it, those in which threads are taken from the processor a few times though they could go on
//! (`LOOM_MAX_PREEMPTIONS` sets another limit).

mod scenarios;
mod threads;

/// Runs a scenario with `few` values in every interleaving, or in every one with this many
/// preemptions at most.
#[cfg(polyrail_loom)]
fn explore(name: &str, few: usize, preemptions: Option<usize>, scenario: fn(usize)) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let interleavings = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&interleavings);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        scenario(few);
    });
    println!("{name}: {} interleavings", interleavings.load(Ordering::Relaxed));
}

/// Runs a scenario with `few` values many times, and a few times with many.
#[cfg(not(polyrail_loom))]
fn explore(_name: &str, few: usize, _preemptions: Option<usize>, scenario: fn(usize)) {
    const MANY: usize = 20_000;
    (0..500).for_each(|_| scenario(few));
    (0..3).for_each(|_| scenario(MANY));
}

macro_rules! explored {
    ($($scenario:ident: $few:expr $(, $preemptions:literal preemptions)?;)*) => {
        $(#[test]
        fn $scenario() {
            let preemptions = None$(.or(Some($preemptions)))?;
            explore(stringify!($scenario), $few, preemptions, scenarios::$scenario);
        })*
    };
}

explored! {
    pops_meet_an_empty_ring: 3;
    pushes_meet_a_full_ring: 3;
    a_ring_of_one_place_is_full_and_empty_in_turn: 3;
    positions_wrap_around: 4;
    batches_fill_and_empty: 3;
    a_batch_meets_single_pops: 3;
    a_producer_goes_while_its_consumer_pops: 2;
    a_consumer_goes_while_its_producer_pushes: 3;
    a_producer_goes_while_its_consumer_pops_batches: 3;
    a_consumer_goes_while_its_producer_pushes_batches: 2;
    both_ends_go_at_once: 2;
    a_shared_ring_is_split_by_one: 1;
    a_sleeper_is_woken_for_every_value: 2;
    a_sleeper_is_woken_by_the_end: 1;
    a_sleeper_serves_two_producers: 1, 4 preemptions;
}
