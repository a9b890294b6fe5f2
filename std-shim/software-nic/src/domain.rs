//! Protection domains, and the memory regions registered in them.

use crate::device::Device;
use crate::shared::DeviceShared;
use polyrail_core::verbs::AccessFlags;
use polyrail_nic_parts::error::NicError;
use polyrail_nic_parts::memory::{DomainId, Owner, Region, RegionKeys};
use polyrail_nic_parts::pages::Pages;
use polyrail_nic_parts::sync::write;
use std::any::Any;
use std::sync::Arc;

/// A protection domain: queue pairs access only memory registered in their own domain. A cheap
/// handle: clones refer to the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    device: Device,
    pub(crate) id: DomainId,
}

impl Device {
    /// Allocates a protection domain.
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
    /// Returns its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Registers foreign memory. Dropping the region deregisters it.
    ///
    /// # Errors
    ///
    /// The region is empty or over the device's limit; there are too many regions; verbs forbids
    /// the access flags (remote write without local write) or this device does not support them;
    /// the device is gone.
    ///
    /// # Safety
    ///
    /// Until the region is dropped:
    ///
    /// - the `length` bytes from `addr` stay allocated, and writable if `access` has
    ///   [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE);
    /// - bytes that requests may write (receives, READs, atomics, and everything that peers may do
    ///   with the rkey) are not accessed otherwise, and no reference to them exists; bytes that
    ///   requests may only read are not written.
    ///
    /// A request's access ends when its completion is polled, or with a message of the peer's
    /// software that follows such a completion.
    pub unsafe fn register(
        &self,
        addr: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion, NicError> {
        let start = addr.expose_provenance() as u64;
        // SAFETY: the caller guarantees it.
        unsafe { self.add_region(start, start, length, access, None) }
    }

    /// Like [`register`](Self::register), for memory that `owner` owns. The region keeps the owner
    /// until it is dropped.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    ///
    /// # Safety
    ///
    /// The bytes stay allocated until `owner` is dropped. All other requirements are those of
    /// [`register`](Self::register).
    pub unsafe fn register_owned(
        &self,
        addr: *mut u8,
        length: usize,
        access: AccessFlags,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<MemoryRegion, NicError> {
        let start = addr.expose_provenance() as u64;
        // SAFETY: the caller guarantees it.
        unsafe { self.add_region(start, start, length, access, Some(owner)) }
    }

    /// Registers `length` bytes from `addr`, whose first byte requests name by the address `iova`,
    /// as `ibv_reg_mr_iova(3)` does. The region keeps `owner`, if there is one, until it is
    /// dropped.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    ///
    /// # Safety
    ///
    /// As [`register_owned`](Self::register_owned); without an owner, as
    /// [`register`](Self::register).
    pub unsafe fn register_iova(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
        owner: Option<Owner>,
    ) -> Result<MemoryRegion, NicError> {
        let memory = addr.expose_provenance() as u64;
        // SAFETY: guaranteed by the caller.
        unsafe { self.add_region(iova, memory, length, access, owner) }
    }

    /// Registers all [`len`](Pages::len) bytes of `pages`. The region keeps the pages until it is
    /// dropped.
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
        // SAFETY: the owner keeps the pages, which are writable, and accessed by spans or
        // atomically.
        unsafe { self.add_region(pages.addr(), pages.addr(), pages.len(), access, Some(owner)) }
    }

    /// # Safety
    ///
    /// As [`register_owned`](Self::register_owned); without an owner, as
    /// [`register`](Self::register).
    unsafe fn add_region(
        &self,
        start: u64,
        memory: u64,
        length: usize,
        access: AccessFlags,
        owner: Option<Owner>,
    ) -> Result<MemoryRegion, NicError> {
        let device = &self.device.0;
        device.check_alive()?;
        let region =
            Region { domain: self.id, start, memory, length: length as u64, access, owner };
        region.validate(&device.limits)?;
        device.regions.add(device.limits.max_mr)?;
        // SAFETY: the caller guarantees it.
        let inserted = unsafe { write(&device.fabric.memory).insert(region) };
        let (lkey, rkey) = inserted.inspect_err(|_| device.regions.remove())?;
        let keys = RegionKeys { device: device.id, lkey, rkey };
        Ok(MemoryRegion { keys, addr: start, length, device: Arc::clone(device) })
    }
}

/// A registered range of memory. Dropping it deregisters the range: its keys become invalid, and no
/// device accesses the memory after the drop returns.
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
        if self.device.is_forked() {
            return;
        }
        // The region is dropped, and possibly its pages freed, after the table is unlocked.
        let region = write(&self.device.fabric.memory).remove(self.keys.lkey);
        drop(region);
        self.device.regions.remove();
    }
}
