//! The machine and the options of a measurement, so that figures can be compared later.

use super::args::PerfArguments;
use polyrail::backend::Mtu;
use polyrail::cpus::CpuList;
use polyrail::endpoint::RailWeights;
use polyrail::virtual_qp::RailFailure;
use polyrail_program::devices::{Backend, DeviceChoice};
use polyrail_program::perf::{Limit, PerfConfig};
use serde::Serialize;
use std::fs;
use std::thread::available_parallelism;

/// The machine and the options of a measurement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Setting {
    machine: Machine,
    options: Options,
}

/// Properties of a machine that affect figures.
#[derive(Clone, Debug, Serialize)]
struct Machine {
    /// Version of this program.
    polyrail: &'static str,
    /// Version of the kernel; absent if `/proc` does not show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<String>,
    architecture: &'static str,
    /// Name of the processor; absent if `/proc` does not show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<String>,
    /// Processors that this process may use.
    cpus: usize,
}

/// Options that are not part of the [shape](polyrail_program::job::Shape), by their names on the
/// command line. Each is always present, as `null` if it was not chosen and has no default.
#[derive(Clone, Debug, Serialize)]
struct Options {
    seconds: Option<f64>,
    count: Option<u64>,
    latency: bool,
    bidirectional: bool,
    timeline: bool,
    /// Time between samples over time, if it was chosen.
    interval_seconds: Option<f64>,
    fault: Vec<String>,
    /// Bytes per second of each device.
    line_rate: Option<u64>,
    inline: u32,
    /// `None`: the largest that both ports support.
    mtu: Option<u32>,
    traffic_class: u8,
    service_level: u8,
    rail_weights: &'static str,
    rail_failure: &'static str,
    qp_timeout: u8,
    stall_timeout_seconds: f64,
    rail_timeout_seconds: f64,
    answer_timeout_seconds: f64,
    cpus: Option<CpuList>,
    to: Option<String>,
    backend: Option<&'static str>,
    device: Vec<String>,
    tcp_port: Option<u16>,
    gid_index: Option<u8>,
    near: String,
    /// Where metrics go meanwhile: a thread serves or writes them.
    metrics: Option<String>,
    /// Whether a token file was given; its name and contents are not recorded.
    token_file: bool,
}

impl Setting {
    pub(super) fn new(arguments: &PerfArguments, config: &PerfConfig) -> Self {
        Self { machine: Machine::this(), options: Options::new(arguments, config) }
    }
}

impl Machine {
    fn this() -> Self {
        let read = |path| fs::read_to_string(path).ok();
        Self {
            polyrail: env!("CARGO_PKG_VERSION"),
            kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            architecture: std::env::consts::ARCH,
            cpu: read("/proc/cpuinfo").and_then(|text| cpu_name(&text)),
            cpus: available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Returns the name of the first processor in `/proc/cpuinfo`.
fn cpu_name(cpuinfo: &str) -> Option<String> {
    let (_, name) = cpuinfo.lines().find(|line| line.starts_with("model name"))?.split_once(':')?;
    Some(name.trim().to_owned())
}

/// Returns the name of weights on the command line.
fn name_of(weights: RailWeights) -> &'static str {
    let found = RailWeights::NAMES.iter().find(|(_, named)| *named == weights);
    found.map_or("", |(name, _)| name)
}

impl Options {
    fn new(arguments: &PerfArguments, config: &PerfConfig) -> Self {
        let (seconds, count) = match config.limit {
            Limit::Time(time) => (Some(time.as_secs_f64()), None),
            Limit::Count(count) => (None, Some(count)),
        };
        let DeviceChoice { backend, devices, gid_index, near, tcp_port } =
            arguments.host_devices.choice();
        Self {
            seconds,
            count,
            latency: arguments.latency,
            bidirectional: arguments.bidirectional,
            timeline: arguments.is_over_time(),
            interval_seconds: arguments.interval.map(|interval| interval.as_secs_f64()),
            fault: arguments.faults.fault.iter().map(ToString::to_string).collect(),
            line_rate: config.line_rate.map(Into::into),
            inline: config.inline,
            mtu: config.mtu.map(Mtu::bytes),
            traffic_class: config.quality.traffic_class,
            service_level: config.quality.service_level,
            rail_weights: name_of(config.rail_weights),
            rail_failure: match config.rail_repair.rail_failure {
                RailFailure::Reroute => "reroute",
                _ => "fatal",
            },
            qp_timeout: config.qp_timeout,
            stall_timeout_seconds: config.rail_repair.stall_timeout.as_secs_f64(),
            rail_timeout_seconds: config.rail_repair.rail_timeout.as_secs_f64(),
            answer_timeout_seconds: config.answer_timeout.as_secs_f64(),
            cpus: arguments.cpus.clone(),
            to: arguments.to.clone(),
            backend: backend.map(Backend::name),
            device: devices.iter().map(ToString::to_string).collect(),
            tcp_port,
            gid_index,
            near: near.unwrap_or_default().to_string(),
            metrics: arguments.metrics.as_ref().map(ToString::to_string),
            token_file: arguments.token.is_given(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_a_name_if_the_kernel_shows_one() {
        let known =
            "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) @ 2.60GHz\nmodel name\t: other\n";
        assert_eq!(cpu_name(known).as_deref(), Some("Intel(R) Xeon(R) @ 2.60GHz"));
        assert_eq!(cpu_name("processor\t: 0\nBogoMIPS\t: 50.00\n"), None);
    }
}
