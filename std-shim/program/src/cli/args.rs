//! What can be asked for on the command line.

use super::output;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use polyrail::backend::{ConnectOptions, DeviceName};
use polyrail::printable;
use polyrail::virtual_qp::{FRAGMENT_ALIGN, Scheme};
use polyrail_program::perf::{self, Operation};
use polyrail_program::session::Patience;
use polyrail_program::size::parse_size;
use polyrail_program::transfer::{LinkFault, MAX_WINDOW};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  polyrail copy model.bin /mnt/model.bin
  polyrail copy --rails 8 --scheme dqplb --window 16 --json a b
  polyrail copy --fault 2:64M a b       rail 2 fails after 64 MiB
  polyrail perf --sizes 4K..1M --plot perf.svg
  polyrail serve --device mlx5_0 --device mlx5_1 /data          on one host, and
  polyrail copy --to 10.0.0.2 --device mlx5_0 --device mlx5_1 model.bin     on another, or
  polyrail perf --to 10.0.0.2 --device mlx5_0 --device mlx5_1 --rails 8
  polyrail completions bash > /etc/bash_completion.d/polyrail

Sizes are bytes, or K, M, G, T in powers of 1024, also as KiB or KB.";

const COPY_HELP: &str = "\
Examples:
  polyrail copy model.bin /mnt/model.bin
  polyrail copy --rails 8 --devices 2 --scheme dqplb --max-msg-size 128K a b
  polyrail copy --json --quiet a b | jq .gigabytes_per_second
  polyrail copy --fault 2:64M a b       rail 2 fails after 64 MiB
  polyrail copy --to 10.0.0.2 model.bin to a polyrail serve there, over real NICs

DST gets its name when it is complete: a part of it is never visible. Until then it is a file without \
a name, which disappears even if the program is killed, or, where the file system does not support \
that (NFS), a hidden file beside it. If DST is a symbolic link, the file behind it is replaced; a link \
that leads nowhere is refused. A character device such as /dev/null is written in place.

