//! What a side is given to run in.

use super::patience::Patience;
use polyrail::endpoint::EndpointBuilder;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What a side is given to run in.
#[derive(Debug)]
pub(crate) struct Environment<'a, D> {
    /// Its devices.
    pub(crate) domains: Vec<&'a D>,
    pub(crate) builder: &'a EndpointBuilder,
    /// How long own requests may make no headway.
    pub(crate) stall_timeout: Duration,
    /// How long the other side is waited for; `None`: for ever, where it is in this process too.
    pub(crate) patience: Option<Patience>,
    /// Set when the user wants to stop.
    pub(crate) interrupted: &'a AtomicBool,
}
