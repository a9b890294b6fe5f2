//! `polyrail perf`: a table of throughput.

use super::args::{OperationName, PerfArguments, RequestArguments, SchemeName};
use super::exit::Failure;
use super::faults::refuse_with;
use super::hosts::with_domains;
use super::line::Line;
use super::output;
use super::print;
use super::rails;
use super::setting::Setting;
use super::signals::interrupts;
use super::table::Table;
use super::{hosts, plot};
use polyrail::cpus::pin_thread;
use polyrail::virtual_qp::Scheme;
use polyrail_program::devices::OpenedDevices;
use polyrail_program::job::Shape;
use polyrail_program::perf::{
    ATOMIC_SIZE, Limit, Measurement, Operation, PerfConfig, PerfError, Rate, Threads, measure,
    measure_to,
};
use polyrail_program::session::{PeerTimeouts, RailNews, ServerAddress};
use polyrail_program::size::human_size;
use polyrail_program::transfer::{check_replaceable, replace_file};
use std::num::NonZeroU64;
use std::time::Duration;

/// Operations to measure by default.
const OPERATIONS: [OperationName; 5] = [
    OperationName::Write,
    OperationName::WriteImm,
    OperationName::Read,
    OperationName::Send,
    OperationName::P2p,
];
/// Schemes to measure by default.
const SCHEMES: [SchemeName; 2] = [SchemeName::Spray, SchemeName::Dqplb];
/// Smallest and largest default size of a request in bytes.
const SMALLEST: u32 = 4 << 10;
const LARGEST: u32 = 4 << 20;
/// Default time to measure each line.
const TIME: Duration = Duration::from_millis(200);

/// Where requests go: the software NIC, or another host.
pub(super) struct Place {
    /// Description for reports.
    pub(super) name: String,
    /// Devices of each side that rails use.
    pub(super) devices: usize,
    pub(super) threads: u8,
}

/// A function that measures requests to a place.
pub(super) type Measure<T> = dyn Fn(&PerfConfig, &RailNews) -> Result<T, PerfError>;

pub(super) fn run(arguments: &PerfArguments) -> Result<(), Failure> {
    check(arguments)?;
    let (place, measure) = bench(arguments)?;
    let streamed = !arguments.json && !arguments.csv;
    let mut lines = Vec::new();
    for (operation, scheme) in kinds(arguments, &OPERATIONS) {
        for message_size in sizes(arguments, operation) {
            if streamed {
                progress(&lines, operation, message_size);
            }
            let config = config(arguments, &place, operation, scheme, message_size, TIME);
            let measured = with_news(&config, &*measure)?;
            let setting = Setting::new(arguments, &config);
            lines.push(Line::new(place.threads, &config, setting, measured));
        }
    }
    if streamed {
        erase_progress();
    }
    if arguments.json {
        print::print_json(&lines)?;
    } else if arguments.csv {
        print::print(csv(&lines).as_bytes())?;
    } else {
        print::print(text(arguments, &place, &lines).as_bytes())?;
    }
    match &arguments.plot {
        None => Ok(()),
        Some(path) => Ok(replace_file(path, plot::svg(&place.name, &lines)?.as_bytes())?),
    }
}

/// Checks combinations of options that clap cannot express, and that the picture can be written,
/// before any time is spent on measurements. Pins this thread to the processors that were chosen.
pub(super) fn check(arguments: &PerfArguments) -> Result<(), Failure> {
    arguments.host_devices.refuse_without(arguments.to.as_deref())?;
    arguments.token.refuse_without(arguments.to.as_deref())?;
    refuse_with(arguments.to.as_deref(), &arguments.faults.fault)?;
    if let Some(cpus) = &arguments.cpus {
        // Threads inherit the processors, so this also pins every thread that is started later.
        pin_thread(cpus).map_err(|error| Failure::usage(&format!("--cpus {cpus}: {error}")))?;
    }
    Ok(arguments.plot.as_deref().map_or(Ok(()), check_replaceable)?)
}

/// Returns the place that requests go to, and the function that measures them.
fn bench(arguments: &PerfArguments) -> Result<(Place, Box<Measure<Measurement>>), Failure> {
    let Some(address) = &arguments.to else { return Ok((here(arguments), Box::new(measure))) };
    let server = hosts::server(address, &arguments.token)?;
    let (place, devices) = to_host(arguments, &server)?;
    let interrupted = interrupts();
    let measure = move |config: &PerfConfig, news: &RailNews| {
        with_domains!(&devices, domains => {
            measure_to(config, server.clone(), domains, news, &interrupted)
        })
    };
    Ok((place, Box::new(measure)))
}

