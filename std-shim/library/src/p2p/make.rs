//! From options to queue pairs, pools, memory and the two ends.

use super::builder::P2pBuilder;
use super::endpoint::P2pEndpoint;
use super::error::P2pBuildError;
use super::healer::Healer;
use super::queue_pair::Shape;
use super::sizes::{
    EngineReceiver, EngineSender, P2P_ROUTES, QUEUE_PAIRS, RECEIVER, SENDER, SLOTS,
};
use super::words::PageWords;
use crate::backend::Domain;
use crate::endpoint::{
    MAX_DEVICES, MOST_GRANTED, Place, RailAddress, join, most_requests, places, random_psn, refused,
};
use crate::memory::{Pages, RegionKeys};
use polyrail_core::hardware::QueuePair;
use polyrail_core::p2p::{Pool, ReceiverConfig, Region, SenderConfig};
use polyrail_core::verbs::{AccessFlags, DeviceKeys};
use polyrail_core::virtual_cq::VirtualCq;
use std::sync::Arc;

/// Receives that a device's account may have: enough for every slot, whatever rail each message takes, and not
/// fewer than are posted at once.
const ACCOUNT: u32 = 512;
const _: () = assert!(ACCOUNT as usize >= SLOTS * MAX_DEVICES);

impl P2pBuilder {
    /// Makes an endpoint: one completion queue, one shared receive queue with its pool, and one registration of the
    /// protocol's own memory for each device; rails on the devices in turn, and on the ports of a device in turn; all
    /// queue pairs in INIT. With more devices than rails, the last devices stay idle.
    ///
    /// # Errors
    ///
    /// What the devices or the engine refuse.
    pub fn build<D: Domain>(&self, domains: &[&D]) -> Result<P2pEndpoint<D>, P2pBuildError> {
        let each = self.queue_pairs;
        let places = places(self.rails, domains)?;
        let domains = &domains[..domains.len().min(self.rails)];
        if each == 0 || self.rails * each > QUEUE_PAIRS {
            return Err(P2pBuildError::QueuePairs { rails: self.rails, each });
        }
        let places: Vec<Place> = places.repeat(each);
        Make { builder: self, domains, places }.make()
    }
}

type Receiving<D> = Box<EngineReceiver<<D as Domain>::Qp, <D as Domain>::Srq>>;

/// An endpoint that is to be made.
struct Make<'d, D> {
    builder: &'d P2pBuilder,
    /// Those that get rails.
    domains: &'d [&'d D],
    /// Where the queue pairs of one direction go: the first of each rail, then the second of each.
    places: Vec<Place>,
}

