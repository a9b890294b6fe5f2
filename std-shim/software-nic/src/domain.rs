//! Protection domains, and the memory regions registered in them.

use crate::device::Device;
use crate::error::NicError;
use crate::memory::{DomainId, Owner, Region, RegionKeys};
use crate::pages::Pages;
use crate::shared::DeviceShared;
use crate::sync::write;
use polyrail_core::verbs::AccessFlags;
use std::any::Any;
use std::sync::Arc;

/// A protection domain: queue pairs reach only memory registered in their own. A cheap handle:
/// clones mean the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    device: Device,
    pub(crate) id: DomainId,
}

impl Device {
    /// A new protection domain.
    ///
    /// # Errors
    ///
    /// [`NicError::DeviceGone`].
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, NicError> {
        self.0.check_alive()?;
        Ok(ProtectionDomain { device: self.clone(), id: self.0.fabric.next_domain() })
    }
}

impl ProtectionDomain {
    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Registers foreign memory. Dropping the region deregisters it.
    ///
    /// # Errors
    ///
    /// An empty region or one over the device's limit; too many regions; access flags that verbs refuses (remote
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

    /// As [`register`](Self::register), of memory that `owner` owns: until the region is dropped, it keeps the
    /// owner.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    ///
    /// # Safety
    ///
    /// The bytes stay allocated as long as `owner` is not dropped. As for the rest, as
    /// [`register`](Self::register).
    pub unsafe fn register_owned(
        &self,
        addr: *mut u8,
        length: usize,
        access: AccessFlags,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<MemoryRegion, NicError> {
        let start = addr.expose_provenance() as u64;
        self.add_region(start, length, access, Some(owner))
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
        let owner: Owner = Arc::<Pages>::clone(pages);
        self.add_region(pages.addr(), pages.len(), access, Some(owner))
    }

    fn add_region(
        &self,
        start: u64,
        length: usize,
        access: AccessFlags,
        owner: Option<Owner>,
    ) -> Result<MemoryRegion, NicError> {
        let device = &self.device.0;
        device.check_alive()?;
        let region = Region { domain: self.id, start, length: length as u64, access, owner };
        region.validate(&device.limits)?;
        device.count_region()?;
        let inserted = write(&device.fabric.memory).insert(region);
        let (lkey, rkey) = inserted.inspect_err(|_| device.uncount_region())?;
        let keys = RegionKeys { device: device.id, lkey, rkey };
        Ok(MemoryRegion { keys, addr: start, length, device: Arc::clone(device) })
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
        self.device.uncount_region();
    }
}
