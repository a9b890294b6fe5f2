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

DST gets its name when it is complete: it is never there half. Until then it is a file without a \
name, of which nothing stays even if the program is killed, or, where the file system has none (NFS), \
a hidden one beside it. Behind a symbolic link the file is replaced; a link that leads nowhere is \
refused. A character device such as /dev/null is written in place.

With --to, the file goes over this host's RDMA devices to `polyrail serve` on another host, and DST \
is the name that the copy gets there, if the server has it appear in a directory [default: SRC's]. \
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
  7    what arrived is not what was sent
  8    SRC and DST are the same file
  9    there is no device to run on, and why
  10   copied, but the report could not be written to standard output
  11   not enough memory, which a smaller window or message size needs less of
  130  interrupted (SIGINT, SIGTERM, or SIGHUP unless it is ignored)";

const PERF_HELP: &str = "\
Examples:
  polyrail perf
  polyrail perf --sizes 64K,1M --operations write-imm --threads 2
  polyrail perf --sizes 4K..16M --csv > perf.csv
  polyrail perf --schemes spray --plot perf.svg
  polyrail perf --to 10.0.0.2 --device mlx5_0 --device mlx5_1 --rails 8 --window 32

Without --to, requests move through memory of one process, by software, so the figures say what the \
engine and the software NIC cost, not what a network does. With it, they go over this host's RDMA \
devices to `polyrail serve` on another host, one connection for each line; it needs a program that was \
built with --features verbs. Beside each line stands a plain memcpy of the same bytes between the same \
two buffers' worth of this host's memory, measured in the same run.

Throughput is counted by what is acknowledged. Of write-imm and send the server also says how many \
arrived, and a difference is an error; a write or a read it does not notice, so a line of these may \
take no longer than its --progress-timeout.

Exit codes:
  0    measured
  1    something that should not happen
  2    the command line makes no sense, or the devices cannot do it
  4    the picture cannot be written: a directory, no such directory, no permission
  5    no space for the picture, or a limit on the length of files (ulimit -f)
  6    a rail failed, the virtual queue pair could not be set up, or the server cannot be reached,
       hung up, gave up or fell silent
  7    not everything arrived that was sent
  9    there is no device to run on, and why
  10   measured, but the figures could not be written to standard output
  11   not enough memory, which smaller requests or fewer of them need less of
  130  interrupted (SIGINT, SIGTERM, or SIGHUP unless it is ignored)";

const SERVE_HELP: &str = "\
Examples:
  polyrail serve /data                              every active device
  polyrail serve                                    measurements only, no files
  polyrail serve --device mlx5_0 --once model.bin   one file, and then it ends
  polyrail serve --listen 10.0.0.2:9000 --json /data

Serves `polyrail copy --to` and `polyrail perf --to` from other hosts, --peers of them at a time (each \
line of perf is one), and prints what each did. Peers decide on rails, scheme and sizes. Devices \
pair up in order, so both sides name as many, and the i-th here reaches the i-th there. Files replace \
what has their name when they are complete. In a directory, names are those that senders give; they \
cannot lead out of it, nor through a symbolic link, nor be hidden. Nobody is asked for a password: \
listen where only those can connect who may. Ctrl-C ends it.

It needs a program that was built with --features verbs.

Exit codes: 0 it was told to end, or with --once all went well; 1 it cannot listen; 2 the command line \
makes no sense; 9 there is no device to run on; 10 it cannot write its reports to standard output; 130 \
interrupted while a file came or a measurement went on; with --once, those of copy and perf.";

const DEVICES_HELP: &str = "\
Shows devices, ports, addresses (the gid index is what --gid-index takes) and limits.

Exit codes: 0 there are some; 1 something that should not happen; 2 the command line makes no \
sense; 9 there are none, and why; 10 it cannot write to standard output.";

/// Returns what the command line asks for. If that makes no sense, or is the help, it says so and ends
/// the process.
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
    // What it says names them, among colours of its own; as plain text it has neither.
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
    /// List the RDMA devices of this machine, or say what is missing.
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
    /// The file to write; replaced if it is there. With --to, its name at the receiver.
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
    /// Bytes of one request, 1 to 1G.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = message)]
    pub(super) message_size: u64,
    /// Let the link of a rail's device fail when it has carried so many bytes, or with `:silent` never
    /// answer again. Repeatable. With fewer devices than rails, all rails of the device carry these
    /// bytes and fail, and the first that is seen to is named.
    #[arg(long, value_name = "RAIL:BYTES[:silent]", value_parser = fault)]
    pub(super) fault: Vec<LinkFault>,
    #[command(flatten)]
    pub(super) connection: ConnectionArguments,
    /// Seconds that a rail may make no headway before it is taken for dead.
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

