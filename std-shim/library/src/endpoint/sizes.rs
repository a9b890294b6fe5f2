//! How large things are.

use polyrail_core::virtual_qp::MAX_RAILS;

/// Devices, and so completion queues, of one endpoint or one set: no more than rails.
pub const MAX_DEVICES: usize = MAX_RAILS;

/// Places in an endpoint's routing table: three quarters hold the rails and the notify queue pair.
pub const ENDPOINT_ROUTES: usize = 16;
