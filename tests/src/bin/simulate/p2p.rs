//! Worlds of p2p connections.

use clap::Args;
use polyrail_tests::p2p::Summary;
use polyrail_tests::p2p::search::{Failure, Search, capture_panics, kind};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What is run.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Steps of each world.
    #[arg(long, default_value_t = 600)]
    steps: u64,
    /// Seeds to run, one after the other.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Threads; one for each processor if 0.
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Runs all seeds, and prints how many fail in which way.
    #[arg(long)]
    count: bool,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let begun = Instant::now();
    capture_panics();
    let Arguments { seed, seeds, steps, count, .. } = *arguments;
    let search = Search::new(seed, seeds, steps, count);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = if arguments.jobs == 0 { processors } else { arguments.jobs };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(|| search.work()))));
    let (total, failures) = search.into_results();
    print(seeds, &total, begun.elapsed());
    if failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    if count {
        print_kinds(&failures)
    } else {
        report(&failures[0])
    }
    ExitCode::FAILURE
}

fn print(seeds: u64, total: &Summary, time: Duration) {
    let Summary { steps, receives, sends, refused, reports, flushes, .. } = total;
    let Summary { failures, forgeries, replaced, losses, renewed, controls, again, .. } = total;
    println!(
        "{seeds} seeds, in {:.1} s: {steps} steps; {receives} receives and {sends} sends accepted, {refused} \
         refused, {reports} reported, {flushes} flushed; {failures} queue pairs failed, {renewed} \
         replaced, {losses} devices gone, {again} shares and entries again, {controls} control messages; \
         {forgeries} forgeries, {replaced} connections replaced",
        time.as_secs_f64()
    );
}

fn print_kinds(failures: &[(u64, Failure)]) {
    let mut kinds = BTreeMap::<_, Vec<_>>::new();
    for (seed, failure) in failures {
        kinds.entry(kind(&failure.message)).or_default().push(seed);
    }
    for (kind, seeds) in kinds {
        println!("{} seeds: {kind}: {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
    }
}

fn report((seed, failure): &(u64, Failure)) {
    eprintln!("seed {seed} fails: {}", failure.message);
    let failure = failure.clone().shortest();
    eprintln!("the plainest world that fails: {:?}", failure.shape);
    eprintln!("the shortest history, of {} steps: {}", failure.actions.len(), failure.message);
    failure.actions.iter().for_each(|action| eprintln!("  {action:?}"));
    eprintln!("\nwhat happens then:");
    failure.show();
    let profile = if cfg!(debug_assertions) { "--profile sweep" } else { "--release" };
    eprintln!("repeat: cargo run {profile} -p polyrail-tests --bin simulate -- p2p --seed {seed}");
}
