//! `polyrail perf --timeline` and `polyrail perf --fault`: one measurement over time.

use super::args::{OperationName, PerfArguments, SchemeName};
use super::exit::Failure;
use super::faults::Announcer;
use super::hosts::with_domains;
use super::intervals::Rows;
use super::metrics::Export;
use super::perf::{Place, check, config, describe, here, to_host};
use super::setting::Setting;
use super::signals::interrupts;
use super::table::Table;
use super::{hosts, output, print, timeline_plot};
use polyrail::virtual_qp::RailId;
use polyrail_program::devices::OpenedDevices;
use polyrail_program::job::Shape;
use polyrail_program::perf::{
    Cause, Goodput, Mark, PerfConfig, PerfProgress, Timeline, measure_over_time,
    measure_over_time_to,
};
use polyrail_program::session::ServerAddress;
use polyrail_program::size::human_size;
use polyrail_program::transfer::replace_file;
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Operation to measure by default.
const OPERATION: OperationName = OperationName::WriteImm;
/// Default scheme.
const SCHEME: SchemeName = SchemeName::Spray;
/// Default size of a request in bytes.
const SIZE: u32 = 1 << 20;
/// Default time to measure.
const TIME: Duration = Duration::from_secs(3);

/// What to measure, and between which ends.
struct Bench {
    place: Place,
    config: PerfConfig,
    /// The server and this host's devices; `None` within this process.
    server: Option<(ServerAddress, OpenedDevices)>,
}

/// A measurement, and the place and configuration that it was made with.
struct Measured {
    place: Place,
    config: PerfConfig,
    timeline: Timeline,
    /// Whether a table of its intervals stands above the report.
    has_rows: bool,
    /// How stdout ended during the measurement, if it did.
    stdout: Option<Result<(), Failure>>,
}

pub(super) fn run(arguments: &PerfArguments) -> Result<(), Failure> {
    check(arguments)?;
    let bench = Bench::new(arguments)?;
    let interrupted = interrupts();
    let export = Export::start(arguments.metrics.as_ref(), false);
    let rails = export.news("perf");
    let progress = PerfProgress { rails, ..PerfProgress::ended_by(&interrupted) };
    let mut measured = measure(arguments, bench, &progress)?;
    // With a closed stdout, only a picture needs the figures.
    let is_over = |stdout: &mut Result<_, _>| stdout.is_err() || arguments.plot.is_none();
    if let Some(ended) = measured.stdout.take_if(is_over) {
        return ended;
    }
    if arguments.json {
        print::print_json(&Json::new(arguments, &measured))?;
    } else if !arguments.csv {
        print::print(text(arguments, &measured).as_bytes())?;
    }
    if let Some(path) = &arguments.plot {
        let svg = timeline_plot::svg(&measured.place.name, &measured.timeline)?;
        replace_file(path, svg.as_bytes())?;
    }
    if interrupted.load(Ordering::Relaxed) { Err(Failure::interrupted()) } else { Ok(()) }
}

impl Bench {
    /// Checks what was chosen, and reaches the server if there is one.
    fn new(arguments: &PerfArguments) -> Result<Self, Failure> {
        let operation = only("operation", &arguments.operations, OPERATION)?;
        let scheme = only("scheme", &arguments.schemes, SCHEME)?;
        let size = only("size", &arguments.sizes().unwrap_or_default(), SIZE)?;
        let (place, server) = match &arguments.to {
            None => (here(arguments), None),
            Some(address) => {
                let server = hosts::server(address, &arguments.token)?;
                let (place, devices) = to_host(arguments, &server)?;
                (place, Some((server, devices)))
            }
        };
        let config = config(arguments, &place, operation.into(), scheme.into(), size, TIME);
        Ok(Self { place, config, server })
    }
}

fn measure(
    arguments: &PerfArguments,
    bench: Bench,
    progress: &PerfProgress,
) -> Result<Measured, Failure> {
    let Bench { place, config, server } = bench;
    let interval = arguments.interval;
    let faults = &arguments.faults.fault;
    let announcer = Announcer::new(&progress.faults, &progress.rails, false);
    let announce = || _ = announcer.news().inspect(|news| output::tell(news));
    let about = describe(arguments, &place);
    let mut rows = Rows::new(arguments, &about, progress, config.rails);
    let watch = || {
        announce();
        rows.print();
    };
    let measured = match server {
        None => measure_over_time(&config, interval, faults, progress, watch),
        Some((server, devices)) => with_domains!(&devices, domains => {
            measure_over_time_to(&config, interval, server, domains, progress, watch)
        }),
    };
    announce();
    rows.print();
    let timeline = measured?;
    output::tell(&announcer.absent(faults, "measurement"));
    let has_rows = rows.has_begun();
    Ok(Measured { place, config, timeline, has_rows, stdout: rows.ended() })
}

