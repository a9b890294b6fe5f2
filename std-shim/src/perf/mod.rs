//! Measuring: how fast requests move through a virtual queue pair on the software NIC, beside plain
//! memcpy of the same bytes.
//!
//! The figures are for comparison with each other and with memcpy in the same run: the time of a
//! machine says little by itself. Requests and copies are measured in turn, in [`ROUNDS`] rounds,
//! and the medians are reported.
//!
//! `rig` is the two endpoints and their buffers, on any [backend](crate::backend); `drive` is the loop that keeps a window of requests
//! outstanding; `memcpy` is what it is compared with.

mod drive;
mod memcpy;
mod rig;

pub use rig::PerfError;

use memcpy::Memcpy;
use polyrail_core::virtual_qp::Scheme;
use rig::Rig;
use serde::Serialize;
use std::time::Duration;

/// Rounds of one measurement. Odd, so that there is a median.
pub const ROUNDS: usize = 5;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate, notification received.
    WriteImm,
    /// RDMA READ.
    Read,
    /// SEND, received into a buffer.
    Send,
}

impl Operation {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::Send => "send",
        }
    }

    /// Whether the scheme makes a difference: it says how a receiver is notified.
    pub const fn has_scheme(self) -> bool {
        matches!(self, Self::WriteImm)
    }

    /// Whether the other side posts receives for it.
    const fn is_received(self) -> bool {
        matches!(self, Self::WriteImm | Self::Send)
    }
}

/// Who drives the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread, both ends in turn: no waiting for another processor.
    One,
    /// A thread for each end.
    Two,
}

/// How long a measurement goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many requests in all, rounded up to the same number in each round.
    Count(u64),
    /// Requests for about so long; memcpy takes the same again.
    Time(Duration),
}

/// One configuration to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfConfig {
    /// What.
    pub operation: Operation,
    /// How receivers are notified; see [`Operation::has_scheme`].
    pub scheme: Scheme,
    /// Rails of the virtual queue pair.
    pub rails: usize,
    /// Devices on either side.
    pub devices: usize,
    /// Bytes of the longest fragment.
    pub max_msg_size: u32,
    /// Bytes of one request.
    pub message_size: u32,
    /// Requests outstanding.
    pub window: u32,
    /// Who drives the two ends.
    pub threads: Threads,
    /// How long.
    pub limit: Limit,
    /// How long a rail may make no headway before it is taken for dead.
    pub stall_timeout: Duration,
}

