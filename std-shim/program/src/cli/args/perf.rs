//! What `polyrail perf` takes.

use super::group::{
    ConnectionArguments, DeviceArguments, FailureArguments, FaultArguments, RequestArguments,
    TokenArguments,
};
use super::heading::{MEASURED, OUTPUT, PLACE, REQUESTS, WAITING};
use super::help::PERF_HELP;
use super::value::{OperationName, SchemeName, Sizes, deep_window, inline, mtu, seconds, sizes};
use clap::Args;
use polyrail::backend::Mtu;
use polyrail::cpus::CpuList;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(after_help = PERF_HELP)]
pub(in crate::cli) struct PerfArguments {
    /// Measure to a `polyrail serve` there, over real NICs; the port is 7471 unless given.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["devices", "line_rate", "threads"], help_heading = PLACE)]
    pub(in crate::cli) to: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) host_devices: DeviceArguments,
    #[command(flatten)]
    pub(in crate::cli) token: TokenArguments,
    /// What to measure [default: write, write-imm, read, send and p2p; over time write-imm; latency all of those].
    #[arg(long, value_enum, value_delimiter = ',', help_heading = MEASURED)]
    pub(in crate::cli) operations: Vec<OperationName>,
    /// Schemes to measure; they differ for write-imm only [default: both; over time spray].
    #[arg(long, value_enum, value_delimiter = ',', help_heading = MEASURED)]
    pub(in crate::cli) schemes: Vec<SchemeName>,
    /// Request sizes in bytes: a list, or a range of powers of two such as 4K..1M
    /// [default: 4K..4M; over time 1M; latency 8; atomics always 8].
    #[arg(long, value_name = "SIZES", value_parser = sizes, help_heading = MEASURED)]
    pub(in crate::cli) sizes: Option<Sizes>,
    /// Measure how long one request takes instead of throughput: half round trips, in which each is answered by one of
    /// the same size before the next; of read and atomics, which are round trips by themselves, whole ones.
    #[arg(long, conflicts_with_all = ["timeline", "fault", "plot"], help_heading = MEASURED)]
    pub(in crate::cli) latency: bool,
    /// Both ends send at the same time: the sum, and each direction.
    #[arg(long, short, conflicts_with_all = ["latency", "timeline", "fault"], help_heading = MEASURED)]
    pub(in crate::cli) bidirectional: bool,
    /// Measure over time: one operation, scheme and size, in one run without memcpy. Shows goodput from
    /// moment to moment.
    #[arg(long, help_heading = MEASURED)]
    pub(in crate::cli) timeline: bool,
    /// Seconds to measure each line for [default: 0.2; over time 3; latency 1].
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = MEASURED)]
    pub(in crate::cli) seconds: Option<Duration>,
    /// Requests to measure for each line, or round trips, instead of a time.
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..), help_heading = MEASURED)]
    pub(in crate::cli) count: Option<u64>,
    #[command(flatten)]
    pub(in crate::cli) requests: RequestArguments,
    /// Requests in flight at once, each way; each side keeps that many in memory. Up to 256 over several rails, up to
    /// 16384 over one, if its device takes them.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = deep_window, help_heading = REQUESTS)]
    pub(in crate::cli) window: u32,
    /// Requests of write, write-imm and send, and messages of p2p, of at most so many bytes carry them inline: the
    /// device does not fetch them from memory. Requests over several rails only with --rail-failure fatal [default:
    /// 0, none; latency over one rail 64].
    #[arg(long, value_name = "BYTES", value_parser = inline, help_heading = REQUESTS)]
    pub(in crate::cli) inline: Option<u32>,
    /// Bytes of payload in a packet: 256, 512, 1024, 2048 or 4096; refused if a port, here or there, takes only
    /// smaller ones [default: as many as both ports take].
    #[arg(long, value_name = "BYTES", value_parser = mtu, help_heading = REQUESTS)]
    pub(in crate::cli) mtu: Option<Mtu>,
    /// Threads: one that drives both ends, or one for each end.
    #[arg(long, value_name = "1|2", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2), help_heading = REQUESTS)]
    pub(in crate::cli) threads: u8,
    /// Processors that measure, such as 0-3,8, and no others; `polyrail devices --verbose` shows which are near a
    /// NIC [default: all].
    #[arg(long, value_name = "LIST", help_heading = REQUESTS)]
    pub(in crate::cli) cpus: Option<CpuList>,
    #[command(flatten)]
    pub(in crate::cli) faults: FaultArguments,
    #[command(flatten)]
    pub(in crate::cli) failure: FailureArguments,
    #[command(flatten)]
    pub(in crate::cli) connection: ConnectionArguments,
    /// Seconds to wait for the other host to connect, and for each answer.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, help_heading = WAITING)]
    pub(in crate::cli) answer_timeout: Duration,
    /// Print JSON, with the machine and every option.
    #[arg(long, conflicts_with = "csv", help_heading = OUTPUT)]
    pub(in crate::cli) json: bool,
    /// Print comma separated values.
    #[arg(long, help_heading = OUTPUT)]
    pub(in crate::cli) csv: bool,
    /// Also draw the throughput into this file, as SVG; it is replaced at the end. Over time: goodput of all
    /// rails, and of each, with marks where faults began and ended, and where rails failed and returned.
    #[arg(long, value_name = "FILE.svg", value_hint = clap::ValueHint::FilePath, help_heading = OUTPUT)]
    pub(in crate::cli) plot: Option<PathBuf>,
}

impl PerfArguments {
    /// Returns whether to measure over time.
    pub(in crate::cli) fn is_over_time(&self) -> bool {
        self.timeline || !self.faults.fault.is_empty()
    }

    /// Returns the bytes that a request may carry inline.
    pub(in crate::cli) fn inline(&self) -> u32 {
        /// As many as any device takes. With several rails they could not be posted again when one fails.
        const OF_LATENCY: u32 = 64;
        let default = if self.latency && self.requests.rails == 1 { OF_LATENCY } else { 0 };
        self.inline.unwrap_or(default)
    }
}
