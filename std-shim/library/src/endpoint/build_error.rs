//! What can go wrong when endpoints are made.

use super::sizes::MAX_DEVICES;
use crate::backend::{ConnectOptionError, DeviceError};
use polyrail_core::virtual_cq::{AttachError, TooManyCqs};
use polyrail_core::virtual_qp::{self, PostRecvError};

/// An endpoint, or a set, could not be made; nothing of it is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No device, or more than an endpoint takes.
    #[error(
        "an endpoint of {rails} rails on {devices} devices, but 1 to {MAX_DEVICES} devices are allowed"
    )]
    Devices {
        /// Protection domains given.
        devices: usize,
        /// Rails asked for.
        rails: usize,
    },
    /// More rails than a virtual queue pair has room for, or none.
    #[error("{rails} rails, but 1 to {max} are allowed")]
    Rails {
        /// What was asked for.
        rails: usize,
        /// How many there can be.
        max: usize,
    },
    /// More queue pairs than a set has routes for.
    #[error(
        "{needed} queue pairs, but a set with ROUTES = {routes} has room for {max}: with ROUTES = {enough} \
         there is enough",
        enough = routes_for(*needed)
    )]
    QueuePairs {
        /// Rails and notify queue pairs, of all virtual queue pairs together.
        needed: usize,
        /// How many there can be: three quarters of `routes`.
        max: usize,
        /// The const parameter `ROUTES` of the [`EndpointSet`](super::EndpointSet).
        routes: usize,
    },
    /// A queue pair cannot hold so many requests.
    #[error(
        "a queue of {asked} requests on device {device}, but with {rails} rail{} it holds {most} at most",
        if *.rails == 1 { "" } else { "s" }
    )]
    QueueDepth {
        /// The device's name.
        device: String,
        /// Rails of the virtual queue pair.
        rails: usize,
        /// What was asked for.
        asked: u32,
        /// How many there can be.
        most: u32,
    },
    /// There is no virtual queue pair of this number in the set.
    #[error("there is no virtual queue pair {number} among the {count} of the set")]
    NoMember {
        /// What was asked for.
        number: usize,
        /// How many there are.
        count: usize,
    },
    /// A value of the [`ConnectOptions`](crate::backend::ConnectOptions) does not fit its field in packets.
    #[error(transparent)]
    ConnectOption(#[from] ConnectOptionError),
    /// A device refused.
    #[error("device {device}")]
    Device {
        /// Its name.
        device: String,
        /// Why.
        source: DeviceError,
    },
    /// A device has no port that rails could take.
    #[error("device {device} has no port")]
    NoPort {
        /// The device's name.
        device: String,
    },
    /// The system gives no file descriptor to wait on.
    #[error("no file descriptor for completion channels: errno {errno}")]
    NoChannel {
        /// The system's code.
        errno: i32,
    },
    /// The engine refused the configuration.
    #[error(transparent)]
    VirtualQp(#[from] virtual_qp::BuildError),
    /// DQPLB's receives could not be posted.
    #[error("posting DQPLB's receives")]
    Receives(#[source] PostRecvError),
    /// The engine refused the completion queues.
    #[error(transparent)]
    Cqs(#[from] TooManyCqs),
    /// The engine refused to route completions.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

impl BuildError {
    pub(super) fn no_channel(error: rustix::io::Errno) -> Self {
        Self::NoChannel { errno: error.raw_os_error() }
    }
}

/// The smallest routing table with room for so many queue pairs.
fn routes_for(queue_pairs: usize) -> usize {
    let three_quarters = |routes: usize| routes - routes / 4;
    let exact = queue_pairs.next_power_of_two();
    if three_quarters(exact) < queue_pairs { 2 * exact } else { exact }
}
