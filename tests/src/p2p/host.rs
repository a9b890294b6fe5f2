//! A host: its completion queues, and the ledgers of its shared receive queues.

use super::fabric::{Nics, SimCq, device_at, device_id};
use super::shape::{MOST, Shape};
use polyrail_core::hardware::CqId;
use polyrail_core::p2p::{POOL_WR_ID, Pool};
use polyrail_core::verbs::DeviceId;
use polyrail_core::virtual_cq::{CompletionTarget, Event, VirtualCq, VirtualWc};

#[derive(Debug)]
pub(super) struct Host {
    number: usize,
    pub(super) cq: VirtualCq<SimCq, MOST, 256>,
    /// One for each device.
    pub(super) pools: Vec<Pool>,
}

impl Host {
    pub(super) fn new(number: usize, nics: &Nics, shape: &Shape) -> Self {
        let cq = |device| SimCq::new(nics, device_at(number, device));
        let cqs = (0..shape.devices[number]).map(cq);
        let pool = |device| Pool::new(device_id(number, device), shape.receives());
        let mut all = VirtualCq::new(cqs).expect("few devices");
        for device in 0..shape.devices[number] {
            let id = CqId(device_at(number, device) as u64);
            all.set_aside(id, shape.receives()).expect("deep completion queues");
        }
        Self { number, cq: all, pools: (0..shape.devices[number]).map(pool).collect() }
    }

    /// Polls. Returns how many foreign completions of requests there were, and whether all queues
    /// could be polled.
    pub(super) fn poll(
        &mut self,
        targets: &mut [&mut dyn CompletionTarget],
        budget: usize,
        reports: &mut Vec<VirtualWc>,
    ) -> (u32, bool) {
        let Self { cq, pools, .. } = self;
        let mut foreign = 0;
        let polled = cq.poll(targets, budget, |event| {
            let (device, completion) = match event {
                Event::Completion(report) => return reports.push(report),
                Event::Foreign { device, completion } => (device, completion),
            };
            foreign += 1;
            let pool = pools.iter_mut().find(|pool| pool.device() == device).expect("a device");
            let is_pools = pool.note_foreign(&completion);
            assert_eq!(is_pools, completion.wr_id == POOL_WR_ID);
        });
        cq.invariants();
        (foreign, polled.error.is_none())
    }

    /// The pool's rule: what is counted is what is there, or was taken and is not known yet.
    pub(super) fn check_pools(&self, nics: &Nics, posted: impl Fn(DeviceId) -> i64) {
        let nics = nics.borrow();
        for (device, pool) in self.pools.iter().enumerate() {
            let at = device_at(self.number, device);
            if nics.is_dead[at] {
                continue;
            }
            let there = nics.srqs[at].receives + nics.cqs[at].receives;
            let counted = posted(pool.device()) + pool.unowned();
            assert_eq!(
                counted,
                i64::from(there),
                "the count of host {} device {device} is what is there and what is untaken",
                self.number
            );
        }
    }
}
