//! Resources and limits that a side runs with.

use super::peer_timeouts::PeerTimeouts;
use super::rail_news::Reporter;
use polyrail::endpoint::EndpointBuilder;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Resources and limits that a side runs with.
#[derive(Debug)]
pub(crate) struct Environment<'a, D> {
    /// The devices of the side.
    pub(crate) domains: Vec<&'a D>,
    pub(crate) builder: &'a EndpointBuilder,
    /// How long requests of this side may make no progress.
    pub(crate) stall_timeout: Duration,
    /// Receives the events of its rails.
    pub(crate) reporter: Reporter,
    /// How long to wait for the other side; `None`: forever, since the other side is in this
    /// process.
    pub(crate) timeouts: Option<PeerTimeouts>,
    /// Set when the user wants to stop.
    pub(crate) interrupted: &'a AtomicBool,
}
