//! Worlds that are chosen step by step: searched by seed or in every order, and made plainer where
//! they fail.

use clap::Args;
use polyrail_tests::search::{
    Bounds, Explored, Failure, Search, Shape, Small, attempt, capture_panics, explore_all, kind,
};
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
    /// Instead of seeds, every order in which things can happen in small worlds, up to this many
    /// states of each.
    #[arg(long, conflicts_with_all = ["seed", "steps", "seeds", "count"])]
    states: Option<u64>,
    /// Only orders that differ from the plainest one in at most this many places.
    #[arg(long, default_value_t = u32::MAX, hide_default_value = true, requires = "states")]
    deviations: u32,
}

pub(super) fn run<S>(arguments: &Arguments) -> ExitCode
where
    S: Small<Action: Send, Summary: Send> + Send + Sync,
{
    capture_panics();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = if arguments.jobs == 0 { processors } else { arguments.jobs };
    match arguments.states {
        Some(states) => run_orders::<S>(Bounds { states, deviations: arguments.deviations }, jobs),
        None => run_seeds::<S>(arguments, jobs),
    }
}

fn run_orders<S>(bounds: Bounds, jobs: usize) -> ExitCode
where
    S: Small<Action: Send> + Send + Sync,
{
    let begun = Instant::now();
    let (mut total, mut worlds) = (Explored { is_complete: true, ..Explored::default() }, 0);
    for (shape, explored) in explore_all::<S>(bounds, jobs) {
        match explored {
            Ok(explored) => {
                println!("{}: {explored}", shape.describe());
                total += explored;
                worlds += 1;
            }
            Err(failure) => {
                eprintln!("fails in some order: {}", shape.describe());
                report(&failure);
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{worlds} worlds, in {:.1} s: {total}", begun.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

fn run_seeds<S>(arguments: &Arguments, jobs: usize) -> ExitCode
where
    S: Shape<Action: Send, Summary: Send> + Send,
{
    let begun = Instant::now();
    let Arguments { seed, seeds, steps, count, .. } = *arguments;
    let search = Search::new(attempt::<S>, (seed, seeds), steps, count);
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(|| search.work()))));
    let (total, failures) = search.into_results();
    println!("{seeds} seeds, in {:.1} s: {total}", begun.elapsed().as_secs_f64());
    if failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    if count {
        print_kinds(&failures);
    } else {
        let (seed, failure) = &failures[0];
        eprintln!("seed {seed} fails: {}", failure.message);
        report(failure);
        let profile = if cfg!(debug_assertions) { "--profile sweep" } else { "--release" };
        let name = S::NAME;
        eprintln!(
            "repeat: cargo run {profile} -p polyrail-tests --bin simulate -- {name} --seed {seed}"
        );
    }
    ExitCode::FAILURE
}

fn print_kinds<S: Shape>(failures: &[(u64, Box<Failure<S>>)]) {
    let mut kinds = BTreeMap::<_, Vec<_>>::new();
    for (seed, failure) in failures {
        kinds.entry(kind(&failure.message)).or_default().push(seed);
    }
    for (kind, seeds) in kinds {
        println!("{} seeds: {kind}: {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
    }
}

fn report<S: Shape>(failure: &Failure<S>) {
    let failure = failure.clone().shortest();
    eprintln!("the plainest world that fails: {:?}", failure.shape);
    eprintln!("the shortest history, of {} steps: {}", failure.actions.len(), failure.message);
    failure.actions.iter().for_each(|action| eprintln!("  {action:?}"));
    eprintln!("\nwhat happens then:");
    failure.show();
}
