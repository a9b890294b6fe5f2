//! Worlds that are chosen step by step: searched by seed, and made plainer where they fail.

use clap::Args;
use polyrail_tests::search::{Failure, Search, Shape, capture_panics, kind};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

/// What is run.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Most steps of each world.
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

pub(super) fn run<S>(arguments: &Arguments) -> ExitCode
where
    S: Shape<Action: Send, Summary: Send> + Send,
{
    let begun = Instant::now();
    capture_panics();
    let Arguments { seed, seeds, steps, count, .. } = *arguments;
    let search = Search::<S>::new(seed, seeds, steps, count);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = if arguments.jobs == 0 { processors } else { arguments.jobs };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(|| search.work()))));
    let (total, failures) = search.into_results();
    println!("{seeds} seeds, in {:.1} s: {total}", begun.elapsed().as_secs_f64());
    if failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    if count {
        print_kinds(&failures);
    } else {
        report(&failures[0]);
    }
    ExitCode::FAILURE
}

fn print_kinds<S: Shape>(failures: &[(u64, Failure<S>)]) {
    let mut kinds = BTreeMap::<_, Vec<_>>::new();
    for (seed, failure) in failures {
        kinds.entry(kind(&failure.message)).or_default().push(seed);
    }
    for (kind, seeds) in kinds {
        println!("{} seeds: {kind}: {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
    }
}

fn report<S: Shape>((seed, failure): &(u64, Failure<S>)) {
    eprintln!("seed {seed} fails: {}", failure.message);
    let failure = failure.clone().shortest();
    eprintln!("the plainest world that fails: {:?}", failure.shape);
    eprintln!("the shortest history, of {} steps: {}", failure.actions.len(), failure.message);
    failure.actions.iter().for_each(|action| eprintln!("  {action:?}"));
    eprintln!("\nwhat happens then:");
    failure.show();
    let profile = if cfg!(debug_assertions) { "--profile sweep" } else { "--release" };
    let name = S::NAME;
    eprintln!(
        "repeat: cargo run {profile} -p polyrail-tests --bin simulate -- {name} --seed {seed}"
    );
}