/// Returns the value that was chosen, or the default.
///
/// # Errors
///
/// More than one value was chosen.
fn only<T: Copy>(what: &str, chosen: &[T], default: T) -> Result<T, Failure> {
    match *chosen {
        [] => Ok(default),
        [one] => Ok(one),
        _ => {
            let count = chosen.len();
            Err(Failure::usage(&format!(
                "--timeline, --interval and --fault measure a single {what}, but {count} were given"
            )))
        }
    }
}

fn text(arguments: &PerfArguments, measured: &Measured) -> String {
    let Measured { place, config, timeline, has_rows, .. } = measured;
    let about = if *has_rows { String::new() } else { describe(arguments, place) };
    let mut text = format!(
        "{about}\n{} of {}, {}: {} requests in {:.3} s, {:.2} GB/s, CPU {:.0}%\n\n{}",
        config.operation.name(),
        human_size(config.message_size.into()),
        config.shape().scheme_name(),
        timeline.requests,
        timeline.end().as_secs_f64(),
        timeline.goodput(),
        timeline.cpu_percent(),
        rails_table(timeline).text(),
    );
    if let Some(goodput) = timeline.goodput_around_marks() {
        // Writing to a string cannot fail.
        _ = writeln!(text, "\n{}", goodput_text(&goodput));
    }
    text
}

/// Returns a row for each rail, and one for the queue pair of notifications if it failed.
fn rails_table(timeline: &Timeline) -> Table {
    let mut table = Table::new(&["rail", "GB/s posted", "failures", "state at the end"]);
    let seconds = timeline.end().as_secs_f64();
    let last = timeline.samples.last();
    let bytes = last.iter().flat_map(|sample| &sample.rails);
    for (index, (name, &bytes)) in timeline.rails.iter().zip(bytes).enumerate() {
        let rate = format!("{:.2}", bytes as f64 / seconds / 1e9);
        let [failures, state] = state_cells(timeline, RailId::Data(index as u8));
        table.row(vec![name.clone(), rate, failures, state]);
    }
    if timeline.failures_of(RailId::Notify).1 > 0 {
        let [failures, state] = state_cells(timeline, RailId::Notify);
        table.row(vec!["notify".to_owned(), "0.00".to_owned(), failures, state]);
    }
    table
}

/// Returns how often a rail failed, and its state at the end.
fn state_cells(timeline: &Timeline, rail: RailId) -> [String; 2] {
    let (down, failures) = timeline.failures_of(rail);
    let since = |at: Duration| format!("down since {:.3} s", at.as_secs_f64());
    [failures.to_string(), down.map_or_else(|| "in service".to_owned(), since)]
}

fn goodput_text(goodput: &Goodput) -> String {
    let Goodput { before, during, after } = goodput;
    let ratio = goodput.during_ratio();
    let mut text = format!(
        "goodput: {before:.2} GB/s before the first fault, {during:.2} GB/s ({ratio:.2} of that) until recovery"
    );
    text += &match after.zip(goodput.after_ratio()) {
        Some((after, ratio)) => format!(", {after:.2} GB/s ({ratio:.2}) after that"),
        None => " or the end".to_owned(),
    };
    text
}

/// A timeline as JSON.
#[derive(Debug, Serialize)]
struct Json {
    operation: &'static str,
    #[serde(flatten)]
    shape: Shape,
    threads: u8,
    requests: u64,
    seconds: f64,
    gigabytes_per_second: f64,
    /// `None` if there are no marks.
    goodput: Option<GoodputJson>,
    /// As for a line of the table.
    cpu_percent: f64,
    /// Names of the rails, each with its device.
    rail_names: Vec<String>,
    /// In the order of the names.
    rail_states: Vec<RailStateJson>,
    samples: Vec<Interval>,
    marks: Vec<MarkJson>,
    #[serde(flatten)]
    setting: Setting,
}

/// Whether a rail failed.
#[derive(Debug, Serialize)]
struct RailStateJson {
    failures: usize,
    /// `None` if the rail is in service at the end.
    down_since_seconds: Option<f64>,
}

/// Goodput in GB/s before the first mark, until recovery, and after that.
#[derive(Debug, Serialize)]
struct GoodputJson {
    before: f64,
    during: f64,
    after: Option<f64>,
    during_ratio: f64,
    after_ratio: Option<f64>,
}

