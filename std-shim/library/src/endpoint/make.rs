//! Building planned virtual queue pairs: completion queues that are deep enough for all, queue
//! pairs, virtual queue pairs and routes.

use super::build_error::BuildError;
use super::builder::EndpointBuilder;
use super::channels::Channels;
use super::devices::Devices;
use super::place::{places, refused};
use super::qp::{DeviceNames, EndpointQp};
use super::rail_log::RailLog;
use super::sizes::{DEPTH, MAX_DEVICES, Needs};
use super::weights::Weights;
use crate::backend::{Connect, DeviceError, Domain, EventCursor, Notify, QpCap};
use crate::heal::{Cancels, Healer};
use crate::queue_pair::{Joined, Place, check_mtu, random_psn};
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{Config, RailChoice, RailFailure, RailId, Scheme, VirtualQp};
use polyrail_process::Process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of the next virtual queue pair of this process.
static NEXT_VIRTUAL_QP_NUM: AtomicU32 = AtomicU32::new(1);

/// Drivers grant up to this many times what is asked for: they round up to a power of two, and some
/// (rxe) from there to nearly the next one.
pub(crate) const MOST_GRANTED: u32 = 2;

/// The completion queues that virtual queue pairs share.
#[derive(Debug)]
pub(super) struct Common<Q, C, const ROUTES: usize> {
    /// Boxed: the routing table of a set can be large.
    pub(super) cq: Box<VirtualCq<C, MAX_DEVICES, ROUTES>>,
    pub(super) devices: Devices<Q, C>,
    /// The channels to which completion queues report events.
    pub(super) channels: Channels,
}

/// Virtual queue pairs, and their shared completion queues.
pub(super) struct Made<Q, C, const ROUTES: usize> {
    pub(super) qps: Vec<EndpointQp<Q>>,
    pub(super) common: Common<Q, C, ROUTES>,
}

/// The plan of one virtual queue pair.
pub(super) struct EndpointPlan<'d, D> {
    builder: EndpointBuilder,
    /// The devices that get rails.
    domains: &'d [&'d D],
    /// Where the queue pairs go: devices alternate, then the ports of each device; the notify queue
    /// pair is with the first rail.
    places: Vec<Place>,
    /// What decides how much each rail carries; `None`: the builder's own choice of a rail.
    weights: Option<Weights>,
}

