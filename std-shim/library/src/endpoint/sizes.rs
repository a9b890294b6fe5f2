//! Sizes of endpoints. Programs that need other sizes use the engine, whose types have them as
//! parameters.

use polyrail_core::virtual_qp::{MAX_RAILS, VirtualQp};

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

/// Requests of the longest queue of a device that takes `max_qp_wr`. Devices round up to a power of two; the
/// largest that the limit allows stays as it is.
pub(super) const fn largest_queue(max_qp_wr: u32) -> u32 {
    match max_qp_wr.checked_ilog2() {
        Some(log) => 1 << log,
        None => 1,
    }
}