With --to, the file goes over this host's RDMA devices to `polyrail serve` on another host, and DST \
is the copy's name there, if the server writes into a directory [default: SRC's name]. \
It needs a program that was built with --features verbs. Without it the software NIC carries the \
file, within this process.

Exit codes:
  0    copied, and the checksums of both ends agree
  1    something that should not happen
  2    the command line makes no sense, or the devices cannot do it
  3    SRC cannot be read: missing, a directory, no permission, it changed meanwhile
  4    DST cannot be written: a directory, no such directory, no permission
  5    no space for DST, or a limit on the length of files (ulimit -f)
  6    a rail failed, the virtual queue pair could not be set up, or the other host cannot be
       reached, hung up, gave up or fell silent
  7    what arrived differs from what was sent
  8    SRC and DST are the same file
  9    there is no device to run on, and why
  10   copied, but the report could not be written to standard output
  11   not enough memory; a smaller window or message size needs less
  130  interrupted (SIGINT, SIGTERM, or SIGHUP unless it is ignored)";

const PERF_HELP: &str = "\
Examples:
  polyrail perf
  polyrail perf --sizes 64K,1M --operations write-imm --threads 2
  polyrail perf --sizes 4K..16M --csv > perf.csv
  polyrail perf --schemes spray --plot perf.svg
  polyrail perf --to 10.0.0.2 --device mlx5_0 --device mlx5_1 --rails 8 --window 32

Without --to, requests move through memory of one process, by software, so the figures show the cost \
of the engine and the software NIC, not of a network. With it, they go over this host's RDMA \
devices to `polyrail serve` on another host, one connection for each line; it needs a program that was \
built with --features verbs. Each line also shows a plain memcpy of the same bytes over as much \
of this host's memory, measured in the same run.

Throughput counts what is acknowledged. For write-imm and send the server also reports how many \
arrived, and a difference is an error. It does not notice a write or a read, so a line of these may \
take no longer than the server's --progress-timeout.

Exit codes:
  0    measured
  1    something that should not happen
  2    the command line makes no sense, or the devices cannot do it
  4    the picture cannot be written: a directory, no such directory, no permission
  5    no space for the picture, or a limit on the length of files (ulimit -f)
  6    a rail failed, the virtual queue pair could not be set up, or the server cannot be reached,
       hung up, gave up or fell silent
  7    not everything that was sent arrived
  9    there is no device to run on, and why
  10   measured, but the figures could not be written to standard output
  11   not enough memory; smaller or fewer requests need less
  130  interrupted (SIGINT, SIGTERM, or SIGHUP unless it is ignored)";

const SERVE_HELP: &str = "\
Examples:
  polyrail serve /data                              every active device
  polyrail serve                                    measurements only, no files
  polyrail serve --device mlx5_0 --once model.bin   one file, and then it ends
  polyrail serve --listen 10.0.0.2:9000 --json /data

Serves `polyrail copy --to` and `polyrail perf --to` from other hosts, --peers of them at a time (each \
line of perf is one), and prints what each did. Peers decide on rails, scheme and sizes. Devices \
pair up in order, so both sides name the same number, and the i-th here reaches the i-th there. A file \
replaces an older one of its name when it is complete. In a directory, senders choose the names, which \
cannot lead out of it or through a symbolic link, or be hidden. There is no password: listen where \
only trusted hosts can connect. Ctrl-C ends it.

It needs a program that was built with --features verbs.

Exit codes: 0 ended by Ctrl-C, or with --once all went well; 1 it cannot listen; 2 the command line \
makes no sense; 9 there is no device to run on; 10 it cannot write its reports to standard output; 130 \
interrupted during a file or a measurement; with --once, those of copy and perf.";

const DEVICES_HELP: &str = "\
Shows devices, ports, addresses (the gid index is what --gid-index takes) and limits.

Exit codes: 0 there are devices; 1 something that should not happen; 2 the command line makes no \
sense; 9 there are no devices, and why; 10 it cannot write to standard output.";

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
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["devices", "fault", "sync"])]
    pub(super) to: Option<String>,
    #[command(flatten)]
    pub(super) host_devices: DeviceArguments,
    #[command(flatten)]
    pub(super) requests: RequestArguments,
    /// How the receiver learns that a request is complete.
    #[arg(long, value_enum, default_value_t = SchemeName::Spray)]
    pub(super) scheme: SchemeName,
    /// Size of one request in bytes, 1 to 1G.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = message)]
    pub(super) message_size: u64,
    /// Let the link of a rail's device fail after it has carried BYTES, or with `:silent` never answer
    /// again. Repeatable. With fewer devices than rails, all rails of the device count towards BYTES
    /// and fail, and the error names the first one noticed.
    #[arg(long, value_name = "RAIL:BYTES[:silent]", value_parser = fault)]
    pub(super) fault: Vec<LinkFault>,
    #[command(flatten)]
    pub(super) connection: ConnectionArguments,
    /// Seconds without progress after which a rail is considered dead.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) stall_timeout: Duration,
    #[command(flatten)]
    pub(super) patience: PatienceArguments,
    /// Wait until the copy has reached the disk.
    #[arg(long)]
    pub(super) sync: bool,
    /// Report as JSON, errors too.
    #[arg(long)]
    pub(super) json: bool,
    /// No progress bar and no table. (A progress bar appears on terminals only.)
    #[arg(long, short)]
    pub(super) quiet: bool,
}

/// How requests are sent, for any purpose.
#[derive(Debug, Args)]
pub(super) struct RequestArguments {
    /// Physical queue pairs that carry the data.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = rails)]
    pub(super) rails: usize,
    /// Devices on either side, which the rails are spread over; if there are more devices than rails,
    /// the last ones stay unused [default: one for each rail].
    #[arg(long, value_name = "N", value_parser = rails)]
    pub(super) devices: Option<usize>,
    /// Size of the longest fragment in bytes, a multiple of 128.
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = fragment)]
    pub(super) max_msg_size: u32,
    /// Requests in flight at once; each side keeps that many in memory.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = window)]
    pub(super) window: u64,
}

