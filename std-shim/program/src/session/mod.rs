//! What two sides that have met have in common, whether they copy a file or measure: what they run
//! in, how each listens to the other while data moves over the rails, how long it waits for it, and
//! what can go wrong.

mod counterpart;
mod error;
mod patience;

pub(crate) use counterpart::{Counterpart, expect_asker, tell_failure};
pub(crate) use error::Failure;
pub use error::SessionError;
pub use patience::Patience;

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
