//! The environment that a side runs in.

use super::patience::Patience;
use super::rail_news::Reporter;
use polyrail::endpoint::EndpointBuilder;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The environment that a side runs in.
#[derive(Debug)]
pub(crate) struct Environment<'a, D> {
    /// Its devices.
    pub(crate) domains: Vec<&'a D>,
    pub(crate) builder: &'a EndpointBuilder,
    /// How long its own requests may make no progress.
    pub(crate) stall_timeout: Duration,
    /// Where it tells of its rails.
    pub(crate) reporter: Reporter,
    /// How long to wait for the other side; `None`: forever, when it is in this process too.
    pub(crate) patience: Option<Patience>,
    /// Set when the user wants to stop.
    pub(crate) interrupted: &'a AtomicBool,
}
