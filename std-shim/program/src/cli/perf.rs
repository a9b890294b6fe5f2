//! `polyrail perf`: a table of throughput.

use super::args::{OperationName, PerfArguments, RequestArguments, SchemeName};
use super::exit::Failure;
use super::faults::refuse_with;
use super::hosts::with_domains;
use super::line::Line;
use super::lines::{Cells, Measure, Printer, measure_lines};
use super::report::plural;
use super::signals::interrupts;
use super::table::StreamedTable;
use super::{hosts, plot};
use polyrail::cpus::pin_thread;
use polyrail::endpoint::RailWeights;
use polyrail::virtual_qp::Scheme;
use polyrail_program::devices::OpenedDevices;
use polyrail_program::job::Shape;
use polyrail_program::perf::{
    ATOMIC_SIZE, Limit, Measurement, Operation, PerfConfig, PerfProgress, Rate, Threads, measure,
    measure_to,
};
use polyrail_program::session::{PeerTimeouts, ServerAddress};
use polyrail_program::size::human_size;
use polyrail_program::transfer::{check_replaceable, replace_file};
use std::num::NonZeroU64;
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

pub(super) fn run(arguments: &PerfArguments) -> Result<(), Failure> {
    check(arguments)?;
    let (place, measure) = bench(arguments)?;
    let kinds = kinds(arguments, &OPERATIONS);
    let configs: Vec<PerfConfig> = kinds
        .iter()
        .flat_map(|&(operation, scheme)| {
            let sizes = sizes(arguments, operation, doubled).into_iter();
            let place = &place;
            sizes.map(move |size| config(arguments, place, operation, scheme, size, TIME))
        })
        .collect();
    let about = describe(arguments, &place);
    let printer = Printer::new(arguments, &about, table(arguments, &configs), CSV_HEAD);
    let interrupted = interrupts();
    let configs = configs.into_iter();
    let lines = measure_lines(arguments, place.threads, configs, &*measure, &interrupted, printer)?;
    if let Some(path) = arguments.plot.as_ref().filter(|_| !lines.is_empty()) {
        replace_file(path, plot::svg(&place.name, &lines, arguments.to.is_none())?.as_bytes())?;
    }
    if interrupted.load(Ordering::Relaxed) { Err(Failure::interrupted()) } else { Ok(()) }
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
    let measure = move |config: &PerfConfig, progress: &PerfProgress| with_domains!(&devices, domains => measure_to(config, server.clone(), domains, progress));
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
    let rails = arguments.requests.rails;
    let devices = hosts::reach(server, &arguments.host_devices, rails, &timeouts, false)?;
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

/// Returns the sizes of requests to measure; `default` are those of operations other than atomics.
pub(super) fn sizes(
    arguments: &PerfArguments,
    operation: Operation,
    default: impl FnOnce() -> Vec<u32>,
) -> Vec<u32> {
    match arguments.sizes() {
        Some(sizes) => sizes,
        None if operation.is_atomic() => vec![ATOMIC_SIZE],
        None => default(),
    }
}

/// Returns the default sizes of requests.
fn doubled() -> Vec<u32> {
    let doubled = std::iter::successors(Some(SMALLEST), |size| Some(2 * size));
    doubled.take_while(|size| *size <= LARGEST).collect()
}

/// Returns the operations to measure, each with the schemes that make a difference to it. If rails
/// are to be weighed by measured rates, the default has no messages, because these do not reroute.
pub(super) fn kinds(
    arguments: &PerfArguments,
    default: &[OperationName],
) -> Vec<(Operation, Scheme)> {
    let mut kinds = Vec::new();
    let is_measured = arguments.connection.rail_weights() == RailWeights::Measured;
    let is_left_out = |name: &OperationName| is_measured && *name == OperationName::P2p;
    let default: Vec<_> = default.iter().copied().filter(|name| !is_left_out(name)).collect();
    for operation in chosen(&arguments.operations, &default).into_iter().map(Operation::from) {
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
        rail_weights: arguments.connection.rail_weights(),
        rail_repair: arguments.connection.rail_repair(arguments.failure.rail_failure.into()),
        answer_timeout: arguments.answer_timeout,
    }
}

/// Returns the table of throughput.
fn table(arguments: &PerfArguments, configs: &[PerfConfig]) -> StreamedTable {
    let table = named(configs)
        .numbers("msgs/s", 9)
        .numbers("GB/s", 6)
        .numbers("Gbit/s", 7)
        .numbers("ns/msg", 9)
        .numbers("bells/msg", 0)
        .numbers("compl/msg", 0)
        .numbers("CPU %", 0)
        .numbers("memcpy GB/s", 0)
        .numbers("of memcpy", 0);
    if arguments.bidirectional {
        table.numbers("GB/s there", 0).numbers("GB/s back", 0)
    } else {
        table
    }
}

/// Returns a table that begins with the operation, the scheme and the size of these configurations.
pub(super) fn named(configs: &[PerfConfig]) -> StreamedTable {
    let sizes = configs.iter().map(|config| human_size(config.message_size.into()).len());
    StreamedTable::default()
        .words("operation", configs.iter().map(|config| config.operation.name()))
        .words("scheme", configs.iter().map(|config| config.shape().scheme_name()))
        .numbers("size", sizes.max().unwrap_or(0))
}

/// Returns the cells under [`named`].
pub(super) fn names<T>(line: &Line<T>) -> [String; 3] {
    let scheme = line.shape.scheme_name().to_owned();
    [line.operation.to_owned(), scheme, human_size(line.shape.message_size)]
}

impl Cells for Line {
    fn cells(&self) -> Vec<String> {
        let m = &self.measured;
        let numbers = [
            format!("{:.0}", m.all.requests_per_second),
            format!("{:.2}", m.all.gigabytes_per_second),
            format!("{:.1}", m.all.gigabits_per_second),
            format!("{:.0}", m.nanoseconds_per_request),
            format!("{:.2}", m.doorbells_per_request),
            format!("{:.2}", m.completions_per_request),
            format!("{:.0}", m.cpu_percent),
            format!("{:.2}", m.memcpy_gigabytes_per_second),
            format!("{:.2}", m.relative_to_memcpy),
        ];
        let directions = m.there.into_iter().chain(m.back);
        let directions = directions.map(|rate| format!("{:.2}", rate.gigabytes_per_second));
        names(self).into_iter().chain(numbers).chain(directions).collect()
    }

    fn csv(&self) -> String {
        let Self { operation, shape, threads, measured: m, .. } = self;
        let Shape { rails, devices, max_msg_size, message_size, window, .. } = shape;
        let scheme = shape.scheme_name();
        format!(
            "{operation},{scheme},{message_size},{rails},{devices},{max_msg_size},{window},\
             {threads},{},{:.1},{:.4},{:.1},{:.3},{:.3},{:.1},{:.4},{:.4},{},{}\n",
            m.requests,
            m.all.requests_per_second,
            m.all.gigabytes_per_second,
            m.nanoseconds_per_request,
            m.doorbells_per_request,
            m.completions_per_request,
            m.cpu_percent,
            m.memcpy_gigabytes_per_second,
            m.relative_to_memcpy,
            of_direction(m.there),
            of_direction(m.back),
        )
    }
}

const CSV_HEAD: &str = "operation,scheme,message_size,rails,devices,max_msg_size,window,threads,\
    requests,requests_per_second,gigabytes_per_second,nanoseconds_per_request,\
    doorbells_per_request,completions_per_request,cpu_percent,memcpy_gigabytes_per_second,\
    relative_to_memcpy,gigabytes_per_second_there,gigabytes_per_second_back\n";

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
        plural(rails),
        line_rate.map(limited).unwrap_or_default(),
        human_size(max_msg_size.into()),
    )
}

/// Formats the throughput of one direction; empty if only one end sends.
fn of_direction(rate: Option<Rate>) -> String {
    rate.map(|rate| format!("{:.4}", rate.gigabytes_per_second)).unwrap_or_default()
}
