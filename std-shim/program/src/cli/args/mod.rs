//! The arguments of the command line. `perf` has the arguments of that command, `group` those that
//! several commands share; `value` parses values. The text of `--help` that is not the doc of an
//! argument is in `heading` and `help`.

mod group;
mod heading;
mod help;
mod perf;
mod value;

pub(super) use group::{
    ConnectionArguments, DeviceArguments, FailureArguments, FaultArguments, RequestArguments,
    TimeoutArguments, TokenArguments,
};
pub(super) use perf::PerfArguments;
pub(super) use value::{OperationName, SchemeName};

use super::output;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use heading::{FILES, OUTPUT, PLACE, REQUESTS};
use help::{COPY_HELP, DEVICES_HELP, EXAMPLES, SERVE_HELP};
use polyrail::metrics::Target;
use polyrail::printable;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use value::{memory, message, window};

/// Parses the command line. Exits after printing help, or after printing an error if the command
/// line is invalid.
pub(super) fn parse() -> Arguments {
    let parsed = definition()
        .try_get_matches()
        .and_then(|mut matches| Arguments::from_arg_matches_mut(&mut matches));
    parsed.unwrap_or_else(|error| refuse(error))
}

/// Returns the definition of the command line. No option is named by a number, so a negative number
/// is always a value.
pub(super) fn definition() -> clap::Command {
    Arguments::command().mut_subcommands(|command| {
        command.mut_args(|argument| {
            let negative = argument.get_action().takes_values() && !argument.is_positional();
            argument.allow_negative_numbers(negative)
        })
    })
}

fn refuse(mut error: clap::Error) -> ! {
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg)
    {
        let command = std::env::args_os().nth(1).unwrap_or_default();
        if let Some(tip) = tip(&command, argument) {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        } else if argument.starts_with('-') && !argument.starts_with("--") {
            // clap suggests "-- -1" for "-1", which is wrong for the value of an option,
            // --message-size -1M, and confusing for an option of another program.
            error.remove(ContextKind::Suggested);
        }
    }
    let printable = |text: OsString| text.to_string_lossy().chars().all(printable::is_printable);
    if std::env::args_os().all(printable) {
        error.exit();
    }
    // The message quotes the arguments. Escaping its coloured form would escape the colours, too.
    let message = error.to_string();
    let lines = message.lines().map(printable::escaped);
    output::tell(&(lines.collect::<Vec<_>>().join("\n") + "\n"));
    std::process::exit(error.exit_code());
}

/// Returns what to write instead of an argument that `scp` or perftest have.
fn tip(command: &OsStr, argument: &str) -> Option<&'static str> {
    match argument {
        "-r" | "-R" if command == "copy" => Some("directories need no -r"),
        _ if command == "perf" && !argument.starts_with('-') => Some("name the server with --to"),
        _ => None,
    }
}

/// Copies files and measures requests over one virtual RDMA queue pair made of many physical ones:
/// on RDMA devices, over TCP, or on a NIC in software.
#[derive(Debug, Parser)]
#[command(name = "polyrail", version, about, after_help = EXAMPLES, max_term_width = 100)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Copy files and directories over a virtual queue pair, and report what each rail carried.
    Copy(CopyArguments),
    /// Serve `polyrail copy --to` and `polyrail perf --to` of other hosts, over RDMA devices or
    /// TCP.
    Serve(ServeArguments),
    /// Measure throughput or latency of requests, within this process or to another host, beside a
    /// plain memcpy.
    Perf(PerfArguments),
    /// List the RDMA devices and network interfaces of this machine, and what is missing.
    Devices(DevicesArguments),
    /// Print a script that completes the arguments of this program in a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the man page of this program, or of one of its commands.
    Man {
        /// The command, such as `perf`: `polyrail man perf | man -l -` shows its page.
        #[arg(value_name = "COMMAND")]
        command: Option<String>,
    },
}

