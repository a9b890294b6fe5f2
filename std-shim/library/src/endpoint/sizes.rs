//! Sizes of endpoints. Programs that need other sizes use the engine, whose types have them as
//! parameters.

use crate::backend::QpCap;
use polyrail_core::verbs::DeviceId;
use polyrail_core::virtual_qp::{MAX_RAILS, VirtualQp};
use std::collections::HashMap;

/// Maximum devices, and so completion queues, of one endpoint or set: one per rail.
pub const MAX_DEVICES: usize = MAX_RAILS;

/// Maximum requests in flight per rail and direction: enough to keep NICs busy, and few enough that
/// a completion queue has room for all of them.
pub const DEPTH: usize = 128;

/// Maximum unreported virtual requests per direction.
pub const WRS: usize = 256;

/// Size of an endpoint's routing table: three quarters hold the rails and the notify queue pair.
pub const ENDPOINT_ROUTES: usize = 16;

/// Default size of a set's routing table: 6144 entries hold rails and notify queue pairs, for
/// example those of 1228 virtual queue pairs with four rails each. It takes about 300 KB.
pub const SET_ROUTES: usize = 8192;

/// The engine's virtual queue pair with the sizes of an endpoint.
pub type EngineQp<Q> = VirtualQp<Q, MAX_RAILS, DEPTH, WRS>;

/// Requests that one queue of a queue pair is asked to hold, on a device that takes `max_qp_wr`.
pub(crate) fn most_requests(max_qp_wr: u32) -> u32 {
    (DEPTH as u32).min(largest_queue(max_qp_wr))
}

/// Requests of the longest queue of a device that takes `max_qp_wr`. Devices round up to a power of
/// two; the largest that the limit allows stays as it is.
pub(super) const fn largest_queue(max_qp_wr: u32) -> u32 {
    match max_qp_wr.checked_ilog2() {
        Some(log) => 1 << log,
        None => 1,
    }
}

/// What all queue pairs of an endpoint are made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes that an inline request can have.
    pub(super) max_inline_data: u32,
    /// Buffers that a request or receive can have, if the device takes as many.
    pub(super) max_sge: u32,
    /// Requests that each queue holds at least.
    pub(super) queue_depth: u32,
    /// Requests that each queue is asked to hold at most.
    pub(super) max_wr: u32,
}

impl Shape {
    /// Requests that a queue is asked to hold, on a device that takes `max_qp_wr`.
    pub(super) fn requests(self, max_qp_wr: u32) -> u32 {
        most_requests(max_qp_wr).max(self.queue_depth).min(self.max_wr)
    }

    /// Limits queue pairs to what a device supports that takes `max_qp_wr` requests in a queue, and
    /// `max_sge` buffers of a request.
    pub(super) fn limited_to(self, max_qp_wr: u32, max_sge: u32) -> Self {
        let max_wr = self.max_wr.min(largest_queue(max_qp_wr));
        Self { max_sge: self.max_sge.min(max_sge), max_wr, ..self }
    }

    /// What to ask a device for that takes no more requests in a queue, and buffers of a request.
    pub(super) fn cap(self, max_qp_wr: u32, max_sge: u32) -> QpCap {
        let most = self.requests(max_qp_wr);
        let buffers = self.max_sge.min(max_sge).max(1);
        QpCap {
            max_send_wr: most,
            max_recv_wr: most,
            max_inline_data: self.max_inline_data,
            max_send_sge: buffers,
            max_recv_sge: buffers,
        }
    }
}

/// What virtual queue pairs take of what they share.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Of the routing table.
    pub(super) queue_pairs: usize,
    /// Of the completion queue of each device.
    pub(super) entries: HashMap<DeviceId, u32>,
}

impl Needs {
    pub(super) fn add(&mut self, other: &Self) {
        self.queue_pairs += other.queue_pairs;
        for (device, entries) in &other.entries {
            let all = self.entries.entry(*device).or_default();
            *all = all.saturating_add(*entries);
        }
    }
}
