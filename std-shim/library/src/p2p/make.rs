//! Building members: queue pairs, pools, memory and the two ends.

use super::builder::P2pBuilder;
use super::error::P2pBuildError;
use super::member::P2pMember;
use super::message::{End, QueuePairId};
use super::pools::{ACCOUNT, Pools};
use super::rail_log::RailLog;
use super::sizes::{EngineReceiver, EngineSender, PageWords, RAILS, receiver_index, sender_index};
use crate::backend::{Connect, ConnectOptions, Connecting, DeviceError, Domain, Port, QpCap};
use crate::endpoint::{MOST_GRANTED, Weights, most_requests, refused};
use crate::heal::{Cancels, Healer, SilenceWatch};
use crate::memory::{Pages, RegionKeys};
use crate::queue_pair::{Joined, Place, RailAddress, random_psn, steps};
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::p2p::{Mask, Pool, ReceiverConfig, Region, SenderConfig, SplitPolicy};
use polyrail_core::verbs::{AccessFlags, DeviceKeys};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number that distinguishes the next member from all other connections of this process. It is
/// above the numbers of virtual queue pairs, which have 32 bits, so that one source of metrics can
/// have connections of both kinds.
static NEXT_ID: AtomicU64 = AtomicU64::new(1 << 32);

type Receiving<D> = Box<EngineReceiver<<D as Domain>::Qp, <D as Domain>::Srq>>;

/// The options and devices from which members, and their shared queues, are built.
pub(super) struct Make<'d, D> {
    pub(super) builder: &'d P2pBuilder,
    /// The devices that get rails.
    pub(super) domains: &'d [D],
    /// The places of the queue pairs of one direction.
    pub(super) places: &'d [Place],
}