// The short options of devices are perftest's, as for `perf`.
#[derive(Debug, Args)]
#[command(
    after_help = COPY_HELP,
    override_usage = "polyrail copy [OPTIONS] SRC DST
       polyrail copy [OPTIONS] SRC... DIRECTORY
       polyrail copy [OPTIONS] --to HOST[:PORT] SRC...
       polyrail copy [OPTIONS] HOST[:PORT]:PATH DST"
)]
#[command(mut_arg("device", |arg| arg.short('d')))]
#[command(mut_arg("gid_index", |arg| arg.short('x')))]
#[command(mut_arg("service_level", |arg| arg.short('S')))]
pub(super) struct CopyArguments {
    /// Files or directories to copy, and, without --to, the destination: a file, replaced if it
    /// exists; or, for directories, for several sources, or if it ends with /, a directory, made if
    /// it is missing, in which each gets its own name. HOST:PATH is a file or directory that a
    /// `polyrail serve --readable` serves.
    #[arg(value_name = "SRC... DST", value_hint = clap::ValueHint::AnyPath, required = true)]
    pub(super) paths: Vec<PathBuf>,
    /// Copy to the `polyrail serve` on HOST, over RDMA devices or TCP. PORT is 7471 by default.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["devices", "line_rate", "sync"], help_heading = PLACE)]
    pub(super) to: Option<String>,
    /// Name of the copy of one file on the other host [default: the name of SRC].
    #[arg(long, value_name = "NAME", help_heading = PLACE)]
    pub(super) name: Option<PathBuf>,
    #[command(flatten)]
    pub(super) host_devices: DeviceArguments,
    #[command(flatten)]
    pub(super) token: TokenArguments,
    #[command(flatten)]
    pub(super) requests: RequestArguments,
    /// Requests in flight at a time. Each side needs memory for N requests.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = window, help_heading = REQUESTS)]
    pub(super) window: u64,
    /// How the receiver is notified that a request is complete.
    #[arg(long, value_enum, default_value_t = SchemeName::Spray, help_heading = REQUESTS)]
    pub(super) scheme: SchemeName,
    /// Size of one request in bytes, 1 to 1G.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = message, help_heading = REQUESTS)]
    pub(super) message_size: u64,
    #[command(flatten)]
    pub(super) faults: FaultArguments,
    #[command(flatten)]
    pub(super) failure: FailureArguments,
    #[command(flatten)]
    pub(super) connection: ConnectionArguments,
    #[command(flatten)]
    pub(super) timeouts: TimeoutArguments,
    /// Fail if DST exists; for directories, if a file exists with another size or time.
    #[arg(long, help_heading = FILES)]
    pub(super) no_overwrite: bool,
    /// Flush the copy to disk (fsync) before it is complete.
    #[arg(long, help_heading = FILES)]
    pub(super) sync: bool,
    /// Print the report, or the error, as JSON.
    #[arg(long, help_heading = OUTPUT)]
    pub(super) json: bool,
    /// Print only errors: no progress bar (which appears on terminals only), report or faults.
    #[arg(long, short, help_heading = OUTPUT)]
    pub(super) quiet: bool,
}