/// Returns the software NIC within this process as a place.
pub(super) fn here(arguments: &PerfArguments) -> Place {
    let RequestArguments { rails, devices, .. } = arguments.requests;
    let devices = devices.unwrap_or(rails);
    hosts::note_unused(devices, rails);
    let name = "the software NIC".to_owned();
    Place { name, devices: devices.min(rails), threads: arguments.threads }
}

/// Returns a `polyrail serve` as a place, with this host's devices.
pub(super) fn to_host(
    arguments: &PerfArguments,
    server: &ServerAddress,
) -> Result<(Place, OpenedDevices), Failure> {
    let timeouts = PeerTimeouts { answer: arguments.answer_timeout, ..PeerTimeouts::default() };
    let devices = hosts::reach(server, &arguments.host_devices, &timeouts, false)?;
    let rails = arguments.requests.rails;
    let names = devices.names();
    hosts::note_unused(names.len(), rails);
    let used = names.len().min(rails);
    let name = format!("{}, to {}", names[..used].join(", "), server.address);
    Ok((Place { name, devices: used, threads: 2 }, devices))
}

/// Returns the values that were chosen, or the default if there are none.
fn chosen<T: Copy>(chosen: &[T], default: &[T]) -> Vec<T> {
    if chosen.is_empty() { default.to_vec() } else { chosen.to_vec() }
}

/// Returns the sizes of requests to measure.
fn sizes(arguments: &PerfArguments, operation: Operation) -> Vec<u32> {
    let doubled = std::iter::successors(Some(SMALLEST), |size| Some(2 * size));
    let default = || match operation.is_atomic() {
        true => vec![ATOMIC_SIZE],
        false => doubled.take_while(|size| *size <= LARGEST).collect(),
    };
    arguments.sizes.as_ref().map_or_else(default, |sizes| sizes.0.clone())
}

/// Returns the operations to measure, each with the schemes that make a difference to it.
pub(super) fn kinds(
    arguments: &PerfArguments,
    default: &[OperationName],
) -> Vec<(Operation, Scheme)> {
    let mut kinds = Vec::new();
    for operation in chosen(&arguments.operations, default).into_iter().map(Operation::from) {
        let schemes = chosen(&arguments.schemes, &SCHEMES).into_iter().map(Scheme::from);
        let count =
            if operation.has_scheme() && arguments.requests.rails > 1 { usize::MAX } else { 1 };
        kinds.extend(schemes.take(count).map(|scheme| (operation, scheme)));
    }
    kinds
}

/// Returns the configuration of one line; `time` is its duration by default.
pub(super) fn config(
    arguments: &PerfArguments,
    place: &Place,
    operation: Operation,
    scheme: Scheme,
    message_size: u32,
    time: Duration,
) -> PerfConfig {
    let limit = Limit::Time(arguments.seconds.unwrap_or(time));
    PerfConfig {
        operation,
        scheme,
        rails: arguments.requests.rails,
        devices: place.devices,
        line_rate: arguments.requests.line_rate,
        max_msg_size: arguments.requests.max_msg_size,
        message_size,
        window: arguments.window,
        bidirectional: arguments.bidirectional,
        inline: arguments.inline(),
        mtu: arguments.mtu,
        threads: if place.threads == 2 { Threads::Two } else { Threads::One },
        limit: arguments.count.map_or(limit, Limit::Count),
        qp_timeout: arguments.connection.qp_timeout(arguments.to.is_some()),
        quality: arguments.host_devices.quality(),
        rail_repair: arguments.connection.rail_repair(arguments.failure.rail_failure.into()),
        answer_timeout: arguments.answer_timeout,
    }
}

/// Measures, then prints the rail events.
pub(super) fn with_news<T>(config: &PerfConfig, measure: &Measure<T>) -> Result<T, Failure> {
    let news = RailNews::default();
    let measured = measure(config, &news);
    rails::news(&news, "").inspect(|news| output::tell(news));
    Ok(measured?)
}