impl<D: Domain> Make<'_, D> {
    /// Builds a member on existing completion queues and pools.
    pub(super) fn member(
        &self,
        cqs: &[D::Cq],
        pools: &mut Pools<D::Srq>,
        number: u16,
    ) -> Result<P2pMember<D>, P2pBuildError> {
        let first = &self.domains[self.places[0].device];
        let psn = random_psn().map_err(|source| refused(first, source))?;
        let mut regions = Vec::new();
        let sends = self.builder.has(End::Sender);
        let weights = self.weights().filter(|_| sends);
        let sender = || self.sender(cqs, (number, weights.as_ref()), &mut regions);
        let sender = sends.then(sender).transpose()?;
        let receives = self.builder.has(End::Receiver);
        let receiver =
            receives.then(|| self.receiver(cqs, pools, (number, psn), &mut regions)).transpose()?;
        let first = sender.as_ref().and_then(|sender| sender.queue_pairs().next());
        let first = first.or_else(|| receiver.as_ref()?.queue_pairs().next());
        let qp = first.map_or(0, QueuePair::qp_num);
        let name = |domain: &D| (domain.device_id(), domain.device_name().to_owned());
        Ok(P2pMember {
            sender,
            receiver,
            number,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            places: self.places.to_vec(),
            rails: self.builder.rails,
            psn,
            options: self.builder.options,
            min_rails: self.builder.min_rails,
            weights,
            joined: Joined::new(),
            names: self.domains.iter().map(name).collect(),
            log: RailLog::new(qp, self.builder.healing.rail_timeout),
            healer: self.healer(),
            cancels: Cancels::new(self.builder.cancel_grace),
            flush_silence: SilenceWatch::new(),
            regions,
        })
    }

    // Outlined, because each of the two ends has 130 KB, and debug builds keep several copies on
    // the stack until an end is in its box. The copies of both ends must not be there together.
    #[inline(never)]
    fn sender(
        &self,
        cqs: &[D::Cq],
        (number, weights): (u16, Option<&Weights>),
        regions: &mut Vec<D::Region>,
    ) -> Result<Box<EngineSender<D::Qp>>, P2pBuildError> {
        let ring = self.region(EngineSender::<D::Qp>::REGION_WORDS, regions)?;
        let made = EngineSender::new(self.sender_config(number, weights), self.sending(cqs)?, ring);
        Ok(Box::new(made?))
    }

    #[inline(never)]
    fn receiver(
        &self,
        cqs: &[D::Cq],
        pools: &mut Pools<D::Srq>,
        (number, psn): (u16, u32),
        regions: &mut Vec<D::Region>,
    ) -> Result<Receiving<D>, P2pBuildError> {
        let records = self.region(EngineReceiver::<D::Qp, D::Srq>::REGION_WORDS, regions)?;
        let receiving = self.receiving(cqs, pools)?;
        let flushing = self.flushing(cqs, psn)?;
        // Last, so that a driver's error does not lose the accounts. An error of the engine below
        // loses them, but the engine would refuse every member alike.
        let accounts = pools.open().map_err(|(at, source)| {
            let device = self.domains[at].device_name().to_owned();
            P2pBuildError::Pool { device, source }
        })?;
        let config = self.receiver_config(number);
        let made = EngineReceiver::new(config, receiving, flushing, accounts, records);
        Ok(Box::new(made?))
    }

    fn healer(&self) -> Option<Box<Healer<QueuePairId, D::Qp, RAILS>>> {
        let cursors = || self.domains.iter().map(Domain::event_cursor).collect();
        let healer = || Box::new(Healer::new(self.builder.healing, cursors()));
        self.builder.reroutes.then(healer)
    }

    /// Returns what decides how much each rail carries; `None`: the builder's own split.
    fn weights(&self) -> Option<Weights> {
        let P2pBuilder { rails, split, weights, .. } = *self.builder;
        let homes = &self.places[..rails];
        let weights = || Weights::new::<D, D>(weights, homes, self.domains);
        (split == SplitPolicy::Even).then(weights)
    }

    fn sender_config(&self, number: u16, weights: Option<&Weights>) -> SenderConfig {
        let P2pBuilder { split, split_threshold, separate_signal, entry_form, .. } = *self.builder;
        SenderConfig {
            virtual_qp_num: sender_index(number).into(),
            rails: self.builder.rails as u8,
            split: weights.map_or(split, |weights| split_policy(weights, self.standby())),
            split_threshold,
            separate_signal,
            entry_form,
            reroutes: self.builder.reroutes,
            min_rails: self.builder.min_rails,
            standby: self.standby(),
        }
    }

    /// The rails on devices that stand by.
    fn standby(&self) -> Mask {
        let P2pBuilder { rails, standby_devices, .. } = *self.builder;
        let standby = standby_devices.rails(&self.places[..rails]);
        standby.fold(Mask::EMPTY, |standby, rail| standby | Mask::of(rail))
    }

    fn receiver_config(&self, number: u16) -> ReceiverConfig {
        let rails = self.builder.rails as u8;
        let P2pBuilder { reroutes, min_rails, .. } = *self.builder;
        let virtual_qp_num = receiver_index(number).into();
        ReceiverConfig { virtual_qp_num, rails, reroutes, min_rails, standby: self.standby() }
    }

    /// Creates a completion queue on each device, deep enough for everything that can be in flight
    /// there.
    pub(super) fn completion_queues(
        &self,
        pools: &Pools<D::Srq>,
        members: u32,
    ) -> Result<Vec<D::Cq>, P2pBuildError> {
        let ways = [End::Sender, End::Receiver].iter().filter(|end| self.builder.has(**end));
        let ways = ways.count() as u32;
        let queue = |(at, domain): (usize, &D)| {
            let is_here =
                |place: &&Place| self.domains[place.device].device_id() == domain.device_id();
            let one_way = self.places.iter().filter(is_here).count() as u32;
            let queue_pairs = ways * one_way + u32::from(self.builder.flushes);
            let each = queue_pairs * MOST_GRANTED * most_requests(domain.max_qp_wr());
            let receives = pools.0.get(at).map_or(0, |(pool, _)| pool.capacity());
            let entries = members.saturating_mul(each).saturating_add(receives);
            let made = match self.builder.comp_vector {
                Some(comp_vector) => domain.create_cq_with_channel(entries, comp_vector),
                None => domain.create_cq(entries),
            };
            Ok(made.map_err(|source| refused(domain, source))?)
        };
        self.domains.iter().enumerate().map(queue).collect()
    }

    /// Creates the shared receive queue of each device, with its pool; none, if members only send.
    pub(super) fn pools(&self, members: u32) -> Result<Pools<D::Srq>, P2pBuildError> {
        let pool = |domain: &D| {
            let holds = ACCOUNT.saturating_mul(members).min(domain.max_srq_wr());
            let srq = domain.create_srq(holds).map_err(|source| refused(domain, source))?;
            Ok((Pool::new(domain.device_id(), holds), srq))
        };
        let receiving = if self.builder.has(End::Receiver) { self.domains } else { &[] };
        receiving.iter().map(pool).collect::<Result<_, _>>().map(Pools)
    }

    /// Allocates words for the protocol, and registers them with each device.
    fn region(
        &self,
        words: usize,
        regions: &mut Vec<D::Region>,
    ) -> Result<Region<PageWords>, P2pBuildError> {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let pages = Pages::new(words * size_of::<u64>());
        let pages = Arc::new(pages.map_err(|source| P2pBuildError::Memory(source.into()))?);
        let mut keys = Vec::new();
        for domain in self.domains {
            let registered = domain.register_pages(&pages, access);
            let (region, RegionKeys { device, lkey, rkey }) =
                registered.map_err(P2pBuildError::Memory)?;
            keys.push(DeviceKeys { device, lkey, rkey });
            regions.push(region);
        }
        // SAFETY: the regions keep the pages, and the endpoint drops its queue pairs before the
        // regions; no other code has these pages.
        Ok(unsafe { Region::new(PageWords(pages), keys) }?)
    }

    fn sending(&self, cqs: &[D::Cq]) -> Result<Vec<D::Qp>, P2pBuildError> {
        self.places.iter().map(|place| self.plain(place, cqs)).collect()
    }

    fn plain(&self, place: &Place, cqs: &[D::Cq]) -> Result<D::Qp, P2pBuildError> {
        self.queue_pair(place, cqs, None)
    }

    fn receiving(&self, cqs: &[D::Cq], pools: &Pools<D::Srq>) -> Result<Vec<D::Qp>, P2pBuildError> {
        let make = |place: &Place| self.queue_pair(place, cqs, Some(&pools.0[place.device].1));
        self.places.iter().map(make).collect()
    }

    fn queue_pair(
        &self,
        place: &Place,
        cqs: &[D::Cq],
        srq: Option<&D::Srq>,
    ) -> Result<D::Qp, P2pBuildError> {
        let domain = &self.domains[place.device];
        let made = Shape::of(self.builder).make((domain, &place.port), cqs, srq);
        Ok(made.map_err(|source| refused(domain, source))?)
    }

    /// Creates a queue pair on each device, which is connected to itself, if received messages can
    /// be flushed.
    fn flushing(&self, cqs: &[D::Cq], psn: u32) -> Result<Vec<D::Qp>, P2pBuildError> {
        let devices = if self.builder.flushes { self.domains.len() } else { 0 };
        let make = |device: usize| {
            // The first places are on different devices, one on each.
            let place = &self.places[device];
            let options = &self.builder.options;
            let qp = self.plain(place, cqs)?;
            let own = RailAddress::new(&qp, (device, &place.port), psn, options);
            let steps = steps((&place.port, &own), qp.qp_num(), &own, options);
            // At once: the path to itself is known.
            let joined = steps.and_then(|steps| steps.run(&qp));
            joined.map_err(|source| refused(&self.domains[device], source))?;
            Ok(qp)
        };
        (0..devices).map(make).collect()
    }
}