// The short options of devices are perftest's, as for `perf`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_HELP)]
#[command(mut_arg("device", |arg| arg.short('d')))]
#[command(mut_arg("gid_index", |arg| arg.short('x')))]
#[command(mut_arg("service_level", |arg| arg.short('S')))]
pub(super) struct ServeArguments {
    /// An existing directory to write files into, or one file that each copy replaces. A directory
    /// whose name ends with / is made if it is missing [default: accept no files].
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    pub(super) destination: Option<PathBuf>,
    #[command(flatten)]
    pub(super) devices: DeviceArguments,
    #[command(flatten)]
    pub(super) token: TokenArguments,
    /// Address to listen at; `*` is every address of this host, IPv4 and IPv6. With port 0, the
    /// system chooses a free port.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "*:7471", help_heading = PLACE)]
    pub(super) listen: String,
    /// Peers to serve at a time, each with up to --max-memory. Further peers wait for their turn,
    /// and are refused as `busy` after 80% of --answer-timeout. With 1, measurements do not disturb
    /// each other.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64), help_heading = PLACE)]
    pub(super) peers: u8,
    /// Let peers read files in DST, with `polyrail copy HOST:PATH`; hidden names at its top and
    /// symbolic links are refused [default: peers can only write].
    #[arg(long, requires = "destination", help_heading = FILES)]
    pub(super) readable: bool,
    /// Exit after one peer, with an error if its copy or measurement failed. A peer that connects
    /// but asks for neither does not count.
    #[arg(long, conflicts_with = "peers", help_heading = PLACE)]
    pub(super) once: bool,
    /// Refuse a file if a file of its name exists.
    #[arg(long, help_heading = FILES)]
    pub(super) no_overwrite: bool,
    /// Refuse files that are longer than SIZE [default: no limit].
    #[arg(long, value_name = "SIZE", value_parser = memory, help_heading = FILES)]
    pub(super) max_file_size: Option<u64>,
    /// Limit the memory that one peer may use on this host: its window times its message size.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = memory, help_heading = PLACE)]
    pub(super) max_memory: u64,
    #[command(flatten)]
    pub(super) connection: ConnectionArguments,
    #[command(flatten)]
    pub(super) timeouts: TimeoutArguments,
    /// Flush each copy to disk (fsync) before it is complete.
    #[arg(long, help_heading = FILES)]
    pub(super) sync: bool,
    /// Serve metrics for Prometheus over HTTP at ADDRESS, such as 127.0.0.1:9470, or write them to
    /// a file in FOLDER every 10 s. Anyone who reaches the address can read them.
    #[arg(long, value_name = "ADDRESS|FOLDER", help_heading = OUTPUT)]
    pub(super) metrics: Option<Target>,
    /// Print reports as JSON, one value of several lines for each file or measurement.
    #[arg(long, help_heading = OUTPUT)]
    pub(super) json: bool,
    /// Print only errors.
    #[arg(long, short, help_heading = OUTPUT)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = DEVICES_HELP)]
pub(super) struct DevicesArguments {
    /// Also show where each device is in the machine: PCI address and link, NUMA node, nearby
    /// processors; and its firmware.
    #[arg(long, short)]
    pub(super) verbose: bool,
    /// Print JSON, including what --verbose shows.
    #[arg(long)]
    pub(super) json: bool,
}

#[cfg(test)]
mod tests {
    use super::help::PERF_HELP;
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        definition().debug_assert();
    }

    /// Returns the command lines of this program in shell blocks of pages, and in the help.
    fn examples() -> Vec<String> {
        const PAGES: [&str; 6] = [
            include_str!("../../../../../README.md"),
            include_str!("../../../docs/copying.md"),
            include_str!("../../../docs/measuring.md"),
            include_str!("../../../docs/real_nics.md"),
            include_str!("../../../docs/tcp.md"),
            include_str!("../../../docs/faults.md"),
        ];
        const HELP: [&str; 5] = [EXAMPLES, COPY_HELP, PERF_HELP, SERVE_HELP, DEVICES_HELP];
        let blocks = PAGES.iter().flat_map(|page| page.split("```sh\n").skip(1));
        let blocks = blocks.map(|block| block.split("```").next().unwrap_or_default());
        let help = HELP.iter().map(|help| help.split("\n\n").next().unwrap_or_default());
        let text = blocks.chain(help).collect::<Vec<_>>().join("\n").replace("\\\n", " ");
        let line = |line: &str| {
            let line = line.trim_start();
            let begins =
                ["polyrail ", "target/release/polyrail ", "cargo run --release --bin polyrail -- "];
            let begun = begins.iter().find_map(|begin| line.strip_prefix(begin));
            let rest = begun.or_else(|| line.split_once("; polyrail ").map(|(_, rest)| rest))?;
            // What follows is a remark, or belongs to the shell.
            let end = [" #", "   ", " |", " >"].iter().filter_map(|end| rest.find(end)).min();
            Some(rest[..end.unwrap_or(rest.len())].to_owned())
        };
        text.lines().filter_map(line).collect()
    }

    #[test]
    fn every_command_line_that_users_read_makes_sense() {
        let examples = examples();
        assert!(examples.len() > 40, "{examples:?}");
        for example in examples {
            let words = ["polyrail"].into_iter().chain(example.split_whitespace());
            if let Err(error) = definition().try_get_matches_from(words) {
                panic!("{example:?}: {error}");
            }
        }
    }
}
