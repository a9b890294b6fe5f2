//! What is to be measured, and how.

use super::ends;
use super::error::PerfError;
use crate::job::{Operation, Shape, Workload};
use crate::session::Patience;
use polyrail::backend::ConnectOptions;
use polyrail::endpoint::EndpointBuilder;
use polyrail::virtual_qp::Scheme;
use std::time::Duration;

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
    /// Requests for about so long; memcpy takes the same again, up to a second for each round.
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
    /// Devices on either side, in one process. Between two hosts, they are those that are given.
    pub devices: usize,
    /// Bytes of the longest fragment.
    pub max_msg_size: u32,
    /// Bytes of one request.
    pub message_size: u32,
    /// Requests outstanding.
    pub window: u32,
    /// Who drives the two ends, in one process. Two hosts have a thread each.
    pub threads: Threads,
    /// How long.
    pub limit: Limit,
    /// Code of the time that an acknowledgement is waited for before packets are sent again; see
    /// [`ConnectOptions::timeout`](polyrail::backend::ConnectOptions::timeout).
    pub qp_timeout: u8,
    /// How long a rail may make no headway before it is taken for dead.
    pub stall_timeout: Duration,
    /// How long the far end on another host may take to connect, and for each answer while the two ends
    /// meet and part.
    pub answer_timeout: Duration,
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
            qp_timeout: ConnectOptions::default().timeout,
            stall_timeout: Duration::from_secs(10),
            answer_timeout: Patience::default().answer,
        }
    }
}

impl PerfConfig {
    /// How requests go.
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
        Workload::new(self.operation, self.message_size, self.window).map_err(PerfError::Workload)
    }

    pub(super) fn builder(&self) -> EndpointBuilder {
        // The requester's; the far end has no requests.
        let options = ConnectOptions { timeout: self.qp_timeout, ..ends::connect_options() };
        ends::builder(self.operation, self.rails, self.scheme, self.max_msg_size)
            .connect_options(options)
    }
}