impl<D: Domain> Make<'_, D> {
    fn make(self) -> Result<P2pEndpoint<D>, P2pBuildError> {
        let cqs = self.domains.iter().map(|domain| self.completion_queue(*domain));
        let mut cq =
            VirtualCq::<_, MAX_DEVICES, P2P_ROUTES>::new(cqs.collect::<Result<Vec<_>, _>>()?)?;
        let psn = random_psn();
        let mut pools = self.pools()?;
        let mut regions = Vec::new();
        let sender = self.sender(cq.cqs(), &mut regions)?;
        let receiver = self.receiver(cq.cqs(), &mut pools, psn, &mut regions)?;
        cq.attach(SENDER, &*sender)?;
        cq.attach(RECEIVER, &*receiver)?;
        let healer = self.healer();
        let name = |domain: &&D| (domain.device_id(), domain.device_name().to_owned());
        Ok(P2pEndpoint {
            sender,
            receiver,
            cq,
            pools,
            places: self.places,
            psn,
            options: self.builder.options,
            names: self.domains.iter().map(name).collect(),
            healer,
            _regions: regions,
        })
    }

    // The two ends have 130 KB each, and in debug builds some copies of that are on the stack until they are in
    // their boxes: not those of both at a time.
    #[inline(never)]
    fn sender(
        &self,
        cqs: &[D::Cq],
        regions: &mut Vec<D::Region>,
    ) -> Result<Box<EngineSender<D::Qp>>, P2pBuildError> {
        let ring = self.region(EngineSender::<D::Qp>::REGION_WORDS, regions)?;
        let made = EngineSender::new(self.sender_config(), self.sending(cqs)?, ring);
        Ok(Box::new(made?))
    }

    #[inline(never)]
    fn receiver(
        &self,
        cqs: &[D::Cq],
        pools: &mut [(Pool, D::Srq)],
        psn: u32,
        regions: &mut Vec<D::Region>,
    ) -> Result<Receiving<D>, P2pBuildError> {
        let records = self.region(EngineReceiver::<D::Qp, D::Srq>::REGION_WORDS, regions)?;
        let receiving = self.receiving(cqs, pools)?;
        let flushing = self.flushing(cqs, psn)?;
        // All of it: nobody else has these pools.
        let open = |(pool, srq): &mut (Pool, D::Srq)| pool.open(srq.clone(), pool.capacity());
        let accounts = pools.iter_mut().map(open).collect::<Result<Vec<_>, _>>()?;
        let config = self.receiver_config();
        let made = EngineReceiver::new(config, receiving, flushing, accounts, records);
        Ok(Box::new(made?))
    }

    fn healer(&self) -> Option<Box<Healer<D>>> {
        let healer = || Healer::new(self.domains, self.places.len(), self.shape());
        self.builder.reroutes.then(|| Box::new(healer()))
    }

    fn sender_config(&self) -> SenderConfig {
        let P2pBuilder { split, split_threshold, separate_signal, entry_form, .. } = *self.builder;
        SenderConfig {
            virtual_qp_num: u32::from(SENDER),
            rails: self.builder.rails as u8,
            split,
            split_threshold,
            separate_signal,
            entry_form,
            reroutes: self.builder.reroutes,
            min_rails: self.builder.min_rails,
        }
    }

    fn receiver_config(&self) -> ReceiverConfig {
        let rails = self.builder.rails as u8;
        let P2pBuilder { reroutes, min_rails, .. } = *self.builder;
        ReceiverConfig { virtual_qp_num: u32::from(RECEIVER), rails, reroutes, min_rails }
    }

    /// A completion queue for everything that can be in flight on a device.
    fn completion_queue(&self, domain: &D) -> Result<D::Cq, P2pBuildError> {
        let is_here = |place: &&Place| self.domains[place.device].device_id() == domain.device_id();
        let one_way = self.places.iter().filter(is_here).count() as u32;
        let queue_pairs = 2 * one_way + u32::from(self.builder.flushes);
        let entries = queue_pairs * MOST_GRANTED * most_requests(domain.max_qp_wr()) + ACCOUNT;
        Ok(domain.create_cq(entries).map_err(|source| refused(domain, source))?)
    }

    /// The shared receive queue of each device, and its pool.
    fn pools(&self) -> Result<Vec<(Pool, D::Srq)>, P2pBuildError> {
        let pool = |domain: &&D| {
            let holds = ACCOUNT.min(domain.max_srq_wr());
            let srq = domain.create_srq(holds).map_err(|source| refused(*domain, source))?;
            Ok((Pool::new(domain.device_id(), holds), srq))
        };
        self.domains.iter().map(pool).collect()
    }

    /// Words for the protocol, registered with each device.
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
        // SAFETY: the regions keep the pages, and the endpoint drops its queue pairs before the regions; nobody
        // else has these pages.
        Ok(unsafe { Region::new(PageWords(pages), keys) }?)
    }

    fn sending(&self, cqs: &[D::Cq]) -> Result<Vec<D::Qp>, P2pBuildError> {
        self.places.iter().map(|place| self.plain(place, cqs)).collect()
    }

    fn plain(&self, place: &Place, cqs: &[D::Cq]) -> Result<D::Qp, P2pBuildError> {
        self.queue_pair(place, cqs, None)
    }

    fn receiving(
        &self,
        cqs: &[D::Cq],
        pools: &[(Pool, D::Srq)],
    ) -> Result<Vec<D::Qp>, P2pBuildError> {
        let make = |place: &Place| self.queue_pair(place, cqs, Some(&pools[place.device].1));
        self.places.iter().map(make).collect()
    }

    fn queue_pair(
        &self,
        place: &Place,
        cqs: &[D::Cq],
        srq: Option<&D::Srq>,
    ) -> Result<D::Qp, P2pBuildError> {
        let domain = self.domains[place.device];
        let made = self.shape().make((domain, &place.port), cqs, srq);
        Ok(made.map_err(|source| refused(domain, source))?)
    }

    fn shape(&self) -> Shape {
        let P2pBuilder { max_inline_data, options, .. } = *self.builder;
        Shape { max_inline_data, options }
    }

    /// A queue pair on each device that is connected to itself, if received messages can be flushed.
    fn flushing(&self, cqs: &[D::Cq], psn: u32) -> Result<Vec<D::Qp>, P2pBuildError> {
        let devices = if self.builder.flushes { self.domains.len() } else { 0 };
        let make = |device: usize| {
            // The places begin with one on each device.
            let place = &self.places[device];
            let options = &self.builder.options;
            let qp = self.plain(place, cqs)?;
            let own = RailAddress::new(device, &place.port, psn, options);
            let joined = join((&qp, &place.port, &own), qp.qp_num(), &own, options);
            joined.map_err(|source| refused(self.domains[device], source))?;
            Ok(qp)
        };
        (0..devices).map(make).collect()
    }
}
