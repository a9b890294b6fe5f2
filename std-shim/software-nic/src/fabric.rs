//! The fabric, which connects devices and moves data between them.

use crate::clock::Clock;
use crate::device::Device;
use crate::options::DeviceConfig;
use crate::shared::{DeviceShared, FabricShared};
use crate::step::Step;
use polyrail_nic_parts::sync::lock;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// A set of devices that reach each other. A cheap handle: clones refer to the same fabric.
///
/// # Two modes
///
/// *Threaded*: polling a completion queue executes the pending send requests of the queue pairs
/// that complete there. Each side polls in a separate thread, or one thread polls all sides in
/// turn. Time is real.
///
/// *Deterministic*: nothing happens without calls. Each [`step`](Self::step) performs one action,
/// chosen by a seeded generator: it executes one request, or makes one completion visible. Time is
/// virtual: a step takes a microsecond, and waiting is also a step. The same calls with the same
/// seed give the same history. Step from one thread only.
///
/// # Forks
///
/// A fork of the process has a copy of the fabric, in which no other thread ever continues. It
/// cannot use the copy: calls return [`NicError::Forked`](crate::NicError::Forked) or `EPERM`, or
/// do nothing.
#[derive(Clone, Debug)]
pub struct Fabric(Arc<FabricShared>);

impl Fabric {
    /// Creates a fabric that runs when its completion queues are polled.
    pub fn threaded() -> Self {
        Self(Arc::new(FabricShared::new(true, Clock::Wall(Instant::now()), 0)))
    }

    /// Creates a fabric that runs step by step, in an order that depends on `seed`.
    pub fn deterministic(seed: u64) -> Self {
        let clock = Clock::Virtual(AtomicU64::new(0));
        Self(Arc::new(FabricShared::new(false, clock, seed)))
    }

    /// Creates a device.
    pub fn create_device(&self, config: DeviceConfig) -> Device {
        if !self.0.process.is_current() {
            // All that is asked of the device is refused.
            return Device(Arc::new(DeviceShared::new(&self.0, 0, config)));
        }
        let mut registry = lock(&self.0.registry);
        let device = Arc::new(DeviceShared::new(&self.0, registry.devices_made, config));
        registry.devices_made += 1;
        registry.devices.retain(|device| device.strong_count() > 0);
        registry.devices.push(Arc::downgrade(&device));
        Device(device)
    }

    /// Performs one action, and returns it. `None`: nothing can happen until the program posts,
    /// connects or repairs something. Always `None` on a threaded fabric.
    pub fn step(&self) -> Option<Step> {
        self.0.step()
    }

    /// Steps until nothing can happen any more, at most `max_steps` times. Returns the number of
    /// steps.
    pub fn run_until_idle(&self, max_steps: u64) -> u64 {
        (0..max_steps).find(|_| self.step().is_none()).unwrap_or(max_steps)
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        if self.0.process.is_current() { lock(&self.0.scheduler).steps() } else { 0 }
    }

    /// Returns the time since the fabric's creation, real or virtual.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.clock.now())
    }

    /// Returns whether the fabric is threaded.
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
        assert_eq!((stays.0.index, numbers), (0, vec![1, 2, 3]), "none is reused");
        assert_eq!(lock(&fabric.0.registry).devices.len(), 2, "the last one is not removed yet");
    }
}
