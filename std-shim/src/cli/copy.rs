//! `polyrail copy`.

use super::args::CopyArguments;
use super::exit::Failure;
use super::progress::Bar;
use super::report;
use polyrail::transfer::{CopyOptions, Progress, copy_file};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(super) fn run(arguments: &CopyArguments) -> Result<(), Failure> {
    let result = copy(arguments);
    if arguments.json
        && let Err(failure) = &result
    {
        failure.print_json()?;
    }
    result
}

fn copy(arguments: &CopyArguments) -> Result<(), Failure> {
    let options = CopyOptions {
        rails: arguments.rails,
        devices: arguments.devices,
        scheme: arguments.scheme.into(),
        max_msg_size: arguments.max_msg_size,
        message_size: arguments.message_size,
        window: arguments.window,
        faults: arguments.fault.clone(),
        stall_timeout: arguments.stall_timeout,
        sync: arguments.sync,
    };
    let progress = Progress { interrupted: interrupts(), ..Progress::default() };
    let bar = Bar::new(arguments.quiet || arguments.json);
    let copied = copy_file(&arguments.source, &arguments.destination, &options, &progress, || {
        bar.show(&progress)
    });
    drop(bar);
    let report = copied?;
    if arguments.json {
        super::print_json(&report::CopyJson::new(arguments, &options, &report))
    } else if arguments.quiet {
        Ok(())
    } else {
        super::print(report::copy_text(&options, &report).as_bytes())
    }
}

/// A flag that SIGINT and SIGTERM set, so that the temporary file is removed.
fn interrupts() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one ends the process at once. Without handlers, as the first one would.
        _ = signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag));
        _ = signal_hook::flag::register(signal, Arc::clone(&flag));
    }
    flag
}
