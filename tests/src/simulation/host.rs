//! One host: devices, a completion queue that all its virtual queue pairs share, and memory.

use super::places::{AREA, EDGE};
use super::shape::{Grant, MAX_CONNECTIONS, Shape};
use super::virtual_qp::{AnyQp, QpTable, QueuePair};
use crate::allocations::without_allocating;
use crate::choices::{Choices, pick};
use polyrail::backend::QpCap;
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{self, Device, DeviceConfig, DeviceLimits, Fabric, ProtectionDomain, QpInit};
use polyrail_core::hardware::{CompletionQueue as _, CqError};
use polyrail_core::verbs::{AccessFlags, Completion, DeviceId};
use polyrail_core::virtual_cq::{Event, Polled, VirtualCq};
use polyrail_faults::{Faults, Faulty};
use std::mem::MaybeUninit;

/// Virtual queue pairs that can be attached at a time, and some room to move.
pub(super) const INDICES: usize = 8;
/// Completion queue entries: three connections of eight rails and a notify queue pair, all on one
/// device, with sixteen requests each way on each.
const CQ_CAPACITY: u32 = 1024;

/// Capacity of a shared receive queue.
const SHARED_RECEIVES: u32 = 16;

/// Queues over drivers that have faults.
pub(super) type CompletionQueue = Faulty<nic::CompletionQueue>;
pub(super) type SharedReceiveQueue = Faulty<nic::SharedReceiveQueue>;

pub(super) struct Host {
    pub(super) devices: Vec<Device>,
    /// The faults of each device's driver.
    pub(super) drivers: Vec<Faults>,
    pub(super) domains: Vec<ProtectionDomain>,
    /// The queues that `cq` polls, for queue pairs to be made on.
    pub(super) cq: VirtualCq<CompletionQueue, 3, 64>,
    pub(super) qps: QpTable,
    /// For each connection: local places, places that the peer reaches, places of receives.
    pub(super) memory: RegisteredBuffer,
    /// The budget of every poll, if it is always the same.
    budget: Option<usize>,
    events: Vec<Event>,
}

/// The result of a poll.
pub(super) struct Brought {
    pub(super) events: Vec<Event>,
    pub(super) error: Option<CqError>,
}

impl Host {
    pub(super) fn new(fabric: &Fabric, name: &str, shape: &Shape) -> Self {
        let create = |at: usize| {
            let max_msg_size = shape.message_limits[at];
            let limits = DeviceLimits { max_msg_size, ..DeviceLimits::default() };
            let name = format!("{name}{at}");
            // No step may allocate.
            let config = DeviceConfig { limits, full_queues: true, ..DeviceConfig::named(name) };
            fabric.create_device(config)
        };
        let devices: Vec<_> = (0..shape.devices).map(create).collect();
        let domains: Vec<_> =
            devices.iter().map(|device| device.alloc_pd().expect("a working device")).collect();
        let drivers: Vec<_> = devices.iter().map(|_| Faults::new()).collect();
        let cq = |(device, driver): (&Device, &Faults)| {
            driver.completion_queue(device.create_cq(CQ_CAPACITY).expect("a working device"))
        };
        let cqs = devices.iter().zip(&drivers).map(cq);
        let cq = VirtualCq::new(cqs).expect("few completion queues");
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let domain_refs: Vec<_> = domains.iter().collect();
        let bytes = MAX_CONNECTIONS * 3 * AREA + EDGE;
        let memory = RegisteredBuffer::new(bytes, access, &domain_refs).expect("memory");
        let qps = QpTable((0..INDICES).map(|_| None).collect());
        let budget = shape.budget;
        let events = Vec::with_capacity(4096);
        Self { devices, drivers, domains, cq, qps, memory, budget, events }
    }

    pub(super) fn qp(&mut self, index: u16) -> &mut dyn AnyQp {
        self.qps.0[index as usize].as_deref_mut().expect("a virtual queue pair")
    }

