//! What can be asked for on the command line: `group` has what several commands take, `value` the values,
//! `help` the examples and exit codes.

mod group;
mod help;
mod value;

pub(super) use group::{
    ConnectionArguments, DeviceArguments, FailureArguments, FaultArguments, PatienceArguments,
    RequestArguments, TokenArguments,
};
pub(super) use value::{OperationName, SchemeName, Sizes};

use super::output;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use help::{COPY_HELP, DEVICES_HELP, EXAMPLES, PERF_HELP, SERVE_HELP};
use polyrail::cpus::CpuList;
use polyrail::printable;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use value::{memory, message, seconds, sizes};

/// Returns what the command line asks for. If that makes no sense, or is the help, prints it and exits.
pub(super) fn parse() -> Arguments {
    let parsed = command()
        .try_get_matches()
        .and_then(|mut matches| Arguments::from_arg_matches_mut(&mut matches));
    parsed.unwrap_or_else(|error| refuse(error))
}

/// The definition. No option is a number, so a negative number is always a value.
fn command() -> clap::Command {
    Arguments::command().mut_subcommands(|command| {
        command.mut_args(|argument| {
            let negative = argument.get_action().takes_values() && !argument.is_positional();
            argument.allow_negative_numbers(negative)
        })
    })
}

fn refuse(mut error: clap::Error) -> ! {
    // Behind an option, as in --message-size -1M, the tip to write "-- -1" is wrong.
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg)
        && argument.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit())
    {
        error.remove(ContextKind::Suggested);
    }
    let printable = |text: OsString| text.to_string_lossy().chars().all(printable::is_printable);
    if std::env::args_os().all(printable) {
        error.exit();
    }
    // The message repeats the arguments, among its own colours; plain text has no colours.
    let said = error.to_string();
    let lines = said.lines().map(printable::escaped);
    output::tell(&(lines.collect::<Vec<_>>().join("\n") + "\n"));
    std::process::exit(error.exit_code());
}

/// One virtual RDMA queue pair made of many physical ones, tried out on a NIC in software.
#[derive(Debug, Parser)]
#[command(name = "polyrail", version, about, after_help = EXAMPLES, max_term_width = 100)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Copy a file through a virtual queue pair, and report what each rail did.
    Copy(CopyArguments),
    /// Serve other hosts, over real NICs: the files of `polyrail copy --to`, and `polyrail perf --to`.
    Serve(ServeArguments),
    /// Measure requests of many sizes, beside plain memcpy, here or to another host.
    Perf(PerfArguments),
    /// List the RDMA devices of this machine, or print what is missing.
    Devices(DevicesArguments),
    /// Print a script that completes this program's arguments in a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
