//! `polyrail perf --latency`: times of half or whole round trips.

use super::args::{OperationName, PerfArguments};
use super::exit::Failure;
use super::hosts::with_domains;
use super::line::Line;
use super::lines::{Cells, Measure, Printer, measure_lines};
use super::perf::{Place, check, config, describe, here, kinds, named, names, sizes, to_host};
use super::signals::interrupts;
use super::table::StreamedTable;
use super::{hosts, latency_plot};
use polyrail_program::job::Shape;
use polyrail_program::perf::{
    Latency, PerfConfig, PerfProgress, measure_latency, measure_latency_to,
};
use polyrail_program::transfer::replace_file;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Operations to measure by default.
const OPERATIONS: [OperationName; 5] = [
    OperationName::Write,
    OperationName::WriteImm,
    OperationName::Read,
    OperationName::Send,
    OperationName::P2p,
];
/// Default size of a request in bytes.
const SIZE: u32 = 8;
/// Default time to measure each line.
const TIME: Duration = Duration::from_secs(1);

pub(super) fn run(arguments: &PerfArguments) -> Result<(), Failure> {
    check(arguments)?;
    let (place, measure) = bench(arguments)?;
    let kinds = kinds(arguments, &OPERATIONS);
    let configs: Vec<PerfConfig> = kinds
        .iter()
        .flat_map(|&(operation, scheme)| {
            let place = &place;
            let sizes = sizes(arguments, operation, || vec![SIZE]).into_iter();
            sizes.map(move |size| config(arguments, place, operation, scheme, size, TIME))
        })
        .collect();
    let about = format!("{}\n{}", describe(arguments, &place), what(&configs));
    let printer = Printer::new(arguments, &about, table(&configs), CSV_HEAD);
    let interrupted = interrupts();
    let configs = configs.into_iter();
    let lines = measure_lines(arguments, place.threads, configs, &*measure, &interrupted, printer)?;
    if let Some(path) = arguments.plot.as_ref().filter(|_| !lines.is_empty()) {
        replace_file(path, latency_plot::svg(&place.name, &lines)?.as_bytes())?;
    }
    if interrupted.load(Ordering::Relaxed) { Err(Failure::interrupted()) } else { Ok(()) }
}

/// Returns the place that requests go to, and the function that measures them.
fn bench(arguments: &PerfArguments) -> Result<(Place, Box<Measure<Latency>>), Failure> {
    let Some(address) = &arguments.to else {
        return Ok((here(arguments), Box::new(measure_latency)));
    };
    let server = hosts::server(address, &arguments.token)?;
    let (place, devices) = to_host(arguments, &server)?;
    let measure = move |config: &PerfConfig, progress: &PerfProgress| {
        with_domains!(&devices, domains => {
            measure_latency_to(config, server.clone(), domains, progress)
        })
    };
    Ok((place, Box::new(measure)))
}

/// Returns what the figures are.
fn what(configs: &[PerfConfig]) -> &'static str {
    let wholes = configs.iter().any(|config| config.operation.fetches());
    let halves = configs.iter().any(|config| !config.operation.fetches());
    match (halves, wholes) {
        (true, true) => "Half round trips; for read, fetch-add and compare-swap whole round trips",
        (true, false) => "Half round trips",
        (false, _) => "Round trips",
    }
}

fn table(configs: &[PerfConfig]) -> StreamedTable {
    let times = ["min us", "p50 us", "p90 us", "p99 us", "p99.9 us", "max us", "mean us"];
    let table = named(configs).numbers("round trips", 9);
    times.into_iter().fold(table, |table, head| table.numbers(head, 8))
}

const fn times(measured: &Latency) -> [f64; 7] {
    let Latency { min_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns, mean_ns, .. } = *measured;
    [min_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns, mean_ns]
}

impl Cells for Line<Latency> {
    fn cells(&self) -> Vec<String> {
        let times = times(&self.measured).map(|nanoseconds| format!("{:.2}", nanoseconds / 1e3));
        let round_trips = self.measured.round_trips.to_string();
        names(self).into_iter().chain([round_trips]).chain(times).collect()
    }

    fn csv(&self) -> String {
        let Self { operation, shape, threads, measured, .. } = self;
        let Shape { rails, devices, message_size, .. } = shape;
        let scheme = shape.scheme_name();
        let Latency { round_trips, halved, .. } = *measured;
        let times = times(measured).map(|nanoseconds| format!("{nanoseconds:.1}")).join(",");
        format!(
            "{operation},{scheme},{message_size},{rails},{devices},{threads},{round_trips},{times},{halved}\n"
        )
    }
}

const CSV_HEAD: &str = "operation,scheme,message_size,rails,devices,threads,round_trips,min_ns,\
    p50_ns,p90_ns,p99_ns,p99_9_ns,max_ns,mean_ns,halved\n";