    /// A queue pair on a device with these limits, with its own receives or shared ones.
    pub(super) fn create_qp(
        &self,
        at: usize,
        grant: Grant,
        srq: Option<&SharedReceiveQueue>,
    ) -> QueuePair {
        let Grant { send, recv, inline, sge } = grant;
        let cap = QpCap {
            max_send_wr: send,
            max_recv_wr: recv,
            max_inline_data: inline,
            max_send_sge: sge,
            max_recv_sge: sge,
        };
        let srq = srq.map(Faulty::inner);
        let init = QpInit { srq, ..QpInit::new(self.cq.cqs()[at].inner(), cap) };
        self.drivers[at].queue_pair(self.domains[at].create_qp(&init).expect("a working device"))
    }

    /// A shared receive queue on a device.
    pub(super) fn create_srq(&self, at: usize) -> SharedReceiveQueue {
        let srq = self.domains[at].create_srq(SHARED_RECEIVES, 0).expect("a working device");
        let capacity = srq.capacity();
        self.drivers[at].receive_queue(srq, capacity)
    }

    /// A free index.
    pub(super) fn free_index(&self) -> u16 {
        let free = self.qps.0.iter().position(Option::is_none);
        free.expect("more indices than virtual queue pairs") as u16
    }

    /// Whether a device is gone.
    pub(super) fn is_gone(&self, at: usize) -> bool {
        self.devices[at].alloc_pd().is_err()
    }

    /// Polls in a random way, within the budget.
    pub(super) fn poll(&mut self, choices: &mut dyn Choices) -> Brought {
        let any = pick(choices, &[1, 3, 7, 32, usize::MAX, usize::MAX]);
        let budget = self.budget.unwrap_or(any);
        match choices.below(6) {
            0 => {
                let at = choices.below(self.devices.len() as u32) as usize;
                self.collect(budget, |host, sink| host.cq.poll_cq(at, &mut host.qps, budget, sink))
            }
            1 => self.poll_one(),
            2 if self.budget.is_none() => {
                let at = choices.below(self.devices.len() as u32) as usize;
                self.poll_and_feed(at)
            }
            _ => self.poll_for(budget),
        }
    }

    /// Polls all queues.
    pub(super) fn poll_for(&mut self, budget: usize) -> Brought {
        self.collect(budget, |host, sink| host.cq.poll(&mut host.qps, budget, sink))
    }

    fn poll_one(&mut self) -> Brought {
        self.collect(1, |host, sink| {
            let (event, polled) = host.cq.poll_one(&mut host.qps);
            event.into_iter().for_each(sink);
            polled
        })
    }

    /// Polls a queue as a separate runtime would, and feeds the completions.
    fn poll_and_feed(&mut self, at: usize) -> Brought {
        self.collect(usize::MAX, |host, sink| {
            let mut batch = [const { MaybeUninit::uninit() }; 16];
            let cq = &mut host.cq.cqs_mut()[at];
            let device = cq.device();
            match cq.poll(&mut batch) {
                Ok(completions) => {
                    // SAFETY: just polled from a queue of this device, in order.
                    let events = unsafe { host.cq.feed(&mut host.qps, device, completions, sink) };
                    Polled { events, error: None }
                }
                Err(error) => Polled { events: 0, error: Some(error) },
            }
        })
    }

    /// Feeds completions.
    pub(super) fn feed(&mut self, device: DeviceId, completions: &[Completion]) -> Brought {
        self.collect(usize::MAX, |host, sink| {
            // SAFETY: they were polled from a queue of this device, or their tags match nothing in
            // flight.
            let events = unsafe { host.cq.feed(&mut host.qps, device, completions, sink) };
            Polled { events, error: None }
        })
    }

    fn collect(
        &mut self,
        budget: usize,
        poll: impl FnOnce(&mut Self, &mut dyn FnMut(Event)) -> Polled,
    ) -> Brought {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let polled =
            without_allocating("poll", || poll(self, &mut |event: Event| events.push(event)));
        assert_eq!(polled.events, events.len(), "events are counted");
        assert!(events.len() <= budget, "the budget is kept");
        Brought { events, error: polled.error }
    }

    /// Takes back the memory that events are collected in.
    pub(super) fn reuse(&mut self, events: Vec<Event>) {
        self.events = events;
    }

    /// The invariants between any two calls.
    pub(super) fn invariants(&self) {
        self.cq.invariants();
        self.qps.0.iter().flatten().for_each(|qp| qp.invariants());
    }
}