/// Builds the planned virtual queue pairs. If a step fails, everything created before it is
/// destroyed.
pub(super) fn make<D: Domain, const ROUTES: usize>(
    plans: &[EndpointPlan<'_, D>],
) -> Result<Made<D::Qp, D::Cq, ROUTES>, BuildError> {
    // The largest routing table has as many bytes as a thread's stack, 2 MiB. `Box::new` writes it
    // there first; this does so only without optimization.
    let cq = Box::write(Box::new_uninit(), VirtualCq::EMPTY);
    let mut common = Common { cq, devices: Devices::NONE, channels: Channels::NONE };
    common.make_room(Needs::default(), plans)?;
    let names = common.devices.names();
    let make = |(index, plan): (u16, &EndpointPlan<'_, D>)| common.make(plan, index, &names);
    let qps: Result<_, _> = (0..).zip(plans).map(make).collect();
    Ok(Made { qps: qps?, common })
}

impl<Q: Connect, C: Notify, const ROUTES: usize> Common<Q, C, ROUTES> {
    /// Makes room for the plans, in addition to `taken`: a completion queue on every device, deep
    /// enough for everything that can be in flight there.
    pub(super) fn make_room<D: Domain<Qp = Q, Cq = C>>(
        &mut self,
        mut taken: Needs,
        plans: &[EndpointPlan<'_, D>],
    ) -> Result<(), BuildError> {
        plans.iter().for_each(|plan| taken.add(&plan.needs()));
        let needed = taken.queue_pairs;
        let max = VirtualCq::<C, MAX_DEVICES, ROUTES>::CAPACITY;
        if needed > max {
            return Err(BuildError::QueuePairs { needed, max, routes: ROUTES });
        }
        for domain in plans.iter().flat_map(|plan| plan.domains) {
            let entries = taken.entries.get(&domain.device_id()).copied();
            let on_it = plans.iter().filter(|plan| plan.queue_pairs_on(*domain) > 0);
            let comp_vector = on_it.filter_map(|plan| plan.builder.comp_vector).next();
            self.make_room_on(*domain, entries.unwrap_or_default(), comp_vector)?;
        }
        Ok(())
    }

    fn make_room_on<D: Domain<Qp = Q, Cq = C>>(
        &mut self,
        domain: &D,
        entries: u32,
        comp_vector: Option<u32>,
    ) -> Result<(), BuildError> {
        let refused = |source| refused(domain, source);
        let here = |cq: &&mut C| cq.device() == domain.device_id();
        let Some(cq) = self.cq.cqs_mut().iter_mut().find(here) else {
            let cq = match comp_vector {
                Some(vector) => domain.create_cq_with_channel(entries, vector),
                None => domain.create_cq(entries),
            }
            .map_err(refused)?;
            self.channels.add(&cq)?;
            self.cq.add_cq(cq)?;
            self.devices.add(domain);
            return Ok(());
        };
        if cq.capacity() < entries {
            // Doubles the depth, because otherwise each of many single additions would copy the
            // queue.
            let doubled = cq.capacity().saturating_mul(2);
            let resized = domain.resize_cq(cq, entries.max(doubled));
            resized.or_else(|_| domain.resize_cq(cq, entries)).map_err(refused)?;
        }
        Ok(())
    }

    /// Builds a virtual queue pair, and attaches it.
    pub(super) fn make<D: Domain<Qp = Q, Cq = C>>(
        &mut self,
        plan: &EndpointPlan<'_, D>,
        index: u16,
        names: &DeviceNames,
    ) -> Result<EndpointQp<Q>, BuildError> {
        let qp = plan.make(self.cq.cqs(), names)?;
        self.cq.attach(index, &*qp.qp)?;
        Ok(qp)
    }
}

impl<'d, D: Domain> EndpointPlan<'d, D> {
    /// Plans one virtual queue pair.
    pub(super) fn new(
        mut builder: EndpointBuilder,
        domains: &'d [&'d D],
    ) -> Result<Self, BuildError> {
        let rails = builder.rails;
        let mut places = places(rails, domains)?;
        builder.standby_devices.check(domains.len().min(rails))?;
        if builder.standby_devices.contains(0) {
            return Err(BuildError::StandbyFirstDevice);
        }
        let standby = builder.standby_devices.rails(&places).map(RailId::Data);
        builder.config.standby = builder.config.standby.chain(standby).collect();
        builder.options.check()?;
        for place in &places {
            let domain = domains[place.device];
            check_mtu(&place.port, &builder.options).map_err(|source| refused(domain, source))?;
        }
        let domains = &domains[..domains.len().min(rails)];
        for domain in domains {
            builder.check_queue_depth(*domain)?;
        }
        // Rail 0 and the notify queue pair may move to any device, where the engine needs queue
        // pairs of at least the same size.
        if builder.config.rail_failure == RailFailure::Reroute {
            for domain in domains {
                builder.shape = builder.shape.limited_to(domain.max_qp_wr(), domain.max_sge());
            }
        }
        builder.weights.check()?;
        let takes_turns = builder.config.rail_choice == RailChoice::RoundRobin;
        let weights = || Weights::new::<D, &D>(builder.weights, &places, domains);
        let weights = takes_turns.then(weights);
        if let Some(weights) = &weights {
            builder.config.rail_choice = rail_choice(weights, &builder.config);
        }
        let has_notify = rails > 1 && builder.config.scheme == Scheme::Spray;
        places.extend(has_notify.then_some(places[0]));
        Ok(Self { builder, domains, places, weights })
    }

    /// Returns the queue pairs and the completion queue entries that it needs.
    fn needs(&self) -> Needs {
        let entries = |domain: &&D| {
            let queue_pairs = self.queue_pairs_on(*domain) + self.guests_on(*domain);
            (domain.device_id(), queue_pairs.saturating_mul(self.entries_on(*domain)))
        };
        let entries = self.domains.iter().map(entries).collect();
        Needs { queue_pairs: self.places.len(), entries }
    }

    /// Returns the completion queue entries of one queue pair: on an error every request of both
    /// its queues completes. With several rails the engine limits the requests; with a single rail
    /// only the driver does.
    fn entries_on(&self, domain: &D) -> u32 {
        let most = if self.builder.rails > 1 {
            DEPTH as u32
        } else {
            MOST_GRANTED * self.requests_on(domain)
        };
        2 * most
    }

    /// Returns the depth that is requested for each queue of a queue pair.
    fn requests_on(&self, domain: &D) -> u32 {
        self.builder.shape.requests(domain.max_qp_wr())
    }

    fn queue_pairs_on(&self, domain: &D) -> u32 {
        let device = |place: &&Place| self.domains[place.device].device_id();
        self.places.iter().filter(|place| device(place) == domain.device_id()).count() as u32
    }

    /// Returns how many queue pairs may move to a device when their own device fails, if rails are
    /// re-routed: rail 0 and the notify queue pair, because requests wait for them.
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

    pub(super) fn make(
        &self,
        cqs: &[D::Cq],
        names: &DeviceNames,
    ) -> Result<EndpointQp<D::Qp>, BuildError> {
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
        let first = self.domains[places[0].device];
        let psn = random_psn().map_err(|source| refused(first, source))?;
        let names = Arc::clone(names);
        let idle_notify = idle.transpose()?;
        let reroutes = qp.config().rail_failure == RailFailure::Reroute;
        let healer = || Box::new(Healer::new(self.builder.healing, self.event_cursors()));
        Ok(EndpointQp {
            qp,
            idle_notify,
            names,
            needs: self.needs(),
            devices: self.domains.iter().map(|domain| domain.device_id()).collect(),
            homes: places.clone(),
            far_devices: Vec::new(),
            weights: self.weights.clone(),
            places,
            psn,
            options,
            shape: self.builder.shape,
            joined: Joined::new(),
            healer: reroutes.then(healer),
            cancels: Cancels::new(self.builder.cancel_grace),
            offers: false,
            log: RailLog::new(reroutes),
            is_end_told: false,
            protocol_error: None,
            given_up: None,
            process: Process::current(),
        })
    }

    fn event_cursors(&self) -> Vec<EventCursor> {
        self.domains.iter().map(|domain| domain.event_cursor()).collect()
    }

    fn queue_pair(&self, place: &Place, cqs: &[D::Cq]) -> Result<D::Qp, BuildError> {
        let domain = self.domains[place.device];
        self.queue_pair_of(self.builder.shape.cap(domain.max_qp_wr(), domain.max_sge()), place, cqs)
    }

    /// Creates a queue pair that is connected and not used. It is as small as possible, and its
    /// completion queue needs no room for it.
    fn idle_queue_pair(&self, place: &Place, cqs: &[D::Cq]) -> Result<D::Qp, BuildError> {
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_inline_data: 0, ..QpCap::default() };
        self.queue_pair_of(cap, place, cqs)
    }

    fn queue_pair_of(&self, cap: QpCap, place: &Place, cqs: &[D::Cq]) -> Result<D::Qp, BuildError> {
        let domain = self.domains[place.device];
        let cq = cqs.iter().find(|cq| cq.device() == domain.device_id());
        let cq = cq.expect("each device that gets rails has a completion queue");
        let refused = |source| refused(domain, source);
        let qp = domain.create_qp(cq, cap).map_err(|source| {
            let asked = cap.max_inline_data;
            let plain = QpCap { max_inline_data: 0, ..cap };
            // A driver does not report which attribute it refuses.
            let is_inline = asked > 0 && domain.create_qp(cq, plain).is_ok();
            let inline = |source| DeviceError::InlineData { asked, source: Box::new(source) };
            refused(if is_inline { inline(source) } else { source })
        })?;
        qp.init(&place.port, &self.builder.options).map_err(refused)?;
        Ok(qp)
    }
}

/// Returns the choice of a rail by these weights.
pub(super) fn rail_choice(weights: &Weights, config: &Config) -> RailChoice {
    let is_standby = |rail| config.standby.contains(RailId::Data(rail));
    match weights.bandwidth_mbps(is_standby) {
        Some(bandwidth_mbps) => RailChoice::LeastFinishTime { bandwidth_mbps },
        None => RailChoice::RoundRobin,
    }
}
