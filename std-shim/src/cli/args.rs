//! What can be asked for on the command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use polyrail::perf::Operation;
use polyrail::size::parse_size;
use polyrail::transfer::{LinkFault, MAX_WINDOW};
use polyrail::virtual_qp::{FRAGMENT_ALIGN, Scheme};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  polyrail copy model.bin /mnt/model.bin
  polyrail copy --rails 8 --scheme dqplb --window 16 --json a b
  polyrail copy --fault 2:64M a b       the link of rail 2 fails after 64 MiB
  polyrail perf --sizes 4K..1M --plot perf.svg
  polyrail completions bash > /etc/bash_completion.d/polyrail

Sizes are bytes, or K, M, G, T in powers of 1024, also as KiB or KB.";

const COPY_HELP: &str = "\
Examples:
  polyrail copy model.bin /mnt/model.bin
  polyrail copy --rails 8 --devices 2 --scheme dqplb --max-msg-size 128K a b
  polyrail copy --json --quiet a b | jq .gigabytes_per_second
  polyrail copy --fault 2:64M a b       the link of rail 2 fails after 64 MiB

DST is written under a temporary name beside it and renamed when it is complete: it is never \
there half. Behind a symbolic link the file is replaced, and a character device such as \
/dev/null is written in place.

Exit codes:
  0    copied, and the checksums of both ends agree
  1    something that should not happen
  2    the command line makes no sense
  3    SRC cannot be read: missing, a directory, no permission, it changed
  4    DST cannot be written: a directory, no such directory, no permission
  5    no space for DST
  6    a rail failed, or the virtual queue pair could not be set up
  7    what arrived is not what was sent
  8    SRC and DST are the same file
  130  interrupted";

const PERF_HELP: &str = "\
Examples:
  polyrail perf
  polyrail perf --sizes 64K,1M --operations write-imm --threads 2
  polyrail perf --sizes 4K..16M --csv > perf.csv
  polyrail perf --schemes spray --plot perf.svg

Requests move through memory of one process, by software, so the figures say what the engine and \
the software NIC cost, not what a network does. Beside each stands a plain memcpy of the same \
bytes between the same two buffers' worth of memory, measured in the same run.

Exit codes: 0 measured; 1 something that should not happen; 2 the command line makes no sense; \
4 a file could not be written; 6 a rail failed.";

const DEVICES_HELP: &str = "\
Shows devices, ports, addresses (the gid index is what --gid-index takes) and limits.

Exit codes: 0 there are some; 1 something that should not happen; 2 the command line makes no \
sense; 9 there are none, and why.";

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
    /// Measure requests of many sizes, beside plain memcpy.
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
    /// The file to write; replaced if it is there.
    #[arg(value_name = "DST", value_hint = clap::ValueHint::FilePath)]
    pub(super) destination: PathBuf,
    /// Physical queue pairs that carry the data.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = rails)]
    pub(super) rails: usize,
    /// Devices on either side, which the rails are spread over [default: one for each rail].
    #[arg(long, value_name = "N", value_parser = rails)]
    pub(super) devices: Option<usize>,
    /// How the receiver learns that a request is complete.
    #[arg(long, value_enum, default_value_t = SchemeName::Spray)]
    pub(super) scheme: SchemeName,
    /// Bytes of the longest fragment, a multiple of 128.
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = fragment)]
    pub(super) max_msg_size: u32,
    /// Bytes of one request, 1 to 1G.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = message)]
    pub(super) message_size: u64,
    /// Requests on their way at once; either side keeps that many in memory.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = window)]
    pub(super) window: u64,
    /// Let the link of a rail fail after so many bytes, or with `:silent` never answer again.
    /// Repeatable.
    #[arg(long, value_name = "RAIL:BYTES[:silent]", value_parser = fault)]
    pub(super) fault: Vec<LinkFault>,
    /// Seconds that a rail may make no headway before it is taken for dead.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) stall_timeout: Duration,
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

#[derive(Debug, Args)]
#[command(after_help = PERF_HELP)]
pub(super) struct PerfArguments {
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
    /// Physical queue pairs that carry the data.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = rails)]
    pub(super) rails: usize,
    /// Devices on either side, which the rails are spread over [default: one for each rail].
    #[arg(long, value_name = "N", value_parser = rails)]
    pub(super) devices: Option<usize>,
    /// Bytes of the longest fragment, a multiple of 128.
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = fragment)]
    pub(super) max_msg_size: u32,
    /// Requests outstanding.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = window)]
    pub(super) window: u64,
    /// Threads: one that drives both ends, or one for each end.
    #[arg(long, value_name = "1|2", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(super) threads: u8,
    /// Seconds to measure each line for.
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    pub(super) seconds: Duration,
    /// Requests to measure for each line, instead of a time.
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    /// Seconds that a rail may make no headway before it is taken for dead.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) stall_timeout: Duration,
    /// Print JSON.
    #[arg(long, conflicts_with = "csv")]
    pub(super) json: bool,
    /// Print comma separated values.
    #[arg(long)]
    pub(super) csv: bool,
    /// Draw the throughput into this file too, as SVG.
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

/// Bytes of the longest request that perf measures: two buffers for each of a window.
const MAX_PERF_BYTES: u64 = 256 << 20;

fn sizes(text: &str) -> Result<Sizes, String> {
    let size = |text: &str| match parse_size(text) {
        Ok(0) => Err("a request has at least 1 byte".to_owned()),
        Ok(bytes) if bytes > MAX_PERF_BYTES => Err(format!("{text:?} is more than 256M")),
        Ok(bytes) => Ok(bytes as u32),
        Err(error) => Err(error.to_string()),
    };
    let Some((first, last)) = text.split_once("..") else {
        return text.split(',').map(size).collect::<Result<_, _>>().map(Sizes);
    };
    let (first, last) = (size(first)?, size(last)?);
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
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
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
