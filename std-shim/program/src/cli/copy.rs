//! `polyrail copy`.

use super::args::CopyArguments;
use super::exit::Failure;
use super::faults::Announcer;
use super::hosts::with_domains;
use super::output;
use super::print;
use super::progress::Bar;
use super::signals::interrupts;
use super::{faults, hosts, report};
use polyrail_program::job::Shape;
use polyrail_program::session::ServerAddress;
use polyrail_program::transfer::{CopyOptions, CopyProgress, CopyReport, copy_file, send_to};
use std::path::{Path, PathBuf};

pub(super) fn run(arguments: &CopyArguments) -> Result<(), Failure> {
    let result = copy(arguments);
    if arguments.json
        && let Err(failure) = &result
    {
        failure.print_json();
    }
    result
}

fn copy(arguments: &CopyArguments) -> Result<(), Failure> {
    arguments.host_devices.refuse_without(arguments.to.as_deref())?;
    arguments.token.refuse_without(arguments.to.as_deref())?;
    faults::refuse_with(arguments.to.as_deref(), &arguments.faults.fault)?;
    let options = CopyOptions {
        rails: arguments.requests.rails,
        devices: arguments.requests.devices,
        scheme: arguments.scheme.into(),
        max_msg_size: arguments.requests.max_msg_size,
        message_size: arguments.message_size,
        window: arguments.window,
        line_rate: arguments.requests.line_rate,
        faults: arguments.faults.fault.clone(),
        qp_timeout: arguments.connection.qp_timeout(arguments.to.is_some()),
        quality: arguments.host_devices.quality(),
        rail_repair: arguments.connection.rail_repair(arguments.failure.rail_failure.into()),
        timeouts: arguments.timeouts.timeouts(),
        overwrite: !arguments.no_overwrite,
        sync: arguments.sync,
    };
    let (destination, shape, report) = match &arguments.to {
        Some(address) => copy_to(arguments, &hosts::server(address, &arguments.token)?, &options)?,
        None => copy_here(arguments, &options)?,
    };
    if arguments.json {
        let source = Some(arguments.source.as_path());
        print::print_json(&report::CopyJson::new(source, &destination, shape, &report))
    } else if arguments.quiet {
        Ok(())
    } else {
        print::print(report::copy_text(shape, &report).as_bytes())
    }
}

type Copied = (PathBuf, Shape, CopyReport);

/// Copies to a file of this host, over the software NIC.
fn copy_here(arguments: &CopyArguments, options: &CopyOptions) -> Result<Copied, Failure> {
    // The command line requires a destination unless it names another host.
    let destination = arguments.destination.clone().unwrap_or_default();
    let devices = options.devices.unwrap_or(options.rails);
    if !arguments.quiet {
        hosts::note_unused(devices, options.rails);
    }
    let progress = CopyProgress { interrupted: interrupts(), ..CopyProgress::default() };
    let bar = Bar::new(arguments.quiet || arguments.json);
    let source = &arguments.source;
    let announcer = Announcer::new(&progress.faults, &progress.rails, arguments.quiet);
    let watch = || {
        bar.show(&progress);
        if let Some(news) = announcer.news() {
            bar.beside(|| output::tell(&news));
        }
    };
    let copied = copy_file(source, &destination, options, &progress, watch);
    drop(bar);
    announcer.news().inspect(|news| output::tell(news));
    let report = copied?;
    output::tell(&announcer.absent(&options.faults, "copy"));
    Ok((destination, options.shape(devices), report))
}

/// Copies to a `polyrail serve`, over the devices of this host.
fn copy_to(
    arguments: &CopyArguments,
    server: &ServerAddress,
    options: &CopyOptions,
) -> Result<Copied, Failure> {
    let devices =
        hosts::reach(server, &arguments.host_devices, &options.timeouts, arguments.quiet)?;
    let count = devices.names().len();
    if !arguments.quiet {
        hosts::note_unused(count, options.rails);
    }
    let progress = CopyProgress { interrupted: interrupts(), ..CopyProgress::default() };
    let bar = Bar::new(arguments.quiet || arguments.json);
    let source = &arguments.source;
    let name = arguments.destination.as_deref().map(Path::as_os_str);
    let announcer = Announcer::new(&progress.faults, &progress.rails, arguments.quiet);
    let watch = || {
        bar.show(&progress);
        if let Some(news) = announcer.news() {
            bar.beside(|| output::tell(&news));
        }
    };
    let sent = with_domains!(&devices, domains => {
        send_to(source, name, server.clone(), domains, options, &progress, watch)
    });
    drop(bar);
    announcer.news().inspect(|news| output::tell(news));
    let report = sent?;
    let name = name.or(source.file_name()).unwrap_or_default();
    Ok((PathBuf::from(name), options.shape(count), report))
}
