//! Protection domains, and the memory regions registered in them.

use crate::completion_queue::CompletionQueue;
use crate::device::{Device, DeviceShared, in_limits};
use crate::error::NicError;
use crate::memory::{DomainId, Region, RegionKeys};
use crate::pages::Pages;
use crate::queue_pair::{QpInit, QueuePair};
use crate::receive_queue::{SharedReceiveQueue, SrqShared};
use crate::sync::write;
use polyrail_core::verbs::AccessFlags;
use std::sync::Arc;

/// A protection domain: queue pairs reach only memory registered in their own. A cheap handle:
/// clones mean the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    device: Device,
    pub(crate) id: DomainId,
}

impl ProtectionDomain {
    pub(crate) fn new(device: &Device) -> Self {
        Self { device: device.clone(), id: device.0.fabric.next_domain() }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Registers foreign memory. Dropping the region deregisters it.
    ///
    /// # Errors
    ///
    /// An empty region or one over the device's limit; access flags that verbs refuses (remote
    /// writing without local writing) or that this device does not know; a device that is gone.
    ///
    /// # Safety
    ///
    /// Until the region is dropped:
    ///
    /// - the `length` bytes from `addr` on stay allocated, and writable if `access` has
    ///   [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE);
    /// - while requests may write some of the bytes (receives, READs, atomics, and anything that
    ///   peers may do with the rkey), nobody else accesses those bytes, and no reference to them
    ///   exists; while requests may only read some of them, nobody writes those.
    ///
    /// A completion that was polled, and everything that the peer's software orders by one, ends a
    /// request's access.
    pub unsafe fn register(
        &self,
        addr: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion, NicError> {
        let start = addr.expose_provenance() as u64;
        self.add_region(start, length, access, None)
    }

    /// Registers `pages`, all [`len`](Pages::len) bytes and no more. Until the region is dropped, it
    /// keeps the pages.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub fn register_pages(
        &self,
        pages: &Arc<Pages>,
        access: AccessFlags,
    ) -> Result<MemoryRegion, NicError> {
        self.add_region(pages.addr(), pages.len(), access, Some(Arc::clone(pages)))
    }

    fn add_region(
        &self,
        start: u64,
        length: usize,
        access: AccessFlags,
        pages: Option<Arc<Pages>>,
    ) -> Result<MemoryRegion, NicError> {
        let device = &self.device.0;
        device.alive()?;
        let region = Region { domain: self.id, start, length: length as u64, access, pages };
        region.validate(device.limits.max_mr_size)?;
        let (lkey, rkey) = write(&device.fabric.memory).insert(region)?;
        let keys = RegionKeys { device: device.id, lkey, rkey };
        Ok(MemoryRegion { keys, addr: start, length, device: Arc::clone(device) })
    }

    /// A new shared receive queue of at least `max_wr` receives. Falling below `limit` raises
    /// [`AsyncEvent::SrqLimitReached`](crate::AsyncEvent::SrqLimitReached) once; 0 is never.
    ///
    /// # Errors
    ///
    /// A size of 0 or over the device's limit; a device that is gone.
    pub fn create_srq(&self, max_wr: u32, limit: u32) -> Result<SharedReceiveQueue, NicError> {
        let device = &self.device.0;
        device.alive()?;
        in_limits("the shared receive queue's size", max_wr, device.limits.max_srq_wr)?;
        Ok(SharedReceiveQueue::new(SrqShared::new(device, self.id, max_wr, limit)))
    }

    /// A new reliable connected queue pair, in RESET.
    ///
    /// # Errors
    ///
    /// Capacities of 0 or over the device's limits, objects of another device, a device that is
    /// gone.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<QueuePair, NicError> {
        let device = &self.device.0;
        device.alive()?;
        self.own(init.send_cq)?;
        self.own(init.recv_cq)?;
        let srq_device = init.srq.map(|srq| srq.shared.device.id);
        if srq_device.is_some_and(|id| id != device.id) {
            return Err(NicError::OtherDevice { what: "shared receive queue" });
        }
        let limits = &device.limits;
        in_limits("max_send_wr", init.cap.max_send_wr, limits.max_qp_wr)?;
        if init.srq.is_none() {
            in_limits("max_recv_wr", init.cap.max_recv_wr, limits.max_qp_wr)?;
        }
        in_limits("max_inline_data", init.cap.max_inline_data.max(1), limits.max_inline_data)?;
        QueuePair::create(device, self.id, init)
    }

    fn own(&self, cq: &CompletionQueue) -> Result<(), NicError> {
        if cq.shared.device.id == self.device.id() {
            Ok(())
        } else {
            Err(NicError::OtherDevice { what: "completion queue" })
        }
    }
}

/// A registered range of memory. Dropping it deregisters the range: its keys open nothing any more,
/// and when the drop returns no device touches the memory again.
#[derive(Debug)]
pub struct MemoryRegion {
    keys: RegionKeys,
    addr: u64,
    length: usize,
    device: Arc<DeviceShared>,
}

impl MemoryRegion {
    /// Both keys with their device.
    pub fn keys(&self) -> RegionKeys {
        self.keys
    }

    /// Key for local requests.
    pub fn lkey(&self) -> u32 {
        self.keys.lkey
    }

    /// Key for peers' requests.
    pub fn rkey(&self) -> u32 {
        self.keys.rkey
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes; never 0.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.length
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // The region's pages, if it was the last to hold them, go when the table is free again.
        let region = write(&self.device.fabric.memory).remove(self.keys.lkey);
        drop(region);
    }
}
