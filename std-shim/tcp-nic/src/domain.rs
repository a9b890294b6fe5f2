//! Protection domains, and memory registered in them.

use crate::device::Device;
use crate::shared::DeviceShared;
use polyrail_core::verbs::AccessFlags;
use polyrail_nic_parts::error::NicError;
use polyrail_nic_parts::memory::{DomainId, Owner, Region, RegionKeys};
use polyrail_nic_parts::pages::Pages;
use polyrail_nic_parts::sync::write;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Objects of a device that may be used together. Cloning is cheap: clones are the same domain.
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
    /// This process is a fork of the process that opened the device.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, NicError> {
        self.0.process.check()?;
        let id = DomainId(self.0.next_domain.fetch_add(1, Ordering::Relaxed));
        Ok(ProtectionDomain { device: self.clone(), id })
    }
}

impl ProtectionDomain {
    /// Returns its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Registers `length` bytes from `addr`.
    ///
    /// # Errors
    ///
    /// The device does not support the access flags or the length, or has too many regions.
    ///
    /// # Safety
    ///
    /// Until the region is dropped, the bytes stay allocated, and are writable if `access` has
    /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE). While requests may write some of them (receives,
    /// READs, atomics, and any operation that peers may do with the rkey), the program does not
    /// access those bytes, and no reference to them exists; while requests may only read some of
    /// them, the program does not write those.
    pub unsafe fn register(
        &self,
        addr: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion, NicError> {
        let start = addr.expose_provenance() as u64;
        // SAFETY: guaranteed by the caller.
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
        // SAFETY: guaranteed by the caller.
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
        device.process.check()?;
        let region =
            Region { domain: self.id, start, memory, length: length as u64, access, owner };
        region.validate(&device.limits)?;
        device.regions.add(device.limits.max_mr)?;
        // SAFETY: guaranteed by the caller.
        let inserted = unsafe { write(&device.memory).insert(region) };
        let (lkey, rkey) = inserted.inspect_err(|_| device.regions.remove())?;
        let keys = RegionKeys { device: device.id, lkey, rkey };
        Ok(MemoryRegion { keys, device: Arc::clone(device) })
    }
}

/// A registered range of memory. Dropping it deregisters the range: its keys become invalid, and no
/// thread accesses the memory for the device after the drop returns.
#[derive(Debug)]
pub struct MemoryRegion {
    keys: RegionKeys,
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
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.device.is_forked() {
            return;
        }
        // Waits for threads that move bytes of any region. The region is dropped, and possibly its
        // pages freed, after the table is unlocked.
        let region = write(&self.device.memory).remove(self.keys.lkey);
        drop(region);
        self.device.regions.remove();
    }
}
