//! Making an endpoint: completion queues, queue pairs, virtual queue pair and routes in one call.

use super::{Endpoint, MAX_DEVICES, Place};
use crate::backend::{Connect, ConnectOptions, DeviceError, Domain, Port, QpCap};
use polyrail_core::verbs::DeviceId;
use polyrail_core::virtual_cq::{AttachError, TooManyCqs, VirtualCq};
use polyrail_core::virtual_qp::{self, Config, PostError, Scheme, VirtualQp};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of a process's next virtual queue pair.
static NEXT_VIRTUAL_QP_NUM: AtomicU32 = AtomicU32::new(1);

/// An endpoint could not be made; nothing of it is left.
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
    Receives(#[source] PostError),
    /// The engine refused the completion queues.
    #[error(transparent)]
    Cqs(#[from] TooManyCqs),
    /// The engine refused to route completions.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// Says what an endpoint is to be; [`build`](Self::build) makes it.
#[derive(Clone, Copy, Debug)]
pub struct EndpointBuilder {
    rails: usize,
    config: Config,
    max_inline_data: u32,
    options: ConnectOptions,
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
        let (rails, devices) = (self.rails, domains.len());
        if !(1..=RAILS).contains(&rails) {
            return Err(BuildError::Rails { rails, max: RAILS });
        }
        if !(1..=MAX_DEVICES).contains(&devices) {
            return Err(BuildError::Devices { devices, rails });
        }
        let domains = &domains[..devices.min(rails)];
        let has_notify = rails > 1 && self.config.scheme == Scheme::Spray;
        let places = places(domains, rails, has_notify)?;
        let maker = QpMaker { builder: self, depth: DEPTH as u32 };
        let cqs = maker.completion_queues(domains, &places)?;
        let on = |place: &Place| maker.queue_pair(domains[place.device], &cqs[place.device], place);
        let data = places[..rails].iter().map(on).collect::<Result<Vec<_>, _>>()?;
        let notify = places.get(rails).map(on).transpose()?;

        let virtual_qp_num = NEXT_VIRTUAL_QP_NUM.fetch_add(1, Ordering::Relaxed);
        let config = Config { virtual_qp_num, ..self.config };
        let mut qp = Box::new(VirtualQp::new(config, data, notify)?);
        qp.prepare_receives().map_err(BuildError::Receives)?;
        let mut cq = VirtualCq::new(cqs)?;
        cq.attach(0, &*qp)?;
        let name = |domain: &&D| (domain.device_id(), domain.device_name().to_owned());
        let devices: Vec<(DeviceId, String)> = domains.iter().map(name).collect();
        Ok(Endpoint { qp, cq, devices, places, psn: random_psn(), options: self.options })
    }
}

/// Where the queue pairs go: devices alternate, then the ports of each device; the notify queue
/// pair is with the first rail.
fn places<D: Domain>(
    domains: &[&D],
    rails: usize,
    has_notify: bool,
) -> Result<Vec<Place>, BuildError> {
    let ports = domains.iter().map(|domain| ports(*domain)).collect::<Result<Vec<_>, _>>()?;
    let place = |rail: usize| {
        let (device, turn) = (rail % domains.len(), rail / domains.len());
        Place { device, port: ports[device][turn % ports[device].len()] }
    };
    Ok((0..rails).chain(has_notify.then_some(0)).map(place).collect())
}

/// The ports of a device; at least one.
fn ports<D: Domain>(domain: &D) -> Result<Vec<Port>, BuildError> {
    let ports = domain.ports().map_err(|source| refused(domain, source))?;
    if ports.is_empty() {
        return Err(BuildError::NoPort { device: domain.device_name().to_owned() });
    }
    Ok(ports)
}

/// Makes the physical queues of one endpoint.
struct QpMaker<'b> {
    builder: &'b EndpointBuilder,
    /// Requests in flight on one queue pair, each way.
    depth: u32,
}

/// Drivers grant up to so many times what is asked for: they round up to a power of two, and some
/// (rxe) from there to nearly the next one.
const MOST_GRANTED: u32 = 2;

impl QpMaker<'_> {
    fn completion_queues<D: Domain>(
        &self,
        domains: &[&D],
        places: &[Place],
    ) -> Result<Vec<D::Cq>, BuildError> {
        let on_device = |(device, domain): (usize, &&D)| {
            let qps = places.iter().filter(|place| place.device == device).count() as u32;
            // On an error every request of both queues of a queue pair completes.
            let capacity = qps * 2 * MOST_GRANTED * self.cap(*domain).max_send_wr;
            domain.create_cq(capacity).map_err(|source| refused(*domain, source))
        };
        domains.iter().enumerate().map(on_device).collect()
    }

    fn cap<D: Domain>(&self, domain: &D) -> QpCap {
        // Devices round up to a power of two; the largest that the limit allows stays as it is.
        let depth = self.depth.min(1 << domain.max_qp_wr().max(1).ilog2());
        let max_inline_data = self.builder.max_inline_data;
        QpCap { max_send_wr: depth, max_recv_wr: depth, max_inline_data }
    }

    fn queue_pair<D: Domain>(
        &self,
        domain: &D,
        cq: &D::Cq,
        place: &Place,
    ) -> Result<D::Qp, BuildError> {
        let refused = |source| refused(domain, source);
        let mut qp = domain.create_qp(cq, self.cap(domain)).map_err(refused)?;
        qp.init(&place.port, &self.builder.options).map_err(refused)?;
        Ok(qp)
    }
}

fn refused<D: Domain>(domain: &D, source: DeviceError) -> BuildError {
    BuildError::Device { device: domain.device_name().to_owned(), source }
}

/// A first packet sequence number that old packets of other connections will not match.
fn random_psn() -> u32 {
    RandomState::new().build_hasher().finish() as u32 & 0x00ff_ffff
}
