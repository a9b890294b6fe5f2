//! Arguments of `polyrail perf`.

use super::group::{
    ConnectionArguments, DeviceArguments, FailureArguments, FaultArguments, RequestArguments,
    TokenArguments,
};
use super::heading::{MEASURED, OUTPUT, PLACE, REQUESTS, WAITING};
use super::help::PERF_HELP;
use super::value::{
    OperationName, SchemeName, Sizes, deep_window, inline, interval, mtu, picture, seconds, sizes,
};
use clap::Args;
use polyrail::backend::Mtu;
use polyrail::cpus::CpuList;
use polyrail::metrics::Target;
use std::path::PathBuf;
use std::time::Duration;

// The short options are perftest's. They are not those of `copy`, where `-q` is `--quiet`.
#[derive(Debug, Args)]
#[command(after_help = PERF_HELP)]
#[command(mut_arg("device", |arg| arg.short('d').alias("ib-dev")))]
#[command(mut_arg("gid_index", |arg| arg.short('x')))]
#[command(mut_arg("service_level", |arg| arg.short('S')))]
#[command(mut_arg("rails", |arg| arg.short('q').alias("qp")))]
#[command(mut_arg("qp_timeout", |arg| arg.short('u')))]
pub(in crate::cli) struct PerfArguments {
    /// Measure to the `polyrail serve` on HOST, over RDMA devices or TCP. PORT is 7471 by default.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["devices", "line_rate", "threads"], help_heading = PLACE)]
    pub(in crate::cli) to: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) host_devices: DeviceArguments,
    #[command(flatten)]
    pub(in crate::cli) token: TokenArguments,
    /// Operations to measure [default: write, write-imm, read, send and p2p; with --timeline or
    /// --fault write-imm].
    #[arg(long, value_enum, value_delimiter = ',', help_heading = MEASURED)]
    pub(in crate::cli) operations: Vec<OperationName>,
    /// Schemes to measure; they differ for write-imm only [default: both; with --timeline or
    /// --fault spray].
    #[arg(long, value_enum, value_delimiter = ',', help_heading = MEASURED)]
    pub(in crate::cli) schemes: Vec<SchemeName>,
    /// Request sizes in bytes, at most 256M: a list, or a range such as 4K..1M, in which each size
    /// is twice the one before [default: 4K..4M; with --timeline or --fault 1M; with --latency 8;
    /// atomics always 8].
    #[arg(long, short, alias = "size", value_name = "SIZES", value_parser = sizes, help_heading = MEASURED)]
    sizes: Option<Sizes>,
    /// Measure all sizes from 2 bytes to 8 MiB, in powers of 2, as perftest does.
    #[arg(long, short, visible_alias = "all", conflicts_with = "sizes", help_heading = MEASURED)]
    all_sizes: bool,
    /// Measure latency instead of throughput: half the round trip of a request and an answer of the
    /// same size, one at a time. For read and atomics, which are round trips by themselves: the
    /// whole round trip.
    #[arg(long, conflicts_with_all = ["timeline", "fault", "interval"], help_heading = MEASURED)]
    pub(in crate::cli) latency: bool,
    /// Let both ends send at the same time; report each direction and the sum.
    #[arg(long, short, conflicts_with_all = ["latency", "timeline", "fault", "interval"], help_heading = MEASURED)]
    pub(in crate::cli) bidirectional: bool,
    /// Measure goodput over time: one operation, scheme and size, in one run, without memcpy.
    #[arg(long, help_heading = MEASURED)]
    pub(in crate::cli) timeline: bool,
    /// Measure over time, as --timeline does, and print a line each TIME, such as 1s or 100ms,
    /// while the measurement runs. With --csv or --json: the time between two samples
    /// [default: up to 300 samples].
    #[arg(long, value_name = "TIME", value_parser = interval, help_heading = MEASURED)]
    pub(in crate::cli) interval: Option<Duration>,
    /// Seconds to measure for each line of the table, or a time such as 500ms [default: 0.2; with
    /// --timeline or --fault 3; with --latency 1].
    #[arg(long, short = 'D', alias = "duration", value_name = "SECONDS", value_parser = seconds, help_heading = MEASURED)]
    pub(in crate::cli) seconds: Option<Duration>,
    /// Requests (with --latency: round trips) to measure for each line of the table, instead of a
    /// time.
    #[arg(long, short = 'n', alias = "iters", value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..), help_heading = MEASURED)]
    pub(in crate::cli) count: Option<u64>,
    #[command(flatten)]
    pub(in crate::cli) requests: RequestArguments,
    /// Requests in flight at a time, in each direction. Each side needs memory for N requests. At
    /// most 256 over several rails, and 16384 over one rail if its device allows that many.
    #[arg(long, short = 't', alias = "tx-depth", value_name = "N", default_value_t = 8, value_parser = deep_window, help_heading = REQUESTS)]
    pub(in crate::cli) window: u32,
    /// Send requests of write, write-imm, send and p2p inline if they have at most BYTES bytes: the
    /// device takes the bytes from the request instead of from memory. With several rails, requests
    /// other than p2p also require --rail-failure fatal [default: 0, never inline; with --latency
    /// and one rail 64].
    #[arg(long, short = 'I', value_name = "BYTES", value_parser = inline, help_heading = REQUESTS)]
    pub(in crate::cli) inline: Option<u32>,
    /// Path MTU, the payload of a packet in bytes: 256, 512, 1024, 2048 or 4096. Refused if a port
    /// of either host supports only smaller packets. Has no effect over TCP
    /// [default: the largest that both ports support].
    #[arg(long, short, value_name = "BYTES", value_parser = mtu, help_heading = REQUESTS)]
    pub(in crate::cli) mtu: Option<Mtu>,
    /// Threads: 1 drives both ends, 2 is one for each end.
    #[arg(long, value_name = "1|2", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2), help_heading = REQUESTS)]
    pub(in crate::cli) threads: u8,
    /// Processors to run on, such as 0-3,8; `polyrail devices --verbose` lists those near each NIC
    /// [default: all].
    #[arg(long, value_name = "LIST", help_heading = REQUESTS)]
    pub(in crate::cli) cpus: Option<CpuList>,
    #[command(flatten)]
    pub(in crate::cli) faults: FaultArguments,
    #[command(flatten)]
    pub(in crate::cli) failure: FailureArguments,
    #[command(flatten)]
    pub(in crate::cli) connection: ConnectionArguments,
    /// Seconds to wait for a connection, and for each answer.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, help_heading = WAITING)]
    pub(in crate::cli) answer_timeout: Duration,
    /// Serve metrics for Prometheus over HTTP at ADDRESS, such as 127.0.0.1:9470, or write them to
    /// a file in FOLDER every 10 s. Anyone who reaches the address can read them.
    #[arg(long, value_name = "ADDRESS|FOLDER", help_heading = OUTPUT)]
    pub(in crate::cli) metrics: Option<Target>,
    /// Print JSON, including the machine and every option.
    #[arg(long, conflicts_with = "csv", help_heading = OUTPUT)]
    pub(in crate::cli) json: bool,
    /// Print comma-separated values.
    #[arg(long, help_heading = OUTPUT)]
    pub(in crate::cli) csv: bool,
    /// Also draw the throughput into this file, as SVG; it is replaced at the end. With --timeline
    /// or --fault: goodput over time, of all rails and of each, with a mark where a fault began or
    /// ended, and where a rail failed or returned. With --latency: a histogram of each line.
    #[arg(long, value_name = "FILE.svg", value_parser = picture(), value_hint = clap::ValueHint::FilePath, help_heading = OUTPUT)]
    pub(in crate::cli) plot: Option<PathBuf>,
}

impl PerfArguments {
    /// Returns whether to measure over time.
    pub(in crate::cli) fn is_over_time(&self) -> bool {
        self.timeline || self.interval.is_some() || !self.faults.fault.is_empty()
    }

    /// Returns the sizes that were chosen.
    pub(in crate::cli) fn sizes(&self) -> Option<Vec<u32>> {
        /// The sizes of perftest's `-a`: up to 2^23.
        const ALL: std::ops::RangeInclusive<u32> = 1..=23;
        if self.all_sizes {
            return Some(ALL.map(|power| 1 << power).collect());
        }
        self.sizes.as_ref().map(|sizes| sizes.0.clone())
    }

    /// Returns the most bytes that a request carries inline.
    pub(in crate::cli) fn inline(&self) -> u32 {
        /// Small enough for common devices. With several rails the default is 0: inline bytes are
        /// not in memory any more when a rail fails, so they could not be posted again on another
        /// rail.
        const OF_LATENCY: u32 = 64;
        let default = if self.latency && self.requests.rails == 1 { OF_LATENCY } else { 0 };
        self.inline.unwrap_or(default)
    }
}
