//! The command line: `args` defines it, `copy`, `serve`, `perf`, `latency`, `timeline` and `devices` do the work, `hosts`
//! is what two hosts need, `faults` tells of faults on request, `signals` handles interrupts; `report`, `line`,
//! `table`, `plot` and `timeline_plot` (with `picture`) show the results, `output` and `print` write them,
//! `exit` has failures and exit codes.

mod args;
mod copy;
mod devices;
mod exit;
mod faults;
mod hosts;
mod latency;
mod line;
mod output;
mod perf;
mod picture;
mod plot;
mod print;
mod progress;
mod rails;
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

/// Runs what the command line asks for.
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
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
