//! `polyrail perf --latency`: times of half or whole round trips.

use super::args::{OperationName, PerfArguments};
use super::exit::Failure;
use super::hosts::with_domains;
use super::line::Line;
use super::perf::{Measure, Place, check, config, describe, here, kinds, to_host, with_news};
use super::setting::Setting;
use super::signals::interrupts;
use super::table::Table;
use super::{hosts, print};
use polyrail_program::job::Shape;
use polyrail_program::perf::{Latency, PerfConfig, measure_latency, measure_latency_to};
use polyrail_program::session::RailNews;
use polyrail_program::size::human_size;
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
    let kinds = kinds(arguments, &OPERATIONS);
    let (place, measure) = bench(arguments)?;
    let sizes = arguments.sizes.as_ref().map_or(&[SIZE][..], |sizes| &sizes.0);
    let mut lines = Vec::new();
    for (operation, scheme) in kinds {
        for &size in sizes {
            let config = config(arguments, &place, operation, scheme, size, TIME);
            let measured = with_news(&config, &*measure)?;
            let setting = Setting::new(arguments, &config);
            lines.push(Line::new(place.threads, &config, setting, measured));
        }
    }
    if arguments.json {
        print::print_json(&lines)
    } else if arguments.csv {
        print::print(csv(&lines).as_bytes())
    } else {
        print::print(text(arguments, &place, &lines).as_bytes())
    }
}

/// Returns the place that requests go to, and the function that measures them.
fn bench(arguments: &PerfArguments) -> Result<(Place, Box<Measure<Latency>>), Failure> {
    let Some(address) = &arguments.to else {
        return Ok((here(arguments), Box::new(measure_latency)));
    };
    let server = hosts::server(address, &arguments.token)?;
    let (place, devices) = to_host(arguments, &server)?;
    let interrupted = interrupts();
    let measure = move |config: &PerfConfig, news: &RailNews| {
        with_domains!(&devices, domains => {
            measure_latency_to(config, server.clone(), domains, news, &interrupted)
        })
    };
    Ok((place, Box::new(measure)))
}

fn text(arguments: &PerfArguments, place: &Place, lines: &[Line<Latency>]) -> String {
    let mut table = Table::new(&[
        "operation",
        "scheme",
        "size",
        "round trips",
        "min us",
        "p50 us",
        "p90 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "mean us",
    ]);
    for Line { operation, shape, measured, .. } in lines {
        let names = [(*operation).to_owned(), shape.scheme_name().to_owned()];
        let counts = [human_size(shape.message_size), measured.round_trips.to_string()];
        let times = times(measured).map(|nanoseconds| format!("{:.2}", nanoseconds / 1e3));
        table.row(names.into_iter().chain(counts).chain(times).collect());
    }
    let halves = lines.iter().any(|line| line.measured.halved);
    let wholes = lines.iter().any(|line| !line.measured.halved);
    let what = match (halves, wholes) {
        (true, true) => "Half round trips; for read, fetch-add and compare-swap whole round trips",
        (true, false) => "Half round trips",
        (false, _) => "Round trips",
    };
    format!("{}\n{what}\n\n{}", describe(arguments, place), table.text())
}

const fn times(measured: &Latency) -> [f64; 7] {
    let Latency { min_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns, mean_ns, .. } = *measured;
    [min_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns, mean_ns]
}

fn csv(lines: &[Line<Latency>]) -> String {
    let mut text = String::from(
        "operation,scheme,message_size,rails,devices,threads,round_trips,min_ns,p50_ns,p90_ns,\
         p99_ns,p99_9_ns,max_ns,mean_ns,halved\n",
    );
    for Line { operation, shape, threads, measured, .. } in lines {
        let Shape { rails, devices, message_size, .. } = shape;
        let scheme = shape.scheme_name();
        let Latency { round_trips, halved, .. } = *measured;
        let times = times(measured).map(|nanoseconds| format!("{nanoseconds:.1}")).join(",");
        text += &format!(
            "{operation},{scheme},{message_size},{rails},{devices},{threads},{round_trips},{times},{halved}\n"
        );
    }
    text
}
