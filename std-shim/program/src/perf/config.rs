//! The configuration of a measurement.

use super::ends;
use super::error::PerfError;
use crate::job::{MAX_IN_FLIGHT_OVER_RAILS, MAX_INLINE, Operation, Shape, Workload, WorkloadError};
use crate::session::{PeerTimeouts, QualityOfService, RailRepair};
use polyrail::backend::{ConnectOptions, Mtu};
use polyrail::endpoint::{EndpointBuilder, RailWeights};
use polyrail::p2p::P2pBuilder;
use polyrail::virtual_qp::{RailFailure, Scheme};
use std::num::NonZeroU64;
use std::time::Duration;

/// Which threads drive the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread drives both ends in turn, and never waits for another processor.
    One,
    /// A thread for each end.
    Two,
}

/// When a measurement ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After this many requests in all, rounded up to the same number in each round.
    Count(u64),
    /// After about this time. memcpy takes the same time again, but at most one second in each
    /// round.
    Time(Duration),
}

/// One configuration to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfConfig {
    /// The operation to measure.
    pub operation: Operation,
    /// How receivers are notified; see [`Operation::has_scheme`].
    pub scheme: Scheme,
    /// Number of rails of the virtual queue pair.
    pub rails: usize,
    /// Number of devices on each side, within one process. Between two hosts, the caller passes the
    /// devices.
    pub devices: usize,
    /// Rate of each device in bytes per second, within one process. `None`: unlimited.
    pub line_rate: Option<NonZeroU64>,
    /// Maximum length of a fragment in bytes.
    pub max_msg_size: u32,
    /// Size of one request in bytes.
    pub message_size: u32,
    /// Requests in flight, in each direction.
    pub window: u32,
    /// Whether both ends send at the same time.
    pub bidirectional: bool,
    /// Maximum length of an inline request in bytes, for operations that [support
    /// it](Operation::has_inline); 0: no request is inline.
    pub inline: u32,
    /// Path MTU. `None`: the largest that both ports support.
    pub mtu: Option<Mtu>,
    /// Which threads drive the two ends within one process. Between two hosts, each has one thread.
    pub threads: Threads,
    /// When the measurement ends.
    pub limit: Limit,
    /// Code of the time after which unacknowledged packets are sent again; see
    /// [`ConnectOptions::timeout`](polyrail::backend::ConnectOptions::timeout).
    pub qp_timeout: u8,
    /// How the network treats the packets of the end that posts.
    pub quality: QualityOfService,
    /// What decides how much of what the end that posts sends each rail carries.
    pub rail_weights: RailWeights,
    /// What happens to rails that fail.
    pub rail_repair: RailRepair,
    /// How long to wait for a far end on another host to connect, and for each of its messages
    /// while the two ends set up and end the measurement.
    pub answer_timeout: Duration,
}

impl Default for PerfConfig {
    /// 1 MiB WRITE_WITH_IMM over four rails with SPRAY, 8 in flight, driven by one thread for
    /// 200 ms: what `polyrail copy` does, without the files.
    fn default() -> Self {
        Self {
            operation: Operation::WriteImm,
            scheme: Scheme::Spray,
            rails: 4,
            devices: 4,
            line_rate: None,
            max_msg_size: 64 << 10,
            message_size: 1 << 20,
            window: 8,
            bidirectional: false,
            inline: 0,
            mtu: None,
            threads: Threads::One,
            limit: Limit::Time(Duration::from_millis(200)),
            qp_timeout: ConnectOptions::default().timeout,
            quality: QualityOfService::default(),
            rail_weights: RailWeights::default(),
            rail_repair: RailRepair::default(),
            answer_timeout: PeerTimeouts::default().answer,
        }
    }
}

impl PerfConfig {
    /// Returns how requests are sent.
    pub fn shape(&self) -> Shape {
        Shape {
            scheme: self.operation.scheme_of(self.scheme, self.rails),
            rails: self.rails,
            devices: self.devices,
            max_msg_size: self.max_msg_size,
            message_size: self.message_size.into(),
            window: self.window.into(),
        }
    }

    pub(super) fn workload(&self) -> Result<Workload, PerfError> {
        let Self { operation, message_size, window, bidirectional, inline, rails, .. } = *self;
        let workload = Workload::new(operation, message_size, window)?;
        let workload = Workload { bidirectional, inline, ..workload };
        if inline > MAX_INLINE {
            return Err(WorkloadError::Inline(inline).into());
        }
        if rails > 1 && window > MAX_IN_FLIGHT_OVER_RAILS {
            return Err(WorkloadError::Window(window).into());
        }
        let is_rerouted =
            self.rail_repair.rail_failure == RailFailure::Reroute && operation != Operation::P2p;
        if rails > 1 && workload.is_inline() && is_rerouted {
            return Err(WorkloadError::InlineReroutes { rails }.into());
        }
        if rails > 1 && self.rail_weights == RailWeights::Measured && !is_rerouted {
            return Err(WorkloadError::MeasuredWeights.into());
        }
        Ok(workload)
    }

    /// Returns the workload of a measurement that does not support both directions at once.
    pub(super) fn workload_of_one_direction(&self) -> Result<Workload, PerfError> {
        match self.workload()? {
            Workload { bidirectional: true, .. } => Err(WorkloadError::OneDirection.into()),
            workload => Ok(workload),
        }
    }

    /// Returns the workload of a latency measurement: requests that are answered, or that are round
    /// trips by themselves.
    pub(super) fn workload_of_round_trips(&self) -> Result<Workload, PerfError> {
        let workload = self.workload_of_one_direction()?;
        let Self { operation, message_size: size, rails, max_msg_size, .. } = *self;
        if operation == Operation::Write && rails > 1 && size > max_msg_size {
            return Err(WorkloadError::SplitWrite { size, rails, max_msg_size }.into());
        }
        Ok(Workload { answered: !operation.fetches(), ..workload })
    }

    pub(super) fn builder(&self, workload: &Workload) -> EndpointBuilder {
        let builder = ends::builder(workload, self.rails, self.scheme, self.max_msg_size)
            .connect_options(self.connect_options())
            .rail_weights(self.rail_weights);
        self.rail_repair.chosen(builder, self.rails)
    }

    pub(super) fn p2p_builder(&self, workload: &Workload) -> P2pBuilder {
        ends::p2p_builder(workload, self.rails, self.connect_options())
            .rail_weights(self.rail_weights)
    }

    /// Returns the options of the end that posts. The far end posts only if requests are answered.
    fn connect_options(&self) -> ConnectOptions {
        let options = ConnectOptions { timeout: self.qp_timeout, ..ends::connect_options() };
        let options = self.mtu.map_or(options, |mtu| options.with_path_mtu(mtu));
        self.quality.chosen(options)
    }
}