fn progress(lines: &[Line], operation: Operation, message_size: u32) {
    use std::io::IsTerminal;
    if std::io::stderr().is_terminal() {
        let size = human_size(message_size.into());
        let count = lines.len();
        let name = operation.name();
        output::tell(&format!("\r\x1b[K{count} lines measured, now {name} of {size}"));
    }
}

fn erase_progress() {
    use std::io::IsTerminal;
    if std::io::stderr().is_terminal() {
        output::tell("\r\x1b[K");
    }
}

fn text(arguments: &PerfArguments, place: &Place, lines: &[Line]) -> String {
    const COLUMNS: [&str; 11] = [
        "operation",
        "scheme",
        "size",
        "msgs/s",
        "GB/s",
        "Gbit/s",
        "ns/msg",
        "bells/msg",
        "compl/msg",
        "memcpy GB/s",
        "of memcpy",
    ];
    let directions: &[&str] =
        if arguments.bidirectional { &["GB/s there", "GB/s back"] } else { &[] };
    let mut table = Table::new(&[&COLUMNS, directions].concat());
    for line in lines {
        let m = &line.measured;
        let mut row = vec![
            line.operation.to_owned(),
            line.shape.scheme_name().to_owned(),
            human_size(line.shape.message_size),
            format!("{:.0}", m.all.requests_per_second),
            format!("{:.2}", m.all.gigabytes_per_second),
            format!("{:.1}", m.all.gigabits_per_second),
            format!("{:.0}", m.nanoseconds_per_request),
            format!("{:.2}", m.doorbells_per_request),
            format!("{:.2}", m.completions_per_request),
            format!("{:.2}", m.memcpy_gigabytes_per_second),
            format!("{:.2}", m.relative_to_memcpy),
        ];
        let each = m.there.into_iter().chain(m.back);
        row.extend(each.map(|rate| format!("{:.2}", rate.gigabytes_per_second)));
        table.row(row);
    }
    format!("{}\n\n{}", describe(arguments, place), table.text())
}

/// Describes where and how requests were sent, and how many were in flight.
pub(super) fn describe(arguments: &PerfArguments, place: &Place) -> String {
    let RequestArguments { rails, line_rate, max_msg_size, .. } = arguments.requests;
    let threads = if place.threads == 2 { "a thread for each end" } else { "one thread" };
    let in_flight = match arguments.window {
        _ if arguments.latency => "one request in flight".to_owned(),
        window if arguments.bidirectional => format!("{window} requests in flight each way"),
        window => format!("{window} requests in flight"),
    };
    let limited = |rate: NonZeroU64| format!(", {}/s a device", human_size(rate.get()));
    format!(
        "{}: {rails} rail{}{}, fragments of up to {}, {in_flight}, {threads}",
        place.name,
        if rails == 1 { "" } else { "s" },
        line_rate.map(limited).unwrap_or_default(),
        human_size(max_msg_size.into()),
    )
}

fn csv(lines: &[Line]) -> String {
    let mut text = String::from(
        "operation,scheme,message_size,rails,devices,max_msg_size,window,threads,requests,\
         requests_per_second,gigabytes_per_second,nanoseconds_per_request,doorbells_per_request,\
         completions_per_request,memcpy_gigabytes_per_second,relative_to_memcpy,\
         gigabytes_per_second_there,gigabytes_per_second_back\n",
    );
    for line in lines {
        let Line { operation, shape, threads, measured: m, .. } = line;
        let Shape { rails, devices, max_msg_size, message_size, window, .. } = shape;
        let scheme = shape.scheme_name();
        text += &format!(
            "{operation},{scheme},{message_size},{rails},{devices},{max_msg_size},{window},\
             {threads},{},{:.1},{:.4},{:.1},{:.3},{:.3},{:.4},{:.4},{},{}\n",
            m.requests,
            m.all.requests_per_second,
            m.all.gigabytes_per_second,
            m.nanoseconds_per_request,
            m.doorbells_per_request,
            m.completions_per_request,
            m.memcpy_gigabytes_per_second,
            m.relative_to_memcpy,
            of_direction(m.there),
            of_direction(m.back),
        );
    }
    text
}

/// Formats the throughput of one direction; empty if only one end sends.
fn of_direction(rate: Option<Rate>) -> String {
    rate.map(|rate| format!("{:.4}", rate.gigabytes_per_second)).unwrap_or_default()
}