/// The devices of this host.
#[derive(Debug, Args)]
pub(super) struct DeviceArguments {
    /// An RDMA device, or one port of it. Repeatable; the order counts [default: all with an active
    /// port].
    #[arg(long, value_name = "DEVICE[:PORT]")]
    pub(super) device: Vec<DeviceName>,
    /// Index of the ports' addresses, as shown by `polyrail devices` [default: RoCE v2 over IPv4 first].
    #[arg(long, value_name = "N")]
    pub(super) gid_index: Option<u8>,
}

impl DeviceArguments {
    /// Returns whether devices or an address were chosen.
    pub(super) fn are_named(&self) -> bool {
        !self.device.is_empty() || self.gid_index.is_some()
    }
}

/// How long to wait for another host.
#[derive(Debug, Args)]
pub(super) struct PatienceArguments {
    /// Seconds to wait for another host to connect, and for each answer while the two sides meet.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) answer_timeout: Duration,
    /// Seconds to wait for another host while nothing happens at all.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(super) idle_timeout: Duration,
    /// Seconds without data while the other host reports that it is alive. The far end sees no data
    /// of a measured write or read, so there it limits the whole measurement.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub(super) progress_timeout: Duration,
}

impl PatienceArguments {
    pub(super) fn patience(&self) -> Patience {
        Patience {
            answer: self.answer_timeout,
            idle: self.idle_timeout,
            progress: self.progress_timeout,
        }
    }
}

/// How queue pairs are connected.
#[derive(Debug, Args)]
pub(super) struct ConnectionArguments {
    /// Wait 4.096 us * 2^N for an acknowledgement before sending packets again, 1 to 31; each side has
    /// its own [default: 18, a second; within one process 14].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=31))]
    qp_timeout: Option<u8>,
}

impl ConnectionArguments {
    /// Returns the code, for a connection `between_hosts` or within one process.
    pub(super) fn qp_timeout(&self, between_hosts: bool) -> u8 {
        /// 67 ms. The software NIC is never late, so a link that fails should be noticed soon.
        const WITHIN_A_PROCESS: u8 = 14;
        let default =
            if between_hosts { ConnectOptions::default().timeout } else { WITHIN_A_PROCESS };
        self.qp_timeout.unwrap_or(default)
    }
}

#[derive(Debug, Args)]
#[command(after_help = SERVE_HELP)]
pub(super) struct ServeArguments {
    /// A directory for the files, or the file that each one becomes [default: accept no files].
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    pub(super) destination: Option<PathBuf>,
    #[command(flatten)]
    pub(super) devices: DeviceArguments,
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
    /// Memory that a peer may use here: its window times its message size.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = memory)]
    pub(super) max_memory: u64,
    #[command(flatten)]
    pub(super) connection: ConnectionArguments,
    /// Seconds without progress after which a rail is considered dead.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) stall_timeout: Duration,
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
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["devices", "threads"])]
    pub(super) to: Option<String>,
    #[command(flatten)]
    pub(super) host_devices: DeviceArguments,
    /// Request sizes in bytes: a list, or a range of powers of two such as 4K..1M.
    #[arg(long, value_name = "SIZES", default_value = "4K..4M", value_parser = sizes)]
    pub(super) sizes: Sizes,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [
        OperationName::Write, OperationName::WriteImm, OperationName::Read, OperationName::Send,
    ])]
    pub(super) operations: Vec<OperationName>,
    /// Schemes to measure; they differ for write-imm only.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [
        SchemeName::Spray, SchemeName::Dqplb,
    ])]
    pub(super) schemes: Vec<SchemeName>,
    #[command(flatten)]
    pub(super) requests: RequestArguments,
    /// Threads: one that drives both ends, or one for each end.
    #[arg(long, value_name = "1|2", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(super) threads: u8,
    /// Seconds to measure each line for.
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    pub(super) seconds: Duration,
    /// Requests to measure for each line, instead of a time.
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    #[command(flatten)]
    pub(super) connection: ConnectionArguments,
    /// Seconds without progress after which a rail is considered dead.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) stall_timeout: Duration,
    /// Seconds to wait for the other host to connect, and for each answer.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) answer_timeout: Duration,
    /// Print JSON.
    #[arg(long, conflicts_with = "csv")]
    pub(super) json: bool,
    /// Print comma separated values.
    #[arg(long)]
    pub(super) csv: bool,
    /// Also draw the throughput into this file, as SVG; it is replaced at the end.
    #[arg(long, value_name = "FILE.svg", value_hint = clap::ValueHint::FilePath)]
    pub(super) plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = DEVICES_HELP)]