impl Default for PerfConfig {
    /// 1 MiB WRITE_WITH_IMM over four rails with SPRAY, 8 outstanding, driven by one thread for
    /// 200 ms: what `polyrail copy` does, without the files.
    fn default() -> Self {
        Self {
            operation: Operation::WriteImm,
            scheme: Scheme::Spray,
            rails: 4,
            devices: 4,
            max_msg_size: 64 << 10,
            message_size: 1 << 20,
            window: 8,
            threads: Threads::One,
            limit: Limit::Time(Duration::from_millis(200)),
            stall_timeout: Duration::from_secs(10),
        }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Requests that were measured, all rounds together.
    pub requests: u64,
    /// Requests a second; from here on medians of the rounds.
    pub requests_per_second: f64,
    /// Payload, in GB/s (10^9 bytes a second).
    pub gigabytes_per_second: f64,
    /// Time of a request, in nanoseconds: that of a round over its requests.
    pub nanoseconds_per_request: f64,
    /// Doorbells that the sender rang for a request.
    pub doorbells_per_request: f64,
    /// Completions that the sender saw for a request.
    pub completions_per_request: f64,
    /// What memcpy moves of the same bytes, in GB/s.
    pub memcpy_gigabytes_per_second: f64,
    /// Throughput relative to memcpy.
    pub relative_to_memcpy: f64,
}

/// Measures one configuration.
///
/// # Errors
///
/// The configuration cannot be, or a rail failed.
pub fn measure(config: &PerfConfig) -> Result<Measurement, PerfError> {
    let mut rig = Rig::new(config)?;
    let mut memcpy = Memcpy::new(config.message_size as usize, rig.slots())
        .map_err(|error| PerfError::Memory(error.to_string()))?;
    rig.warm_up()?;
    memcpy.run(Limit::Count(rig.slots() as u64));
    let before = rig.sender_counters();
    let limit = match config.limit {
        Limit::Count(count) => Limit::Count(count.div_ceil(ROUNDS as u64).max(1)),
        Limit::Time(time) => Limit::Time(time / ROUNDS as u32),
    };
    let (mut requests, mut moved, mut copied) = (0, Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let round = rig.run(limit)?;
        requests += round.requests;
        moved.push(round.seconds_per_request());
        copied.push(memcpy.run(limit).seconds_per_request());
    }
    let after = rig.sender_counters();
    let (moved, copied) = (median(&mut moved), median(&mut copied));
    let bytes = f64::from(config.message_size);
    let per_request = |after: u64, before: u64| (after - before) as f64 / requests as f64;
    Ok(Measurement {
        requests,
        requests_per_second: 1.0 / moved,
        gigabytes_per_second: bytes / moved / 1e9,
        nanoseconds_per_request: moved * 1e9,
        doorbells_per_request: per_request(after.doorbells, before.doorbells),
        completions_per_request: per_request(after.completions, before.completions),
        memcpy_gigabytes_per_second: bytes / copied / 1e9,
        relative_to_memcpy: copied / moved,
    })
}

/// One round's result.
#[derive(Clone, Copy, Debug)]
struct Round {
    requests: u64,
    time: Duration,
}

impl Round {
    fn seconds_per_request(self) -> f64 {
        self.time.as_secs_f64().max(1e-9) / self.requests.max(1) as f64
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_what_the_scheme_costs() {
        let quick = PerfConfig { limit: Limit::Count(50), ..PerfConfig::default() };
        // Per request: four batches, one for each rail, and the notify.
        let spray = measure(&quick).unwrap();
        assert_eq!((spray.requests, spray.doorbells_per_request.round()), (50, 5.0));
        let dqplb = measure(&PerfConfig { scheme: Scheme::Dqplb, ..quick }).unwrap();
        assert_eq!(dqplb.doorbells_per_request.round(), 4.0);
        let send = measure(&PerfConfig { operation: Operation::Send, ..quick }).unwrap();
        assert_eq!((send.doorbells_per_request, send.completions_per_request), (1.0, 1.0));
    }

    #[test]
    fn every_operation_runs_with_one_thread_and_with_two() {
        for operation in [Operation::Write, Operation::WriteImm, Operation::Read, Operation::Send] {
            for threads in [Threads::One, Threads::Two] {
                for (rails, message_size) in [(1, 1), (3, 70_000)] {
                    let limit = Limit::Count(40);
                    let config = PerfConfig {
                        operation,
                        threads,
                        rails,
                        message_size,
                        limit,
                        devices: rails,
                        ..PerfConfig::default()
                    };
                    let measured = measure(&config).unwrap();
                    assert_eq!(measured.requests, 40, "{config:?}");
                    assert!(measured.relative_to_memcpy > 0.0);
                }
            }
        }
    }

    #[test]
    fn time_limits_end() {
        let limit = Limit::Time(Duration::from_millis(10));
        let config = PerfConfig { message_size: 4096, limit, ..PerfConfig::default() };
        assert!(measure(&config).unwrap().requests > 0);
    }

    #[test]
    fn impossible_configurations_are_refused() {
        let config = PerfConfig { rails: 9, ..PerfConfig::default() };
        assert!(matches!(measure(&config), Err(PerfError::Build(_))));
        let config = PerfConfig { window: 0, ..PerfConfig::default() };
        assert!(matches!(measure(&config), Err(PerfError::Window(0))));
    }
}
