//! The fabric: what connects devices, and what makes data move.

use crate::address::Gid;
use crate::completion_queue::CqShared;
use crate::device::{Device, DeviceConfig, DeviceShared};
use crate::memory::{DomainId, MemoryTable};
use crate::queue_pair::QpShared;
use crate::scheduler::{Scheduler, Step};
use crate::sync::{Clock, lock, write};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

/// Everything that the devices of one fabric share.
#[derive(Debug)]
pub(crate) struct FabricShared {
    pub(crate) threaded: bool,
    pub(crate) clock: Clock,
    pub(crate) seed: u64,
    pub(crate) memory: RwLock<MemoryTable>,
    pub(crate) registry: Mutex<Registry>,
    pub(crate) scheduler: Mutex<Scheduler>,
    /// Counts changes that may let a blocked request go on.
    changes: AtomicU64,
    next_domain: AtomicU32,
}

/// Who is there. Weak, since handles own what they name.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) devices: Vec<Weak<DeviceShared>>,
    /// By the device's index and the queue pair's number, so that iteration repeats from run to
    /// run.
    pub(crate) qps: BTreeMap<(u32, u32), Weak<QpShared>>,
    pub(crate) cqs: Vec<Weak<CqShared>>,
    cqs_made: u32,
}

impl FabricShared {
    fn new(threaded: bool, clock: Clock, seed: u64) -> Self {
        Self {
            threaded,
            clock,
            seed,
            memory: RwLock::new(MemoryTable::new(seed ^ 0x6d65_6d6f_7279)),
            registry: Mutex::new(Registry::default()),
            scheduler: Mutex::new(Scheduler::new(seed)),
            changes: AtomicU64::new(0),
            next_domain: AtomicU32::new(0),
        }
    }

    pub(crate) fn next_domain(&self) -> DomainId {
        DomainId(self.next_domain.fetch_add(1, Ordering::Relaxed))
    }

    /// Number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Something changed that blocked requests may have waited for.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until nobody moves data any more that began before the call. Call without locks.
    pub(crate) fn quiesce(&self) {
        drop(write(&self.memory));
    }

    /// Place of the next completion queue among the fabric's.
    pub(crate) fn next_cq_index(&self) -> u32 {
        let mut registry = lock(&self.registry);
        registry.cqs_made += 1;
        registry.cqs_made - 1
    }

    pub(crate) fn add_cq(&self, cq: &Arc<CqShared>) {
        let mut registry = lock(&self.registry);
        registry.cqs.retain(|cq| cq.strong_count() > 0);
        registry.cqs.push(Arc::downgrade(cq));
    }

    pub(crate) fn add_qp(&self, qp: &Arc<QpShared>) {
        lock(&self.registry).qps.insert((qp.device.index, qp.number), Arc::downgrade(qp));
    }

    pub(crate) fn remove_qp(&self, device: &DeviceShared, number: u32) {
        lock(&self.registry).qps.remove(&(device.index, number));
    }

    /// The queue pair with this number on the device with this address.
    pub(crate) fn find_qp(&self, gid: Gid, number: u32) -> Option<Arc<QpShared>> {
        let registry = lock(&self.registry);
        let device = registry.devices.iter().filter_map(Weak::upgrade).find(|d| d.has_gid(gid))?;
        registry.qps.get(&(device.index, number))?.upgrade()
    }
}

/// A set of devices that reach each other. A cheap handle: clones mean the same fabric.
///
/// # Two ways to run
///
/// *Threaded*: a completion queue's poller executes the pending send requests of the queue pairs
/// that complete there. Each side polls in a thread of its own, or one thread polls all in turn.
/// Time is real.
///
/// *Deterministic*: nothing moves by itself. Each [`step`](Self::step) lets one thing happen, picked
/// by a seeded generator: one request executes, or one completion shows in its queue. Time is
/// virtual: a step takes a microsecond, and waiting is a step like any other. The same calls with
/// the same seed give the same history. Step from one thread only.
#[derive(Clone, Debug)]
pub struct Fabric(Arc<FabricShared>);

impl Fabric {
    /// A fabric that runs when its completion queues are polled.
    pub fn threaded() -> Self {
        Self(Arc::new(FabricShared::new(true, Clock::Wall(Instant::now()), 0)))
    }

    /// A fabric that runs step by step, as `seed` decides.
    pub fn deterministic(seed: u64) -> Self {
        let clock = Clock::Virtual(AtomicU64::new(0));
        Self(Arc::new(FabricShared::new(false, clock, seed)))
    }

    /// A new device.
    pub fn create_device(&self, config: DeviceConfig) -> Device {
        let mut registry = lock(&self.0.registry);
        let index = registry.devices.len() as u32;
        let device = Arc::new(DeviceShared::new(&self.0, index, config));
        registry.devices.push(Arc::downgrade(&device));
        Device(device)
    }

    /// Lets one thing happen, and says what it was. `None`: nothing can happen any more until
    /// somebody posts, connects or repairs something; always, on a threaded fabric.
    pub fn step(&self) -> Option<Step> {
        self.0.step()
    }

    /// Steps until nothing can happen any more, at most `max_steps` times; returns the steps taken.
    pub fn run_until_idle(&self, max_steps: u64) -> u64 {
        (0..max_steps).find(|_| self.step().is_none()).unwrap_or(max_steps)
    }

    /// Steps taken so far.
    pub fn steps(&self) -> u64 {
        lock(&self.0.scheduler).steps()
    }

    /// Time since the fabric's creation, real or virtual.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.clock.now())
    }

    /// Whether the fabric runs when polled.
    pub fn is_threaded(&self) -> bool {
        self.0.threaded
    }
}
