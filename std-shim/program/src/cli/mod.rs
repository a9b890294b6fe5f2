//! The command line.
//!
//! `args` defines the arguments. `copy`, `serve`, `perf`, `latency`, `timeline` and `devices` run
//! the commands, `rdma_devices` a part of the last; `man` prints man pages; `hosts` opens devices,
//! `faults` and `rails` report faults and rail events, `metrics` exports metrics, `pci_links` reports
//! links of devices, `places` reads what a copy is of, `progress` shows bars, `signals` handles
//! interrupts. `report`, `line`, `lines`, `intervals`, `setting`,
//! `table`, `plot`, `latency_plot`, `timeline_plot` and `picture` format results, `output` and
//! `print` write them. `exit` has failures and exit codes.

mod args;
mod copy;
mod devices;
mod exit;
mod faults;
mod hosts;
mod intervals;
mod latency;
mod latency_plot;
mod line;
mod lines;
mod man;
mod metrics;
mod output;
mod pci_links;
mod perf;
mod picture;
mod places;
mod plot;
mod print;
mod progress;
mod rails;
#[cfg(feature = "verbs")]
mod rdma_devices;
mod report;
mod serve;
mod setting;
mod signals;
mod table;
mod timeline;
mod timeline_plot;

use args::{Arguments, Command};
use clap::CommandFactory;
use std::process::ExitCode;

/// Parses the command line and runs the command.
pub(crate) fn main() -> ExitCode {
    signals::make_file_limits_errors();
    let arguments = args::parse();
    let result = match &arguments.command {
        Command::Copy(arguments) => copy::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Perf(arguments) if arguments.is_over_time() => timeline::run(arguments),
        Command::Perf(arguments) if arguments.latency => latency::run(arguments),
        Command::Perf(arguments) => perf::run(arguments),
        Command::Devices(arguments) => devices::run(arguments),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "polyrail", &mut script);
            print::print(&script)
        }
        Command::Man { command } => man::run(command.as_deref()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
