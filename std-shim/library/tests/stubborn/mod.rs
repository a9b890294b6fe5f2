//! A backend for tests: the software NIC, with a driver that does not always deregister memory.

#![allow(dead_code, reason = "every test program uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

use polyrail::backend::{
    DeviceError, DeviceEvent, Domain, EventCursor, MemoryOwner, Port, QpCap, Region,
};
use polyrail::memory::RegionKeys;
use polyrail::nic::{self, DeviceConfig, DeviceLimits, Fabric, MemoryRegion, ProtectionDomain};
use polyrail::verbs::{AccessFlags, DeviceId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Stubborn {
    pub domain: ProtectionDomain,
    /// While it is set, no region can be closed.
    pub keeps_regions: Arc<AtomicBool>,
    /// While it is set, closing a region takes its time.
    pub is_slow: Arc<AtomicBool>,
}

impl Stubborn {
    pub fn new(fabric: &Fabric, name: &str, limits: DeviceLimits) -> Self {
        let config = DeviceConfig { limits, ..DeviceConfig::named(name) };
        let domain = fabric.create_device(config).alloc_pd().unwrap();
        Self { domain, keeps_regions: Arc::default(), is_slow: Arc::default() }
    }

    /// Regions that the device has now.
    pub fn regions(&self) -> u32 {
        self.domain.device().memory_regions()
    }
}

/// A region of it.
#[derive(Debug)]
pub struct StubbornRegion {
    region: MemoryRegion,
    stays: Arc<AtomicBool>,
    is_slow: Arc<AtomicBool>,
}

impl Region for StubbornRegion {
    fn close(self) -> Result<(), DeviceError> {
        if self.is_slow.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(50));
        }
        if !self.stays.load(Ordering::Relaxed) {
            return self.region.close();
        }
        std::mem::forget(self.region);
        Err(DeviceError::Deregister { device: "stubborn".into(), errno: libc::EBUSY })
    }
}

impl Domain for Stubborn {
    type Qp = nic::QueuePair;
    type Cq = nic::CompletionQueue;
    type Srq = nic::SharedReceiveQueue;
    type Region = StubbornRegion;

    fn device_id(&self) -> DeviceId {
        self.domain.device_id()
    }

    fn device_name(&self) -> &str {
        self.domain.device_name()
    }

    fn max_qp_wr(&self) -> u32 {
        self.domain.max_qp_wr()
    }

    fn max_sge(&self) -> u32 {
        self.domain.max_sge()
    }

    fn max_srq_wr(&self) -> u32 {
        self.domain.max_srq_wr()
    }

    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        self.domain.ports()
    }

    fn port(&self, number: u8) -> Result<Port, DeviceError> {
        self.domain.port(number)
    }

    fn event_cursor(&self) -> EventCursor {
        self.domain.event_cursor()
    }

    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent> {
        self.domain.next_event(reader)
    }

    fn create_cq(&self, capacity: u32) -> Result<Self::Cq, DeviceError> {
        self.domain.create_cq(capacity)
    }

    fn create_cq_with_channel(
        &self,
        capacity: u32,
        comp_vector: u32,
    ) -> Result<Self::Cq, DeviceError> {
        self.domain.create_cq_with_channel(capacity, comp_vector)
    }

    fn resize_cq(&self, cq: &mut Self::Cq, capacity: u32) -> Result<(), DeviceError> {
        self.domain.resize_cq(cq, capacity)
    }

    fn create_qp(&self, cq: &Self::Cq, cap: QpCap) -> Result<Self::Qp, DeviceError> {
        Domain::create_qp(&self.domain, cq, cap)
    }

    fn create_srq(&self, max_wr: u32) -> Result<Self::Srq, DeviceError> {
        Domain::create_srq(&self.domain, max_wr)
    }

    fn create_qp_with_srq(
        &self,
        cq: &Self::Cq,
        srq: &Self::Srq,
        cap: QpCap,
    ) -> Result<Self::Qp, DeviceError> {
        self.domain.create_qp_with_srq(cq, srq, cap)
    }

    fn has_on_demand_paging(&self) -> Result<bool, DeviceError> {
        self.domain.has_on_demand_paging()
    }

    unsafe fn register_memory(
        &self,
        start: *mut u8,
        length: usize,
        access: AccessFlags,
        owner: Option<MemoryOwner>,
    ) -> Result<(StubbornRegion, RegionKeys), DeviceError> {
        // SAFETY: the caller's promise.
        let registered = unsafe { self.domain.register_memory(start, length, access, owner) };
        let stays = Arc::clone(&self.keeps_regions);
        let is_slow = Arc::clone(&self.is_slow);
        registered.map(|(region, keys)| (StubbornRegion { region, stays, is_slow }, keys))
    }
}
