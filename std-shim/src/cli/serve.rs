//! `polyrail serve`.

use super::args::ServeArguments;
use super::exit::Failure;
use super::progress::{Bar, interrupts};
use super::report::plural;
use super::{hosts, perf, report};
use polyrail::backend::Domain;
use polyrail::perf::Measured;
use polyrail::serve::{ServeError, ServeOptions, Served, Server, Visitor};
use polyrail::size::human_size;
use polyrail::transfer::{Progress, Received};
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) fn run(arguments: &ServeArguments) -> Result<(), Failure> {
    let result = serve(arguments);
    if arguments.json
        && let Err(failure) = &result
    {
        failure.print_json();
    }
    result
}

fn serve(arguments: &ServeArguments) -> Result<(), Failure> {
    let domains = hosts::open(&arguments.devices)?;
    let server = Server::bind(&hosts::with_port(&arguments.listen))?;
    let interrupted = interrupts();
    if !arguments.quiet {
        let names: Vec<&str> = domains.iter().map(Domain::device_name).collect();
        let address = server.local_addr()?;
        super::tell(&format!("polyrail: listening at {address}, on {}\n", names.join(", ")));
    }
    // An interrupt is how it is meant to end, unless something was under way, or was to come.
    while let Some(visitor) = server.accept(&interrupted)? {
        let address = visitor.address;
        let progress = Progress { interrupted: Arc::clone(&interrupted), ..Progress::default() };
        match attend(arguments, visitor, &domains, &progress) {
            Ok(Served::Copy(received)) => show_copy(arguments, &received)?,
            Ok(Served::Perf(measured)) => show_perf(arguments, address, &measured)?,
            Err(error) if arguments.once => return Err(error.into()),
            Err(_) if interrupted.load(Ordering::Relaxed) => return Err(Failure::interrupted()),
            Err(error) => Failure::from(error).note(&format!("from {address}")),
        }
        if arguments.once {
            return Ok(());
        }
    }
    if arguments.once { Err(Failure::interrupted()) } else { Ok(()) }
}

fn attend<D: Domain + Sync>(
    arguments: &ServeArguments,
    visitor: Visitor,
    domains: &[D],
    progress: &Progress,
) -> Result<Served, ServeError> {
    let options = ServeOptions {
        destination: arguments.destination.clone(),
        max_memory: arguments.max_memory,
        qp_timeout: arguments.connection.qp_timeout(true),
        stall_timeout: arguments.stall_timeout,
        idle_timeout: arguments.idle_timeout,
        sync: arguments.sync,
    };
    let bar = Bar::new(arguments.quiet || arguments.json);
    visitor.serve(domains, &options, progress, || bar.show(progress))
}

fn show_copy(arguments: &ServeArguments, received: &Received) -> Result<(), Failure> {
    let Received { path, scheme, rails, devices, max_msg_size, message_size, window, report } =
        received;
    let shape = report::Shape {
        scheme: *scheme,
        rails: *rails,
        devices: *devices,
        max_msg_size: *max_msg_size,
        message_size: *message_size,
        window: *window,
    };
    if arguments.json {
        super::print_json(&report::CopyJson::new(None, path, shape, report))
    } else if arguments.quiet {
        Ok(())
    } else {
        let text = report::copy_text(shape, report);
        super::print(format!("{}: {text}\n", path.display()).as_bytes())
    }
}

/// A measurement that was served, as JSON.
#[derive(Debug, Serialize)]
struct PerfJson {
    operation: &'static str,
    scheme: &'static str,
    message_size: u32,
    rails: usize,
    devices: usize,
    max_msg_size: u32,
    window: u32,
    requests: u64,
    seconds: f64,
}

fn show_perf(
    arguments: &ServeArguments,
    address: SocketAddr,
    measured: &Measured,
) -> Result<(), Failure> {
    if arguments.json {
        let Measured { workload, rails, devices, max_msg_size, requests, seconds, .. } = *measured;
        super::print_json(&PerfJson {
            operation: workload.operation.name(),
            scheme: perf::scheme_name(workload.operation, measured.scheme, rails),
            message_size: workload.message_size,
            rails,
            devices,
            max_msg_size,
            window: workload.window,
            requests,
            seconds,
        })
    } else if arguments.quiet {
        Ok(())
    } else {
        super::print(perf_text(address, measured).as_bytes())
    }
}

/// A measurement that was served, as a line of text.
fn perf_text(address: SocketAddr, measured: &Measured) -> String {
    let Measured { workload, scheme, rails, devices, requests, seconds, .. } = *measured;
    let scheme = match perf::scheme_name(workload.operation, scheme, rails) {
        "-" => String::new(),
        scheme => format!(" {scheme}"),
    };
    let arrived = if workload.operation.is_received() { ", all arrived" } else { "" };
    format!(
        "{address} measured {}{scheme} of {} over {rails} rail{} on {devices} device{}: {requests} \
         requests{arrived}, {seconds:.2} s in all\n",
        workload.operation.name(),
        human_size(workload.message_size.into()),
        plural(rails),
        plural(devices),
    )
}
