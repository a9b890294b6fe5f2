//! From plans to queue pairs: completion queues that are deep enough for all of them, queue pairs,
//! virtual queue pairs and routes.

use super::build_error::BuildError;
use super::builder::EndpointBuilder;
use super::devices::Devices;
use super::healing::Healer;
use super::place::{Place, places, refused};
use super::qp::{DeviceNames, EndpointQp};
use super::rail_log::RailLog;
use super::sizes::{MAX_DEVICES, most_requests};
use crate::backend::{Connect, Domain, EventCursor, QpCap};
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{Config, RailFailure, Scheme, VirtualQp};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of this process's next virtual queue pair.
static NEXT_VIRTUAL_QP_NUM: AtomicU32 = AtomicU32::new(1);

/// Drivers grant up to this many times what is asked for: they round up to a power of two, and some
/// (rxe) from there to nearly the next one.
pub(crate) const MOST_GRANTED: u32 = 2;

/// Virtual queue pairs, and the completion queue and the devices that they share.
pub(super) struct Made<Q, C, const ROUTES: usize> {
    pub(super) qps: Vec<EndpointQp<Q>>,
    /// Boxed: the routing table of a set can be large.
    pub(super) cq: Box<VirtualCq<C, MAX_DEVICES, ROUTES>>,
    pub(super) devices: Devices<Q, C>,
}

/// One virtual queue pair that is to be made.
pub(super) struct EndpointPlan<'d, D> {
    builder: EndpointBuilder,
    /// Those that get rails.
    domains: &'d [&'d D],
    /// Where the queue pairs go: devices alternate, then the ports of each device; the notify queue
    /// pair is with the first rail.
    places: Vec<Place>,
}

/// Makes what is planned. If something is refused, nothing is left of it.
pub(super) fn make<D: Domain, const ROUTES: usize>(
    plans: &[EndpointPlan<'_, D>],
) -> Result<Made<D::Qp, D::Cq, ROUTES>, BuildError> {
    let needed = plans.iter().map(|plan| plan.places.len()).sum();
    let max = VirtualCq::<D::Cq, MAX_DEVICES, ROUTES>::CAPACITY;
    if needed > max {
        return Err(BuildError::QueuePairs { needed, max, routes: ROUTES });
    }
    let domains = devices(plans);
    let cqs = domains.iter().map(|domain| completion_queue(*domain, plans));
    let mut cq = Box::new(VirtualCq::EMPTY);
    for own in cqs.collect::<Result<Vec<_>, _>>()? {
        cq.add_cq(own)?;
    }
    let name = |domain: &&D| (domain.device_id(), domain.device_name().to_owned());
    let names: DeviceNames = domains.iter().map(name).collect();
    let make = |plan: &EndpointPlan<'_, D>| plan.make(cq.cqs(), &names);
    let qps: Vec<EndpointQp<_>> = plans.iter().map(make).collect::<Result<_, _>>()?;
    for (index, qp) in (0..).zip(&qps) {
        cq.attach(index, &*qp.qp)?;
    }
    Ok(Made { qps, cq, devices: Devices::new(&domains) })
}

/// The devices that get rails, each once.
fn devices<'d, D: Domain>(plans: &[EndpointPlan<'d, D>]) -> Vec<&'d D> {
    let mut devices: Vec<&D> = Vec::new();
    for &domain in plans.iter().flat_map(|plan| plan.domains) {
        if !devices.iter().any(|known| known.device_id() == domain.device_id()) {
            devices.push(domain);
        }
    }
    devices
}

