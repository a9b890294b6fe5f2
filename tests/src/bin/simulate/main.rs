//! Looks for seeds whose simulated world breaks one of the engine's promises.

mod worlds;

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use polyrail_tests::allocations::{CountingAllocator, expect_counting};
use polyrail_tests::search::{Search, capture_panics};
use polyrail_tests::simulation::search::{Failure, attempt, shortest};
use polyrail_tests::simulation::{Summary, shape_of};
use polyrail_tests::{ends, p2p};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const EXAMPLES: &str = "\
Examples:
  simulate --seed 1 --seeds 10000
  simulate --seed 4711 --steps 37        repeats what a failing seed printed
  simulate --forever
  simulate ends --seeds 10000            rails that fail and come back
  simulate p2p --seeds 10000             connections of the p2p protocol
  simulate p2p --states 100000 --deviations 3
                                         small ones of them, in every order with 3 deviations

The engine's invariants and the oracle are checked after every step in any profile. Built with \
`--profile sweep` instead of `--release`, the engine's own debug assertions and overflow checks \
run as well.

Exit codes: 0 every promise was kept; 1 a seed failed, and is printed; 2 the command line makes \
no sense.";

/// Runs virtual queue pairs in simulated worlds and checks every promise of the engine.
#[derive(Debug, Parser)]
#[command(
    name = "simulate",
    after_help = EXAMPLES,
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(subcommand)]
    world: Option<OtherWorld>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Steps of each world: posts, polls, turns of the NIC, faults.
    #[arg(long, default_value_t = 1000)]
    steps: u64,
    /// Seeds to run, one after the other.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Runs until it is stopped, or a seed fails.
    #[arg(long, conflicts_with = "seeds")]
    forever: bool,
    /// Threads; one for each processor if 0.
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Prints the parameters of the first seed's world.
    #[arg(long)]
    show: bool,
}

/// Another kind of world.
#[derive(Debug, Subcommand)]
enum OtherWorld {
    /// Two virtual queue pairs whose rails fail, with every step of NICs and owners drawn one by
    /// one.
    Ends(worlds::Arguments),
    /// Worlds of connections of the p2p protocol.
    P2p(worlds::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match &arguments.world {
        Some(OtherWorld::Ends(arguments)) => return worlds::run::<ends::Shape>(arguments),
        Some(OtherWorld::P2p(arguments)) => return worlds::run::<p2p::Shape>(arguments),
        None => {}
    }
    expect_counting();
    if arguments.show {
        println!("seed {}: {}", arguments.seed, shape_of(arguments.seed));
    }
    let begun = Instant::now();
    capture_panics();
    let count = if arguments.forever { u64::MAX } else { arguments.seeds };
    let search = Search::new(attempt, (arguments.seed, count), arguments.steps, false);
    run(&search, &arguments);
    let done = search.done();
    let (total, failures) = search.into_results();
    match failures.into_iter().next() {
        Some((_, failure)) => {
            report(failure, done);
            ExitCode::FAILURE
        }
        None => {
            print(done, &total, begun.elapsed());
            ExitCode::SUCCESS
        }
    }
}

fn run(search: &Search<Summary, Failure>, arguments: &Arguments) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = if arguments.jobs == 0 { processors } else { arguments.jobs };
    let bar = bar(arguments);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(|| search.work())).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            bar.set_position(search.done());
        }
    });
    bar.finish_and_clear();
}

/// Progress, on terminals only.
fn bar(arguments: &Arguments) -> ProgressBar {
    let length = (!arguments.forever).then_some(arguments.seeds);
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
    let template = if arguments.forever {
        "{spinner} {human_pos} seeds in {elapsed}  {per_sec}"
    } else {
        "{bar:30} {human_pos} of {human_len} seeds  {per_sec}  {eta} left"
    };
    // The template is ours, and right.
    bar.set_style(
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar
}

fn report(failure: Failure, done: u64) {
    let seed = failure.seed;
    let found = failure.steps;
    eprintln!("seed {seed} fails within {found} steps; {done} seeds kept every promise before it");
    eprintln!("its world: {}", shape_of(seed));
    let Failure { steps, message, .. } = shortest(failure);
    eprintln!("its shortest prefix that fails has {steps} steps: {message}");
    let profile = if cfg!(debug_assertions) { "--profile sweep" } else { "--release" };
    eprintln!(
        "repeat: cargo run {profile} -p polyrail-tests --bin simulate -- --seed {seed} --steps {steps}"
    );
}

fn print(seeds: u64, total: &Summary, time: Duration) {
    let Summary { steps, nic_steps, requests, refused, receives, reports, failures, .. } = total;
    let Summary { faults, strays, reattached, replaced, failed, bereft, jammed, .. } = total;
    let Summary { flawed, survivors, receive_queues, displaced, shared, .. } = total;
    println!(
        "{seeds} seeds kept every promise, in {:.1} s: {steps} steps, {nic_steps} of the NIC; \
         {requests} requests ({refused} refused, {flawed} flawed) and {receives} receives posted, {reports} reported \
         ({failures} failed); {faults} faults, {strays} strays, {reattached} re-attached, \
         {displaced} displaced, {shared} receives of shared queues, {replaced} connections replaced; given up at the end: {failed} that had failed, {bereft} with a \
         device gone, {jammed} jammed by strays; all reported at {survivors} ends that lost a device, \
         receives counted on {receive_queues} queues",
        time.as_secs_f64()
    );
}