#[command(after_help = COPY_HELP)]
pub(super) struct CopyArguments {
    /// The file to read.
    #[arg(value_name = "SRC", value_hint = clap::ValueHint::FilePath)]
    pub(super) source: PathBuf,
    /// The file to write; replaced if it exists. With --to, its name at the receiver.
    #[arg(value_name = "DST", value_hint = clap::ValueHint::FilePath, required_unless_present = "to")]
    pub(super) destination: Option<PathBuf>,
    /// Send to a `polyrail serve` there, over real NICs; the port is 7471 unless given.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["devices", "line_rate", "sync"])]
    pub(super) to: Option<String>,
    #[command(flatten)]
    pub(super) host_devices: DeviceArguments,
    #[command(flatten)]
    pub(super) token: TokenArguments,
    #[command(flatten)]
    pub(super) requests: RequestArguments,
    /// How the receiver learns that a request is complete.
    #[arg(long, value_enum, default_value_t = SchemeName::Spray)]
    pub(super) scheme: SchemeName,
    /// Size of one request in bytes, 1 to 1G.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = message)]
    pub(super) message_size: u64,
    #[command(flatten)]
    pub(super) faults: FaultArguments,
    #[command(flatten)]
    pub(super) failure: FailureArguments,
    #[command(flatten)]
    pub(super) connection: ConnectionArguments,
    #[command(flatten)]
    pub(super) patience: PatienceArguments,
    /// Fail if there is a file of DST's name.
    #[arg(long)]
    pub(super) no_overwrite: bool,
    /// Wait until the copy has reached the disk.
    #[arg(long)]
    pub(super) sync: bool,
    /// Report as JSON, errors too.
    #[arg(long)]
    pub(super) json: bool,
    /// No progress bar, no table and nothing about faults. (A progress bar appears on terminals only.)
    #[arg(long, short)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = SERVE_HELP)]
pub(super) struct ServeArguments {
    /// A directory for the files, or the file that each one becomes [default: accept no files].
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    pub(super) destination: Option<PathBuf>,
    #[command(flatten)]
    pub(super) devices: DeviceArguments,
    #[command(flatten)]
    pub(super) token: TokenArguments,
    /// Where peers connect; with port 0 the system chooses one.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "0.0.0.0:7471")]
    pub(super) listen: String,
    /// Peers to serve at a time, each with --max-memory; others wait a little, then are told to come
    /// back later. With 1, no measurement disturbs another.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(super) peers: u8,
    /// End after one peer, and fail if its file or its measurement failed. A peer that connects and asks
    /// for nothing does not count.
    #[arg(long, conflicts_with = "peers")]
    pub(super) once: bool,
    /// Refuse files whose names are taken.
    #[arg(long)]
    pub(super) no_overwrite: bool,
    /// Refuse files that are longer [default: take all].
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(super) max_file_size: Option<u64>,
    /// Memory that a peer may use here: its window times its message size.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = memory)]
    pub(super) max_memory: u64,
    #[command(flatten)]
    pub(super) connection: ConnectionArguments,
    #[command(flatten)]
    pub(super) patience: PatienceArguments,
    /// Wait until each copy has reached the disk.
    #[arg(long)]
    pub(super) sync: bool,
    /// Report as JSON, one value for each file or measurement.
    #[arg(long)]
    pub(super) json: bool,
    /// Print only errors.
    #[arg(long, short)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = PERF_HELP)]
pub(super) struct PerfArguments {
    /// Measure to a `polyrail serve` there, over real NICs; the port is 7471 unless given.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["devices", "line_rate", "threads"])]
    pub(super) to: Option<String>,
    #[command(flatten)]
    pub(super) host_devices: DeviceArguments,
    #[command(flatten)]
    pub(super) token: TokenArguments,
    /// Request sizes in bytes: a list, or a range of powers of two such as 4K..1M
    /// [default: 4K..4M; over time 1M; latency 8].
    #[arg(long, value_name = "SIZES", value_parser = sizes)]
    pub(super) sizes: Option<Sizes>,
    /// What to measure [default: all; over time write-imm; latency those that the receiver notices].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) operations: Vec<OperationName>,
    /// Schemes to measure; they differ for write-imm only [default: both; over time spray].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) schemes: Vec<SchemeName>,
    /// Measure half round trips instead of throughput: each request is answered by one of the same size before the
    /// next. For operations that the receiver notices: write-imm, send and p2p.
    #[arg(long, conflicts_with_all = ["timeline", "fault", "plot"])]
    pub(super) latency: bool,
    /// Measure over time: one operation, scheme and size, in one run without memcpy. Shows goodput from
    /// moment to moment.
    #[arg(long)]
    timeline: bool,
    #[command(flatten)]
    pub(super) faults: FaultArguments,
    #[command(flatten)]
    pub(super) requests: RequestArguments,
    /// Threads: one that drives both ends, or one for each end.
    #[arg(long, value_name = "1|2", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(super) threads: u8,
    /// Seconds to measure each line for [default: 0.2; over time 3].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) seconds: Option<Duration>,
    /// Requests to measure for each line, or round trips, instead of a time.
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    #[command(flatten)]
    pub(super) failure: FailureArguments,
    #[command(flatten)]
    pub(super) connection: ConnectionArguments,
    /// Seconds to wait for the other host to connect, and for each answer.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) answer_timeout: Duration,
    /// Processors that measure, such as 0-3,8, and no others; `polyrail devices --verbose` shows which are near a
    /// NIC [default: all].
    #[arg(long, value_name = "LIST")]
    pub(super) cpus: Option<CpuList>,
    /// Print JSON, with the machine and every option.
    #[arg(long, conflicts_with = "csv")]
    pub(super) json: bool,
    /// Print comma separated values.
    #[arg(long)]
    pub(super) csv: bool,
    /// Also draw the throughput into this file, as SVG; it is replaced at the end. Over time: goodput of all
    /// rails, and of each, with marks where faults began and ended, and where rails failed and returned.
    #[arg(long, value_name = "FILE.svg", value_hint = clap::ValueHint::FilePath)]
    pub(super) plot: Option<PathBuf>,
}

impl PerfArguments {
    /// Returns whether to measure over time.
    pub(super) fn is_over_time(&self) -> bool {
        self.timeline || !self.faults.fault.is_empty()
    }
}

#[derive(Debug, Args)]
#[command(after_help = DEVICES_HELP)]
pub(super) struct DevicesArguments {
    /// Also where each device is in the machine: PCI, NUMA node, processors, link, firmware.
    #[arg(long, short)]
    pub(super) verbose: bool,
    /// Print JSON, with everything that --verbose shows.
    #[arg(long)]
    pub(super) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }
}