/// A completion queue for everything that can be in flight on a device.
fn completion_queue<D: Domain>(
    domain: &D,
    plans: &[EndpointPlan<'_, D>],
) -> Result<D::Cq, BuildError> {
    let qps = |plan: &EndpointPlan<'_, D>| plan.queue_pairs_on(domain) + plan.guests_on(domain);
    let qps: u32 = plans.iter().map(qps).sum();
    // On an error every request of both queues of a queue pair completes.
    let entries = 2 * MOST_GRANTED * most_requests(domain.max_qp_wr());
    domain.create_cq(qps.saturating_mul(entries)).map_err(|source| refused(domain, source))
}

impl<'d, D: Domain> EndpointPlan<'d, D> {
    /// Plans one virtual queue pair.
    pub(super) fn new(builder: EndpointBuilder, domains: &'d [&'d D]) -> Result<Self, BuildError> {
        let rails = builder.rails;
        let mut places = places(rails, domains)?;
        builder.check_options()?;
        let has_notify = rails > 1 && builder.config.scheme == Scheme::Spray;
        places.extend(has_notify.then_some(places[0]));
        Ok(Self { builder, domains: &domains[..domains.len().min(rails)], places })
    }

    fn queue_pairs_on(&self, domain: &D) -> u32 {
        let device = |place: &&Place| self.domains[place.device].device_id();
        self.places.iter().filter(|place| device(place) == domain.device_id()).count() as u32
    }

    /// Queue pairs that may come to a device when their own is gone, if rails are re-routed: rail 0 and the
    /// notify queue pair, which requests wait for.
    fn guests_on(&self, domain: &D) -> u32 {
        let rails = self.builder.rails;
        let is_here = |place: &Place| self.domains[place.device].device_id() == domain.device_id();
        if self.builder.config.rail_failure != RailFailure::Reroute
            || self.queue_pairs_on(domain) == 0
        {
            return 0;
        }
        let needed = self.places.iter().take(1).chain(self.places.get(rails));
        needed.filter(|place| !is_here(place)).count() as u32
    }

    fn make(&self, cqs: &[D::Cq], names: &DeviceNames) -> Result<EndpointQp<D::Qp>, BuildError> {
        let rails = self.builder.rails;
        let options = self.builder.options;
        let make = |place: &Place| self.queue_pair(place, cqs);
        let data = self.places[..rails].iter().map(make).collect::<Result<Vec<_>, _>>()?;
        let notify = self.places.get(rails).map(make).transpose()?;
        let virtual_qp_num = NEXT_VIRTUAL_QP_NUM.fetch_add(1, Ordering::Relaxed);
        let config = Config { virtual_qp_num, ..self.builder.config };
        let mut qp = Box::new(VirtualQp::new(config, data, notify)?);
        qp.prepare_receives().map_err(BuildError::Receives)?;
        let idle = self.builder.always_notify_qp && self.places.len() == rails;
        let idle = idle.then(|| self.idle_queue_pair(&self.places[0], cqs));
        let places = self.places.clone();
        let names = Arc::clone(names);
        let idle_notify = idle.transpose()?;
        let reroutes = qp.config().rail_failure == RailFailure::Reroute;
        let healing = self.builder.healing.filter(|_| reroutes);
        Ok(EndpointQp {
            qp,
            idle_notify,
            names,
            devices: self.domains.iter().map(|domain| domain.device_id()).collect(),
            homes: places.clone(),
            far_devices: Vec::new(),
            places,
            psn: random_psn(),
            options,
            max_inline_data: self.builder.max_inline_data,
            connected: false,
            healer: healing.map(|healing| Box::new(Healer::new(healing, self.event_cursors()))),
            log: RailLog::new(),
            given_up: None,
        })
    }

    fn event_cursors(&self) -> Vec<EventCursor> {
        self.domains.iter().map(|domain| domain.event_cursor()).collect()
    }

    fn queue_pair(&self, place: &Place, cqs: &[D::Cq]) -> Result<D::Qp, BuildError> {
        let most = most_requests(self.domains[place.device].max_qp_wr());
        let max_inline_data = self.builder.max_inline_data;
        let cap = QpCap { max_send_wr: most, max_recv_wr: most, max_inline_data };
        self.queue_pair_of(cap, place, cqs)
    }

    /// One that is connected and not used: it takes as little as possible, and its completion queue
    /// needs no room for it.
    fn idle_queue_pair(&self, place: &Place, cqs: &[D::Cq]) -> Result<D::Qp, BuildError> {
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_inline_data: 0 };
        self.queue_pair_of(cap, place, cqs)
    }

    fn queue_pair_of(&self, cap: QpCap, place: &Place, cqs: &[D::Cq]) -> Result<D::Qp, BuildError> {
        let domain = self.domains[place.device];
        let cq = cqs.iter().find(|cq| cq.device() == domain.device_id());
        let cq = cq.expect("each device that gets rails has a completion queue");
        let refused = |source| refused(domain, source);
        let qp = domain.create_qp(cq, cap).map_err(refused)?;
        qp.init(&place.port, &self.builder.options).map_err(refused)?;
        Ok(qp)
    }
}

/// A first packet sequence number that old packets of other connections will not match.
pub(crate) fn random_psn() -> u32 {
    RandomState::new().build_hasher().finish() as u32 & 0x00ff_ffff
}