/// How requests go, whatever they are for.
#[derive(Debug, Args)]
pub(super) struct RequestArguments {
    /// Physical queue pairs that carry the data.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = rails)]
    pub(super) rails: usize,
    /// Devices on either side, which the rails are spread over; if there are more, the last stay unused
    /// [default: one for each rail].
    #[arg(long, value_name = "N", value_parser = rails)]
    pub(super) devices: Option<usize>,
    /// Bytes of the longest fragment, a multiple of 128.
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = fragment)]
    pub(super) max_msg_size: u32,
    /// Requests on their way at once; either side keeps that many in memory.
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
    /// Index of the ports' address, as `polyrail devices` shows it [default: RoCE v2 over IPv4 first].
    #[arg(long, value_name = "N")]
    pub(super) gid_index: Option<u8>,
}

impl DeviceArguments {
    /// Whether anything is said about them.
    pub(super) fn are_named(&self) -> bool {
        !self.device.is_empty() || self.gid_index.is_some()
    }
}

/// How long another host is waited for.
#[derive(Debug, Args)]
pub(super) struct PatienceArguments {
    /// Seconds that another host may take to connect, and for each answer while the two sides meet.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) answer_timeout: Duration,
    /// Seconds that another host may let nothing happen at all.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(super) idle_timeout: Duration,
    /// Seconds in which nothing may move, though the other host says that it is there. Of a measured
    /// write or read nothing is seen to move, so there it is the most that one may take.
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
    /// An acknowledgement is waited for 4.096 us * 2^N before packets are sent again, 1 to 31; each side
    /// has its own [default: 18, a second; within one process 14].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=31))]
    qp_timeout: Option<u8>,
}

impl ConnectionArguments {
    /// The code, `between_hosts` or within one process.
    pub(super) fn qp_timeout(&self, between_hosts: bool) -> u8 {
        /// 67 ms. The software NIC is never late, so that a link that fails is better known soon.
        const WITHIN_A_PROCESS: u8 = 14;
        let default =
            if between_hosts { ConnectOptions::default().timeout } else { WITHIN_A_PROCESS };
        self.qp_timeout.unwrap_or(default)
    }
}

#[derive(Debug, Args)]
#[command(after_help = SERVE_HELP)]
pub(super) struct ServeArguments {
    /// A directory that files appear in, or the file that each becomes [default: no files are taken].
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    pub(super) destination: Option<PathBuf>,
    #[command(flatten)]
    pub(super) devices: DeviceArguments,
    /// Where peers connect; port 0 is one that the system chooses.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "0.0.0.0:7471")]
    pub(super) listen: String,
    /// Peers to serve at a time, each with --max-memory; others wait a little, then are told to come
    /// back. With 1, no measurement disturbs another.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(super) peers: u8,
    /// End after one peer, and fail if its file did not come, or its measurement failed. Who connects and
    /// asks for nothing does not count.
    #[arg(long, conflicts_with = "peers")]
    pub(super) once: bool,
    /// Memory that a peer may have here: its window times its message size.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = memory)]
    pub(super) max_memory: u64,
    #[command(flatten)]
    pub(super) connection: ConnectionArguments,
    /// Seconds that a rail may make no headway before it is taken for dead.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) stall_timeout: Duration,
    #[command(flatten)]
    pub(super) patience: PatienceArguments,
    /// Wait until each copy has reached the disk.
    #[arg(long)]
    pub(super) sync: bool,
    /// Report as JSON, a value for each file or measurement.
    #[arg(long)]
    pub(super) json: bool,
    /// Say nothing but errors.
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
    /// Bytes of a request: a list, or a range of powers of two such as 4K..1M.
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
    /// Seconds that a rail may make no headway before it is taken for dead.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) stall_timeout: Duration,
    /// Seconds that the other host may take to connect, and for each answer.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) answer_timeout: Duration,
    /// Print JSON.
    #[arg(long, conflicts_with = "csv")]
    pub(super) json: bool,
    /// Print comma separated values.
    #[arg(long)]
    pub(super) csv: bool,
    /// Draw the throughput into this file too, as SVG; it is replaced when all is measured.
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
        _ => Err("1 to 8 can be".into()),
    }
}

fn window(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(window) if window >= 1 && window <= u64::from(MAX_WINDOW) => Ok(window),
        _ => Err(format!("1 to {MAX_WINDOW} can be")),
    }
}

fn fragment(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    match u32::try_from(bytes) {
        Ok(bytes @ 1..=0x4000_0000) if bytes.is_multiple_of(FRAGMENT_ALIGN) => Ok(bytes),
        _ => Err(format!("a positive multiple of {FRAGMENT_ALIGN} up to 1G can be")),
    }
}

fn message(text: &str) -> Result<u64, String> {
    match parse_size(text).map_err(|error| error.to_string())? {
        bytes @ 1..=0x4000_0000 => Ok(bytes),
        _ => Err("1 to 1G can be".into()),
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
        _ => Err("more than 0 and at most a day can be".into()),
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
