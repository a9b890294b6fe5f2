//! Errors of building endpoints.

use super::sizes::MAX_DEVICES;
use crate::backend::{ConnectOptionError, DeviceError};
use polyrail_core::virtual_cq::{AttachError, TooManyCqs};
use polyrail_core::virtual_qp::{self, PostRecvError};

/// An endpoint or a set could not be built; everything created for it was destroyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No device, or more than an endpoint supports.
    #[error(
        "an endpoint of {rails} rails on {devices} devices, but 1 to {MAX_DEVICES} devices are allowed"
    )]
    Devices {
        /// Number of protection domains.
        devices: usize,
        /// Number of rails.
        rails: usize,
    },
    /// No rails, or more than a virtual queue pair supports.
    #[error("{rails} rails, but 1 to {max} are allowed")]
    Rails {
        /// The requested number.
        rails: usize,
        /// The maximum number.
        max: usize,
    },
    /// No rail uses a device at a position of
    /// [`standby_devices`](super::EndpointBuilder::standby_devices).
    #[error("device {position} cannot stand by: rails use {devices} devices, counted from 0")]
    StandbyDevice {
        /// The position.
        position: usize,
        /// Number of protection domains that rails use: at most one for each rail.
        devices: usize,
    },
    /// All devices were to stand by.
    #[error("all {devices} devices would stand by, and none is left for them to stand by for")]
    OnlyStandbyDevices {
        /// Number of protection domains that rails use.
        devices: usize,
    },
    /// The first device has rail 0, which cannot stand by: no other rail carries SENDs and atomics.
    #[error(
        "the first device cannot stand by, because it has rail 0, which carries SENDs and atomics"
    )]
    StandbyFirstDevice,
    /// [`device_mbps`](super::EndpointBuilder::device_mbps) has more devices than an endpoint can
    /// have.
    #[error("rates of more than {MAX_DEVICES} devices were given")]
    DeviceRates,
    /// The routing table of the set is too small.
    #[error(
        "{needed} queue pairs, but a set with ROUTES = {routes} has room for {max}: with ROUTES = {enough} \
         there is enough",
        enough = routes_for(*needed)
    )]
    QueuePairs {
        /// Rails and notify queue pairs of all virtual queue pairs.
        needed: usize,
        /// The maximum number: three quarters of `routes`.
        max: usize,
        /// The const parameter `ROUTES` of the [`EndpointSet`](super::EndpointSet).
        routes: usize,
    },
    /// The requested queue depth is over the limit.
    #[error(
        "the queue depth is {asked}, but device {device} allows at most {most} with {rails} rail{}",
        if *.rails == 1 { "" } else { "s" }
    )]
    QueueDepth {
        /// The device's name.
        device: String,
        /// Number of rails of the virtual queue pair.
        rails: usize,
        /// The requested depth.
        asked: u32,
        /// The maximum depth.
        most: u32,
    },
    /// The set has no virtual queue pair with this number.
    #[error("the set has no virtual queue pair {number}: it has {count}")]
    NoMember {
        /// The requested number.
        number: usize,
        /// Number of virtual queue pairs in the set.
        count: usize,
    },
    /// A value of [`ConnectOptions`](crate::backend::ConnectOptions) does not fit its field.
    #[error(transparent)]
    ConnectOption(#[from] ConnectOptionError),
    /// A device refused.
    #[error("device {device}")]
    Device {
        /// Its name.
        device: String,
        /// The device's error.
        source: DeviceError,
    },
    /// A device has no usable port.
    #[error("device {device} has no usable port")]
    NoPort {
        /// The device's name.
        device: String,
    },
    /// The operating system has no file descriptor for waiting.
    #[error("cannot create a file descriptor to wait for completion channels: errno {errno}")]
    NoChannel {
        /// The operating system's error code.
        errno: i32,
    },
    /// The engine refused the configuration.
    #[error(transparent)]
    VirtualQp(#[from] virtual_qp::BuildError),
    /// DQPLB's receives could not be posted.
    #[error("cannot post DQPLB's receives")]
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

/// Returns the size of the smallest routing table with room for this number of queue pairs.
fn routes_for(queue_pairs: usize) -> usize {
    let three_quarters = |routes: usize| routes - routes / 4;
    let exact = queue_pairs.next_power_of_two();
    if three_quarters(exact) < queue_pairs { 2 * exact } else { exact }
}