/// Throughput between two samples.
#[derive(Debug, Serialize)]
struct Interval {
    /// End of the interval in seconds since the measurement began.
    seconds: f64,
    /// GB/s of acknowledged payload over all rails.
    gigabytes_per_second: f64,
    /// GB/s of payload posted to each rail.
    rails: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct MarkJson {
    seconds: f64,
    /// `fault N`, the N-th on the command line counted from 0, or the rail.
    cause: String,
    /// Whether a fault or failure begins here, rather than ends.
    begins: bool,
    text: String,
}

impl Json {
    fn new(arguments: &PerfArguments, measured: &Measured) -> Self {
        let Measured { place, config, timeline, .. } = measured;
        let state = |rail: usize| {
            let (down, failures) = timeline.failures_of(RailId::Data(rail as u8));
            RailStateJson { failures, down_since_seconds: down.map(|at| at.as_secs_f64()) }
        };
        Self {
            operation: config.operation.name(),
            shape: config.shape(),
            threads: place.threads,
            requests: timeline.requests,
            seconds: timeline.end().as_secs_f64(),
            gigabytes_per_second: timeline.goodput(),
            goodput: timeline.goodput_around_marks().as_ref().map(GoodputJson::from),
            cpu_percent: timeline.cpu_percent(),
            rail_names: timeline.rails.clone(),
            rail_states: (0..timeline.rails.len()).map(state).collect(),
            samples: intervals(timeline),
            marks: timeline.marks.iter().map(MarkJson::from).collect(),
            setting: Setting::new(arguments, config),
        }
    }
}

impl From<&Goodput> for GoodputJson {
    fn from(goodput: &Goodput) -> Self {
        let &Goodput { before, during, after } = goodput;
        let during_ratio = goodput.during_ratio();
        Self { before, during, after, during_ratio, after_ratio: goodput.after_ratio() }
    }
}

impl From<&Mark> for MarkJson {
    fn from(mark: &Mark) -> Self {
        let Mark { at, cause, begins, text } = mark;
        let cause = match cause {
            Cause::Fault(fault) => format!("fault {fault}"),
            Cause::Rail(rail) => rail.to_string(),
        };
        Self { seconds: at.as_secs_f64(), cause, begins: *begins, text: text.clone() }
    }
}

/// Returns the rates between samples.
fn intervals(timeline: &Timeline) -> Vec<Interval> {
    let interval = |rates: (Duration, f64, Vec<f64>)| {
        let (end, gigabytes_per_second, rails) = rates;
        Interval { seconds: end.as_secs_f64(), gigabytes_per_second, rails }
    };
    timeline.rates().map(interval).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_program::perf::Sample;

    #[test]
    fn the_table_says_which_rail_is_down() {
        let mark = |at, rail, begins| Mark {
            at: Duration::from_millis(at),
            cause: Cause::Rail(rail),
            begins,
            text: String::new(),
        };
        let (one, two) = (RailId::Data(1), RailId::Data(2));
        let sample = |at, bytes| Sample {
            at: Duration::from_millis(at),
            completed: 3 * bytes,
            rails: vec![bytes; 3],
        };
        let marks = vec![mark(1, one, true), mark(2, two, true), mark(3, one, false)];
        let rails = ["rail 0 (a)", "rail 1 (b)", "rail 2 (c)"].map(str::to_owned).to_vec();
        let samples = vec![sample(0, 0), sample(10, 10_000_000)];
        let mut timeline = Timeline { rails, samples, marks, ..Timeline::default() };
        let expected = "rail        GB/s posted  failures  state at the end\n\
                        rail 0 (a)         1.00         0  in service\n\
                        rail 1 (b)         1.00         1  in service\n\
                        rail 2 (c)         1.00         1  down since 0.002 s\n";
        assert_eq!(rails_table(&timeline).text(), expected);
        timeline.marks.push(mark(4, RailId::Notify, true));
        let text = rails_table(&timeline).text();
        assert!(
            text.ends_with("notify             0.00         1  down since 0.004 s\n"),
            "{text}"
        );
    }

    #[test]
    fn goodput_is_printed_with_its_ratios() {
        let goodput = Goodput { before: 4.0, during: 3.0, after: Some(3.9) };
        assert_eq!(
            goodput_text(&goodput),
            "goodput: 4.00 GB/s before the first fault, 3.00 GB/s (0.75 of that) until recovery, \
             3.90 GB/s (0.97) after that"
        );
        let goodput = Goodput { after: None, ..goodput };
        assert!(goodput_text(&goodput).ends_with("(0.75 of that) until recovery or the end"));
    }
}
