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
use clap::CommandFactory;
use exit::Failure;
use polyrail::printable;
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs what the command line asks for.
pub(crate) fn main() -> ExitCode {
    signals::make_file_limits_errors();
    let arguments = args::parse();
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

/// Prints a value as JSON, with a line end. What a terminal would obey is escaped; it means the same.
fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text =
        serde_json::to_string_pretty(value).map_err(|error| Failure::stdout(&error.into()))?;
    text.push('\n');
    print(json_escaped(&text).as_bytes())
}

/// JSON without what a terminal would obey. Outside of strings that is line ends only, which stay.
fn json_escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if printable::is_printable(c) || c == '\n' {
            escaped.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                escaped += &format!("\\u{unit:04x}");
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_means_what_it_meant() {
        let value = serde_json::json!({ "name \u{9b}": ["a\u{202e}b\u{1b}\n", "\u{e0041} 漢字"] });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let escaped = json_escaped(&text);
        assert!(escaped.chars().all(|c| c == '\n' || printable::is_printable(c)), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
