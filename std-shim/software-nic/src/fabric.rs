//! The fabric: what connects devices, and what makes data move.

use crate::device::Device;
use crate::options::DeviceConfig;
use crate::shared::{DeviceShared, FabricShared};
use crate::step::Step;
use crate::sync::{Clock, lock};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

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
        let device = Arc::new(DeviceShared::new(&self.0, registry.devices_made, config));
        registry.devices_made += 1;
        registry.devices.retain(|device| device.strong_count() > 0);
        registry.devices.push(Arc::downgrade(&device));
        Device(device)
    }

    /// Lets one thing happen, and returns it. `None`: nothing can happen any more until
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_are_gone_leave_nothing() {
        let fabric = Fabric::threaded();
        let create = || fabric.create_device(DeviceConfig::named("a"));
        let stays = create();
        let numbers: Vec<u32> = (0..3).map(|_| create().0.index).collect();
        assert_eq!((stays.0.index, numbers), (0, vec![1, 2, 3]), "none is used anew");
        assert_eq!(lock(&fabric.0.registry).devices.len(), 2, "the last one is not looked for yet");
    }
}
