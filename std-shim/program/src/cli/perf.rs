//! `polyrail perf`.

use super::args::PerfArguments;
use super::exit::Failure;
use super::line::Line;
use super::output;
use super::print;
use super::signals::interrupts;
use super::table::Table;
use super::{hosts, plot};
use polyrail::backend::Domain;
use polyrail::virtual_qp::Scheme;
use polyrail_program::job::Shape;
use polyrail_program::perf::{
    Limit, Measurement, Operation, PerfConfig, PerfError, Threads, measure, measure_to,
};
use polyrail_program::size::human_size;
use polyrail_program::transfer::{check_replaceable, replace_file};

/// Where requests go, and what measures them.
struct Bench {
    /// A description for people.
    place: String,
    /// Devices on either side.
    devices: usize,
    threads: u8,
    measure: Box<Measure>,
}

type Measure = dyn Fn(&PerfConfig) -> Result<Measurement, PerfError>;

pub(super) fn run(arguments: &PerfArguments) -> Result<(), Failure> {
    let bench = match &arguments.to {
        Some(address) => to_host(arguments, hosts::with_port(address))?,
        None if arguments.host_devices.are_named() => {
            return Err(Failure::usage("--device and --gid-index go with --to"));
        }
        None => software(arguments),
    };
    // Fail now rather than after the measurements.
    if let Some(path) = &arguments.plot {
        check_replaceable(path)?;
    }
    let streamed = !arguments.json && !arguments.csv;
    let mut lines = Vec::new();
    for (operation, scheme) in kinds(arguments) {
        for &message_size in &arguments.sizes.0 {
            if streamed {
                progress(&lines, operation, message_size);
            }
            lines.push(measure_line(arguments, &bench, operation, scheme, message_size)?);
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
        print::print(text(arguments, &bench, &lines).as_bytes())?;
    }
    match &arguments.plot {
        None => Ok(()),
        Some(path) => Ok(replace_file(path, plot::svg(&bench.place, &lines)?.as_bytes())?),
    }
}

/// Measures within this process, over the software NIC.
fn software(arguments: &PerfArguments) -> Bench {
    let devices = arguments.requests.devices.unwrap_or(arguments.requests.rails);
    hosts::note_unused(devices, arguments.requests.rails);
    let place = "the software NIC".to_owned();
    Bench { place, devices, threads: arguments.threads, measure: Box::new(measure) }
}

/// Measures to a `polyrail serve`, over real NICs.
fn to_host(arguments: &PerfArguments, address: String) -> Result<Bench, Failure> {
    let domains = hosts::open(&arguments.host_devices)?;
    hosts::note_unused(domains.len(), arguments.requests.rails);
    let used = domains.len().min(arguments.requests.rails);
    let names: Vec<&str> = domains[..used].iter().map(Domain::device_name).collect();
    let place = format!("{}, to {address}", names.join(", "));
    let interrupted = interrupts();
    let measure = move |config: &PerfConfig| measure_to(config, &address, &domains, &interrupted);
    Ok(Bench { place, devices: used, threads: 2, measure: Box::new(measure) })
}

/// Returns the operations, each with the schemes that make a difference to it.
fn kinds(arguments: &PerfArguments) -> Vec<(Operation, Scheme)> {
    let mut kinds = Vec::new();
    for operation in arguments.operations.iter().map(|&name| Operation::from(name)) {
        let schemes = arguments.schemes.iter().map(|&name| Scheme::from(name));
        let count =
            if operation.has_scheme() && arguments.requests.rails > 1 { usize::MAX } else { 1 };
        kinds.extend(schemes.take(count).map(|scheme| (operation, scheme)));
    }
    kinds
}

fn measure_line(
    arguments: &PerfArguments,
    bench: &Bench,
    operation: Operation,
    scheme: Scheme,
    message_size: u32,
) -> Result<Line, Failure> {
    let devices = bench.devices.min(arguments.requests.rails);
    let config = PerfConfig {
        operation,
        scheme,
        rails: arguments.requests.rails,
        devices,
        max_msg_size: arguments.requests.max_msg_size,
        message_size,
        window: arguments.requests.window as u32,
        threads: if bench.threads == 2 { Threads::Two } else { Threads::One },
        limit: arguments.count.map_or(Limit::Time(arguments.seconds), Limit::Count),
        qp_timeout: arguments.connection.qp_timeout(arguments.to.is_some()),
        stall_timeout: arguments.connection.stall_timeout,
        answer_timeout: arguments.answer_timeout,
    };
    let measured = (bench.measure)(&config)?;
    Ok(Line {
        operation: operation.name(),
        shape: config.shape(),
        threads: bench.threads,
        measured,
    })
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

fn text(arguments: &PerfArguments, bench: &Bench, lines: &[Line]) -> String {
    let mut table = Table::new(&[
        "operation",
        "scheme",
        "size",
        "msgs/s",
        "GB/s",
        "ns/msg",
        "bells/msg",
        "compl/msg",
        "memcpy GB/s",
        "of memcpy",
    ]);
    for line in lines {
        let m = &line.measured;
        table.row(vec![
            line.operation.to_owned(),
            line.shape.scheme_name().to_owned(),
            human_size(line.shape.message_size),
            format!("{:.0}", m.requests_per_second),
            format!("{:.2}", m.gigabytes_per_second),
            format!("{:.0}", m.nanoseconds_per_request),
            format!("{:.2}", m.doorbells_per_request),
            format!("{:.2}", m.completions_per_request),
            format!("{:.2}", m.memcpy_gigabytes_per_second),
            format!("{:.2}", m.relative_to_memcpy),
        ]);
    }
    let threads = if bench.threads == 2 { "a thread for each end" } else { "one thread" };
    format!(
        "{}: {} rails, fragments of up to {}, {} requests in flight, {threads}\n\n{}",
        bench.place,
        arguments.requests.rails,
        human_size(arguments.requests.max_msg_size.into()),
        arguments.requests.window,
        table.text(),
    )
}

fn csv(lines: &[Line]) -> String {
    let mut text = String::from(
        "operation,scheme,message_size,rails,devices,max_msg_size,window,threads,requests,\
         requests_per_second,gigabytes_per_second,nanoseconds_per_request,doorbells_per_request,\
         completions_per_request,memcpy_gigabytes_per_second,relative_to_memcpy\n",
    );
    for line in lines {
        let Line { operation, shape, threads, measured: m } = line;
        let Shape { rails, devices, max_msg_size, message_size, window, .. } = shape;
        let scheme = shape.scheme_name();
        text += &format!(
            "{operation},{scheme},{message_size},{rails},{devices},{max_msg_size},{window},\
             {threads},{},{:.1},{:.4},{:.1},{:.3},{:.3},{:.4},{:.4}\n",
            m.requests,
            m.requests_per_second,
            m.gigabytes_per_second,
            m.nanoseconds_per_request,
            m.doorbells_per_request,
            m.completions_per_request,
            m.memcpy_gigabytes_per_second,
            m.relative_to_memcpy,
        );
    }
    text
}
