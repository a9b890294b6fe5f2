//! `polyrail perf --timeline` and `polyrail perf --fault`: one measurement over time.

use super::args::{OperationName, PerfArguments, SchemeName};
use super::exit::Failure;
use super::faults::Announcer;
use super::hosts::with_domains;
use super::perf::{Place, check, config, describe, here, to_host};
use super::setting::Setting;
use super::signals::interrupts;
use super::table::Table;
use super::{hosts, output, print, rails, timeline_plot};
use polyrail_program::fault_schedule::FaultLog;
use polyrail_program::job::Shape;
use polyrail_program::perf::{
    Cause, Goodput, Mark, PerfConfig, Timeline, measure_over_time, measure_over_time_to,
};
use polyrail_program::session::RailNews;
use polyrail_program::size::human_size;
use polyrail_program::transfer::replace_file;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// Operation to measure by default.
const OPERATION: OperationName = OperationName::WriteImm;
/// Default scheme.
const SCHEME: SchemeName = SchemeName::Spray;
/// Default size of a request in bytes.
const SIZE: u32 = 1 << 20;
/// Default time to measure.
const TIME: Duration = Duration::from_secs(3);

/// A measurement, and the place and configuration that it was made with.
struct Measured {
    place: Place,
    config: PerfConfig,
    timeline: Timeline,
}

pub(super) fn run(arguments: &PerfArguments) -> Result<(), Failure> {
    check(arguments)?;
    let measured = measure(arguments)?;
    if arguments.json {
        print::print_json(&Json::new(arguments, &measured))?;
    } else if arguments.csv {
        print::print(csv(&measured.timeline).as_bytes())?;
    } else {
        print::print(text(arguments, &measured).as_bytes())?;
    }
    let Some(path) = &arguments.plot else { return Ok(()) };
    let svg = timeline_plot::svg(&measured.place.name, &measured.timeline)?;
    Ok(replace_file(path, svg.as_bytes())?)
}

fn measure(arguments: &PerfArguments) -> Result<Measured, Failure> {
    let operation = only("operation", &arguments.operations, OPERATION)?;
    let scheme = only("scheme", &arguments.schemes, SCHEME)?;
    let sizes = arguments.sizes.as_ref().map_or(&[][..], |sizes| &sizes.0);
    let size = only("size", sizes, SIZE)?;
    let of = |place: &Place| config(arguments, place, operation.into(), scheme.into(), size, TIME);
    let Some(address) = &arguments.to else {
        let place = here(arguments);
        let config = of(&place);
        let timeline = measure_here(arguments, &config)?;
        return Ok(Measured { place, config, timeline });
    };
    let server = hosts::server(address, &arguments.token)?;
    let (place, devices) = to_host(arguments, &server)?;
    let config = of(&place);
    let news = RailNews::default();
    let measured = with_domains!(&devices, domains => {
        measure_over_time_to(&config, server, domains, &news, &interrupts())
    });
    rails::news(&news, "").inspect(|news| output::tell(news));
    let timeline = measured?;
    Ok(Measured { place, config, timeline })
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
                "--timeline and --fault measure a single {what}, but {count} were given"
            )))
        }
    }
}

/// Measures within this process, and prints faults as they happen.
fn measure_here(arguments: &PerfArguments, config: &PerfConfig) -> Result<Timeline, Failure> {
    let faults = &arguments.faults.fault;
    let log = FaultLog::default();
    let news = RailNews::default();
    let announcer = Announcer::new(&log, &news, false);
    let announce = || _ = announcer.news().inspect(|news| output::tell(news));
    let measured = measure_over_time(config, faults, &log, &news, announce);
    announce();
    let timeline = measured?;
    output::tell(&announcer.absent(faults, "measurement"));
    Ok(timeline)
}

fn text(arguments: &PerfArguments, measured: &Measured) -> String {
    let Measured { place, config, timeline } = measured;
    let seconds = timeline.end().as_secs_f64();
    let mut table = Table::new(&["rail", "GB/s posted"]);
    let last = timeline.samples.last();
    let bytes = last.iter().flat_map(|sample| &sample.rails);
    for (rail, &bytes) in timeline.rails.iter().zip(bytes) {
        table.row(vec![rail.clone(), format!("{:.2}", bytes as f64 / seconds / 1e9)]);
    }
    let mut text = format!(
        "{}\n{} of {}, {}: {} requests in {seconds:.3} s, {:.2} GB/s\n\n{}",
        describe(arguments, place),
        config.operation.name(),
        human_size(config.message_size.into()),
        config.shape().scheme_name(),
        timeline.requests,
        timeline.goodput(),
        table.text(),
    );
    if let Some(goodput) = timeline.goodput_around_marks() {
        // Writing to a string cannot fail.
        _ = writeln!(text, "\n{}", goodput_text(&goodput));
    }
    text
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

/// Returns a row for each interval between samples: its end in seconds, GB/s acknowledged, GB/s
/// posted to each rail, and the marks within it.
fn csv(timeline: &Timeline) -> String {
    let mut text = String::from("seconds,gigabytes_per_second");
    (0..timeline.rails.len()).for_each(|rail| text += &format!(",rail_{rail}"));
    text += ",marks\n";
    let marks_between = |from: Duration, to: Duration| {
        let marks = timeline.marks.iter().filter(|mark| mark.at > from && mark.at <= to);
        marks.map(|mark| mark.text.as_str()).collect::<Vec<_>>().join("; ")
    };
    let mut from = Duration::ZERO;
    for interval in intervals(timeline) {
        let to = Duration::from_secs_f64(interval.seconds);
        text += &format!("{:.6},{:.4}", interval.seconds, interval.gigabytes_per_second);
        interval.rails.iter().for_each(|rate| text += &format!(",{rate:.4}"));
        text += &format!(",{}\n", csv_quoted(&marks_between(from, to)));
        from = to;
    }
    text
}

/// Quotes a value that may contain commas or quotes (RFC 4180).
fn csv_quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
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
    /// Names of the rails, each with its device.
    rail_names: Vec<String>,
    samples: Vec<Interval>,
    marks: Vec<MarkJson>,
    #[serde(flatten)]
    setting: Setting,
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
        let Measured { place, config, timeline } = measured;
        Self {
            operation: config.operation.name(),
            shape: config.shape(),
            threads: place.threads,
            requests: timeline.requests,
            seconds: timeline.end().as_secs_f64(),
            gigabytes_per_second: timeline.goodput(),
            goodput: timeline.goodput_around_marks().as_ref().map(GoodputJson::from),
            rail_names: timeline.rails.clone(),
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
    fn csv_has_a_row_for_each_interval() {
        let sample = |at, completed| Sample {
            at: Duration::from_millis(at),
            completed,
            rails: vec![completed, 2 * completed],
        };
        let mark = |at, text: &str| Mark {
            at: Duration::from_millis(at),
            cause: Cause::Fault(0),
            begins: true,
            text: text.to_owned(),
        };
        let timeline = Timeline {
            rails: vec!["a".to_owned(), "b".to_owned()],
            samples: vec![sample(0, 0), sample(10, 10_000_000), sample(20, 15_000_000)],
            marks: vec![mark(12, "say \"a, b\""), mark(20, "c")],
            requests: 15,
        };
        assert_eq!(
            csv(&timeline),
            "seconds,gigabytes_per_second,rail_0,rail_1,marks\n\
             0.010000,1.0000,1.0000,2.0000,\n\
             0.020000,0.5000,0.5000,1.0000,\"say \"\"a, b\"\"; c\"\n"
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
