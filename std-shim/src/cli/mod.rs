//! The command line: `args` says what can be asked for, `copy`, `serve`, `perf` and `devices` do
//! it, `hosts` is what two hosts need, `signals` the wish to stop;
//! `report`, `table` and `plot` show what came of it, `exit` says how it went.

mod args;
mod copy;
mod devices;
mod exit;
mod hosts;
mod perf;
mod plot;
mod progress;
mod report;
mod serve;
mod signals;
mod table;

use args::{Arguments, Command};
use clap::{CommandFactory, Parser};
use exit::Failure;
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs what the command line asks for.
pub(crate) fn main() -> ExitCode {
    signals::make_file_limits_errors();
    let arguments = Arguments::parse();
    let result = match &arguments.command {
        Command::Copy(arguments) => copy::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Perf(arguments) => perf::run(arguments),
        Command::Devices(arguments) => devices::run(arguments),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "polyrail", &mut script);
            print(&script)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Writes to stdout. That nobody reads on, as behind `head`, is no failure.
fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::stdout(&error)),
        _ => Ok(()),
    }
}

/// Writes to stderr. If that is closed or full there is nobody to tell, and no reason to fail.
fn tell(text: &str) {
    _ = io::stderr().write_all(text.as_bytes());
}

/// Prints a value as JSON, with a line end.
fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text =
        serde_json::to_string_pretty(value).map_err(|error| Failure::stdout(&error.into()))?;
    text.push('\n');
    print(text.as_bytes())
}
