//! From handles to a progress thread and back, and waiting for completions: nothing that was handed
//! over, and nothing that completes, is missed by one who sleeps.
//!
//! The scenarios run twice, as those of the ring (`spsc`) do: here in whatever interleavings the
//! machine takes, often; under `--cfg polyrail_loom` (`tests/gate.sh loom`) in every interleaving
//! with a limited number of preemptions, where a thread is taken from the processor though it could
//! go on. There handles are two requests deep, and a timeout that only serves what no event reports
//! never ends (`std-shim/library/src/sync`). What is missed is a sleep without an end: loom finds a
//! deadlock or too many steps, and a test hangs.

mod scenarios;
mod stepped;
mod world;

/// Runs a scenario in every interleaving with at most this many preemptions.
#[cfg(polyrail_loom)]
fn explore(name: &str, preemptions: usize, scenario: fn()) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let interleavings = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&interleavings);
    let mut builder = loom::model::Builder::new();
    // Unless the environment sets a limit: `LOOM_MAX_PREEMPTIONS`.
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 10_000;
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        world::spawn(scenario).join().unwrap();
    });
    println!("{name}: {} interleavings", interleavings.load(Ordering::Relaxed));
}

/// Runs a scenario many times.
#[cfg(not(polyrail_loom))]
fn explore(_name: &str, _preemptions: usize, scenario: fn()) {
    (0..50).for_each(|_| scenario());
}

macro_rules! explored {
    ($($scenario:ident: $preemptions:expr;)*) => {
        $(#[test]
        fn $scenario() {
            explore(stringify!($scenario), $preemptions, scenarios::$scenario);
        })*
    };
}

explored! {
    a_thread_that_sleeps_is_woken_for_a_request: 1;
    a_thread_that_waits_for_completions_is_woken_for_a_request: 1;
    what_a_full_handle_took_is_carried_out: 1;
    what_was_handed_over_together_is_carried_out: 1;
    // With three threads, one preemption is more than a minute of interleavings.
    handles_do_not_wait_for_each_other: 0;
    a_thread_that_stops_leaves_nobody_waiting: 1;
    a_completion_that_a_peer_causes_wakes_the_thread_and_the_task: 1;
    an_endpoint_that_waits_misses_no_completion: 4;
}