/// Returns the split by these weights.
pub(super) fn split_policy(weights: &Weights, standby: Mask) -> SplitPolicy {
    match weights.bandwidth_mbps(|rail| standby.contains(rail)) {
        Some(bandwidth_mbps) => SplitPolicy::LeastFinishTime { bandwidth_mbps },
        None => SplitPolicy::Even,
    }
}

/// What all queue pairs of an endpoint are made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes that an inline request can have.
    pub(super) max_inline_data: u32,
    pub(super) options: ConnectOptions,
}

impl Shape {
    pub(super) const fn of(builder: &P2pBuilder) -> Self {
        let P2pBuilder { max_inline_data, options, .. } = *builder;
        Self { max_inline_data, options }
    }

    /// A queue pair in INIT on this port of a device, whose receives come from `srq`; without one,
    /// it has as good as none.
    pub(super) fn make<D: Domain>(
        &self,
        (domain, port): (&D, &Port),
        cqs: &[D::Cq],
        srq: Option<&D::Srq>,
    ) -> Result<D::Qp, DeviceError> {
        let cap = self.cap(domain);
        let cq = cq_of(domain, cqs)?;
        let qp = match srq {
            Some(srq) => domain.create_qp_with_srq(cq, srq, cap),
            None => domain.create_qp(cq, cap),
        }?;
        qp.init(port, &self.options)?;
        Ok(qp)
    }

    /// Begins to [make](Self::make) a queue pair on this port as it is now.
    pub(super) fn make_aside<D: Domain>(
        &self,
        (domain, port): (&D, u8),
        cqs: &[D::Cq],
        srq: Option<&D::Srq>,
    ) -> Connecting<(D::Qp, Port)> {
        let cq = match cq_of(domain, cqs) {
            Ok(cq) => cq,
            Err(error) => return Connecting::done(Err(error)),
        };
        let options = self.options;
        domain.make_aside((cq, srq), self.cap(domain), port, move |qp, port| {
            qp.init(&port, &options)?;
            Ok((qp, port))
        })
    }

    fn cap<D: Domain>(&self, domain: &D) -> QpCap {
        let max_send_wr = most_requests(domain.max_qp_wr());
        let max_inline_data = self.max_inline_data;
        QpCap { max_send_wr, max_recv_wr: 1, max_inline_data, ..QpCap::default() }
    }
}

/// The completion queue of a device.
fn cq_of<'c, D: Domain>(domain: &D, cqs: &'c [D::Cq]) -> Result<&'c D::Cq, DeviceError> {
    cqs.iter().find(|cq| cq.device() == domain.device_id()).ok_or(DeviceError::NoDevice)
}
