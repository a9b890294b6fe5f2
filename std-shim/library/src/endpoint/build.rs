//! What an endpoint is to be.

use super::make::{Plan, make};
use super::{Endpoint, MAX_DEVICES};
use crate::backend::{ConnectOptions, DeviceError, Domain};
use polyrail_core::verbs::ImmOrder;
use polyrail_core::virtual_cq::{AttachError, TooManyCqs};
use polyrail_core::virtual_qp::{self, Config, PostRecvError, Scheme};

/// An endpoint, or a set, could not be made; nothing of it is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No device, or more than an endpoint takes.
    #[error("an endpoint of {rails} rails on {devices} devices: 1 to {MAX_DEVICES} can be")]
    Devices {
        /// Protection domains given.
        devices: usize,
        /// Rails asked for.
        rails: usize,
    },
    /// More rails than the type has room for, or none.
    #[error("{rails} rails, where 1 to {max} can be")]
    Rails {
        /// What was asked for.
        rails: usize,
        /// The const parameter `RAILS`.
        max: usize,
    },
    /// More queue pairs than a set has routes for.
    #[error("{needed} queue pairs, where up to {max} can be")]
    QueuePairs {
        /// Rails and notify queue pairs, of all virtual queue pairs together.
        needed: usize,
        /// Three quarters of the const parameter `ROUTES`.
        max: usize,
    },
    /// A device refused.
    #[error("device {device}: {source}")]
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
    /// The engine refused the configuration.
    #[error(transparent)]
    VirtualQp(#[from] virtual_qp::BuildError),
    /// DQPLB's receives could not be posted.
    #[error("posting DQPLB's receives: {0}")]
    Receives(#[source] PostRecvError),
    /// The engine refused the completion queues.
    #[error(transparent)]
    Cqs(#[from] TooManyCqs),
    /// The engine refused to route completions.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// Says what an endpoint is to be; [`build`](Self::build) makes it, and
/// [`EndpointSet::build`](super::EndpointSet::build) makes many that share completion queues.
#[derive(Clone, Copy, Debug)]
pub struct EndpointBuilder {
    pub(super) rails: usize,
    pub(super) config: Config,
    pub(super) max_inline_data: u32,
    pub(super) options: ConnectOptions,
    pub(super) always_notify_qp: bool,
}

impl Default for EndpointBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl EndpointBuilder {
    /// Four rails, SPRAY, fragments of 64 KiB, 100 messages a queue pair.
    pub fn new() -> Self {
        Self {
            rails: 4,
            config: Config::default(),
            max_inline_data: 64,
            options: ConnectOptions::default(),
            always_notify_qp: false,
        }
    }

    /// Number of rails.
    #[must_use]
    pub fn rails(self, rails: usize) -> Self {
        Self { rails, ..self }
    }

    /// How receivers are notified.
    #[must_use]
    pub fn scheme(self, scheme: Scheme) -> Self {
        self.config(Config { scheme, ..self.config })
    }

    /// Bytes of the longest fragment, a multiple of 128.
    #[must_use]
    pub fn max_msg_size(self, max_msg_size: u32) -> Self {
        self.config(Config { max_msg_size, ..self.config })
    }

    /// Everything that the engine can be told, except the number: that is given by
    /// [`build`](Self::build).
    #[must_use]
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Bytes that an inline request can have.
    #[must_use]
    pub fn max_inline_data(self, max_inline_data: u32) -> Self {
        Self { max_inline_data, ..self }
    }

    /// Packet size, timeouts and retries of the connections.
    #[must_use]
    pub fn connect_options(self, options: ConnectOptions) -> Self {
        Self { options, ..self }
    }

    /// How users' immediates travel; the same at both ends. Toward a peer that runs the reference
    /// implementation, [`ImmOrder::LittleEndian`].
    #[must_use]
    pub fn imm_order(self, imm_order: ImmOrder) -> Self {
        self.config(Config { imm_order, ..self.config })
    }

    /// Whether there is a notify queue pair also where none is needed: with DQPLB, or a single rail.
    /// Not by default.
    ///
    /// For a peer that runs the reference implementation, which always has one and connects it to the
    /// one on our card. It is with the first rail, takes one request at a time, and nothing is ever posted
    /// to it; a peer without one may connect all the same.
    #[must_use]
    pub fn always_notify_qp(self, always: bool) -> Self {
        Self { always_notify_qp: always, ..self }
    }

    /// Makes the endpoint: one completion queue for each device, deep enough for all that can be
    /// in flight; rails on the devices in turn, and on the ports of a device in turn; the notify
    /// queue pair on the first; all queue pairs in INIT, with the receives posted that DQPLB needs.
    ///
    /// With more devices than rails, the last devices stay idle.
    ///
    /// # Errors
    ///
    /// What the devices or the engine refuse.
    pub fn build<D: Domain, const RAILS: usize, const DEPTH: usize, const WRS: usize>(
        &self,
        domains: &[&D],
    ) -> Result<Endpoint<D::Qp, D::Cq, RAILS, DEPTH, WRS>, BuildError> {
        let (mut qps, cq) = make(&[Plan::new::<RAILS>(*self, domains)?])?;
        let qp = qps.pop().expect("as many as are planned");
        Ok(Endpoint { qp, cq })
    }
}