pub(super) struct DevicesArguments {
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SchemeName {
    /// Plain writes, then a notify on a queue pair of its own.
    Spray,
    /// Every fragment notifies with its sequence number.
    Dqplb,
}

impl From<SchemeName> for Scheme {
    fn from(name: SchemeName) -> Self {
        match name {
            SchemeName::Spray => Self::Spray,
            SchemeName::Dqplb => Self::Dqplb,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OperationName {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate: the receiver is notified.
    WriteImm,
    /// RDMA READ.
    Read,
    /// SEND into receives that the peer posts.
    Send,
}

impl From<OperationName> for Operation {
    fn from(name: OperationName) -> Self {
        match name {
            OperationName::Write => Self::Write,
            OperationName::WriteImm => Self::WriteImm,
            OperationName::Read => Self::Read,
            OperationName::Send => Self::Send,
        }
    }
}

/// Sizes of requests, in bytes, as given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes(pub(super) Vec<u32>);

fn sizes(text: &str) -> Result<Sizes, String> {
    let size = |text: &str| match parse_size(text) {
        Ok(0) => Err("a request has at least 1 byte".to_owned()),
        Ok(bytes) if bytes > perf::MAX_MESSAGE_SIZE.into() => {
            Err(format!("{text:?} is more than 256M"))
        }
        Ok(bytes) => Ok(bytes as u32),
        Err(error) => Err(error.to_string()),
    };
    let Some((first, last)) = text.split_once("..") else {
        return text.split(',').map(size).collect::<Result<_, _>>().map(Sizes);
    };
    let first = size(first)?;
    let last = size(last)?;
    if first > last {
        return Err(format!("{text:?} counts down"));
    }
    let sizes = std::iter::successors(Some(first), |bytes| bytes.checked_mul(2));
    Ok(Sizes(sizes.take_while(|bytes| *bytes <= last).collect()))
}

fn rails(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rails @ 1..=8) => Ok(rails),
        _ => Err("it must be from 1 to 8".into()),
    }
}

fn window(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(window) if window >= 1 && window <= u64::from(MAX_WINDOW) => Ok(window),
        _ => Err(format!("it must be from 1 to {MAX_WINDOW}")),
    }
}

fn fragment(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    match u32::try_from(bytes) {
        Ok(bytes @ 1..=0x4000_0000) if bytes.is_multiple_of(FRAGMENT_ALIGN) => Ok(bytes),
        _ => Err(format!("it must be a positive multiple of {FRAGMENT_ALIGN}, at most 1G")),
    }
}

fn message(text: &str) -> Result<u64, String> {
    match parse_size(text).map_err(|error| error.to_string())? {
        bytes @ 1..=0x4000_0000 => Ok(bytes),
        _ => Err("it must be from 1 to 1G".into()),
    }
}

fn memory(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn fault(text: &str) -> Result<LinkFault, String> {
    text.parse()
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is not a number".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration > Duration::ZERO && seconds <= 86_400.0 => Ok(duration),
        _ => Err("it must be more than 0 and at most a day".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn ranges_double() {
        assert_eq!(sizes("4K..20K"), Ok(Sizes(vec![4096, 8192, 16384])));
        assert_eq!(sizes("1,127,64K"), Ok(Sizes(vec![1, 127, 65536])));
        assert!(sizes("1M..4K").is_err() && sizes("0").is_err() && sizes("1G").is_err());
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert!(rails("0").is_err() && rails("9").is_err() && rails("x").is_err());
        assert!(fragment("100").is_err() && fragment("0").is_err() && fragment("8G").is_err());
        assert!(window("0").is_err() && window("129").is_err());
        assert!(seconds("0").is_err() && seconds("nan").is_err() && seconds("1e9").is_err());
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
    }
}
