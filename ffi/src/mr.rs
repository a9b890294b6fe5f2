//! Memory regions.

use crate::error::{Argument, Result, VerbsError};
use crate::owned::Owned;
use crate::pd::ProtectionDomain;
use polyrail_core::verbs::AccessFlags;
use rdma_sys::{ibv_access_flags, ibv_mr};
use static_assertions::const_assert_eq;
use std::any::Any;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

// Numbers of access flags are those of the header.
const_assert_eq!(AccessFlags::LOCAL_WRITE.bits(), ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0);
const_assert_eq!(AccessFlags::REMOTE_WRITE.bits(), ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0);
const_assert_eq!(AccessFlags::REMOTE_READ.bits(), ibv_access_flags::IBV_ACCESS_REMOTE_READ.0);
const_assert_eq!(AccessFlags::REMOTE_ATOMIC.bits(), ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0);
const_assert_eq!(AccessFlags::MW_BIND.bits(), ibv_access_flags::IBV_ACCESS_MW_BIND.0);
const_assert_eq!(AccessFlags::ZERO_BASED.bits(), ibv_access_flags::IBV_ACCESS_ZERO_BASED.0);
const_assert_eq!(AccessFlags::ON_DEMAND.bits(), ibv_access_flags::IBV_ACCESS_ON_DEMAND.0);
const_assert_eq!(AccessFlags::HUGETLB.bits(), ibv_access_flags::IBV_ACCESS_HUGETLB.0);
const_assert_eq!(
    AccessFlags::RELAXED_ORDERING.bits(),
    ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0
);

/// Registered memory (`struct ibv_mr`). Dropping it deregisters the memory.
///
/// # Buffer ownership
///
/// The region does not own its memory unless it was registered with an owner: see
/// [`ProtectionDomain::register`] and [`ProtectionDomain::register_owned`].
#[derive(Debug)]
pub struct MemoryRegion {
    raw: Owned<ibv_mr>,
    pd: ProtectionDomain,
    lkey: u32,
    rkey: u32,
    addr: u64,
    length: usize,
}

impl ProtectionDomain {
    /// Registers memory: pins it and assigns keys.
    ///
    /// Devices that do not support [`RELAXED_ORDERING`](AccessFlags::RELAXED_ORDERING) ignore it;
    /// any other unsupported flag is an error.
    ///
    /// With [`ZERO_BASED`](AccessFlags::ZERO_BASED), requests address the bytes by their offset in
    /// the region, and `addr` must be a multiple of the page size.
    ///
    /// # Forks
    ///
    /// If the kernel does not copy pinned pages at a fork, and `access` does not have
    /// [`ON_DEMAND`](AccessFlags::ON_DEMAND), the library removes the pages from child processes
    /// (`MADV_DONTFORK`) until the region is deregistered. It removes whole pages: other data on
    /// these pages is missing in a child, too, and accessing it there is a segmentation fault.
    /// Page-aligned memory that shares no pages with other data avoids this.
    /// [`fork_safety`](crate::fork_safety) returns whether forks are safe.
    ///
    /// # Errors
    ///
    /// ENOMEM: usually the limit of locked memory; EINVAL: incompatible flags, or a zero-based
    /// region that does not start at a page; EFAULT: the range is not mapped; EOPNOTSUPP: the
    /// device does not support a flag.
    ///
    /// # Safety
    ///
    /// Until the region is deregistered, the following must hold. Dropping the region deregisters
    /// it, unless that fails and the [hook](crate::set_destroy_hook) is called:
    ///
    /// - the `length` bytes from `addr` stay allocated, and writable if `access` has
    ///   [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE);
    /// - while requests may write some of the bytes (receives, READs, atomics, and any operation
    ///   that peers may do with the rkey), the program does not access those bytes, and no
    ///   reference to them exists; while requests may only read some of the bytes, the program does
    ///   not write those.
    ///
    /// A request's access ends with its polled completion. A peer's access ends with a completion
    /// here that its software ordered after the access.
    pub unsafe fn register(
        &self,
        addr: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion> {
        let start = addr.expose_provenance() as u64;
        // Not every driver evaluates the flag.
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { start };
        // SAFETY: guaranteed by the caller.
        unsafe { self.register_iova(addr, length, iova, access) }
    }

    /// Like [`register`](Self::register), but requests name the first byte by the address `iova`,
    /// which must equal `addr` modulo the page size.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register); EINVAL: the two addresses differ modulo the page size.
    ///
    /// # Safety
    ///
    /// As [`register`](Self::register).
    pub unsafe fn register_iova(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion> {
        const CALL: &str = "ibv_reg_mr";
        let pd = self.for_call(CALL)?;
        // SAFETY: the domain is alive, and the caller guarantees the memory. The header's
        // `ibv_reg_mr` makes this call, too, unless it can see that no optional flag is set.
        let raw =
            unsafe { rdma_sys::ibv_reg_mr_iova2(pd, addr.cast(), length, iova, access.bits()) };
        // SAFETY: null, or a new region that nothing else owns.
        let raw = unsafe { Owned::new(raw, CALL, Argument::Number("length", length as u64)) }?;
        Ok(MemoryRegion::new(raw, self, iova, length))
    }

    /// Like [`register`](Self::register), for memory that `owner` owns. The region keeps `owner`
    /// while the device may reach the memory: until it is deregistered, or until the process ends
    /// if that fails, for example because a forgotten window is bound to it. Memory can therefore
    /// leak, but a device never writes to memory that was freed and reused. If deregistration fails
    /// in a drop, the [hook](crate::set_destroy_hook) is called once for each region that keeps its
    /// owner.
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
    ) -> Result<MemoryRegion> {
        // SAFETY: guaranteed by the caller; the region keeps the owner.
        Ok(unsafe { self.register(addr, length, access) }?.keeping(owner))
    }

    /// Registers `length` bytes of a dma-buf from `offset`, such as memory of a GPU. Requests
    /// address them from `iova`, which must equal `offset` modulo the page size.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP: the device or its driver does not support dma-bufs, or the library is older than
    /// rdma-core 34, in which case the error's argument names the library; EBADF; EINVAL: the range
    /// is not within the buffer.
    ///
    /// # Safety
    ///
    /// As [`register`](Self::register), for the memory behind `fd`.
    pub unsafe fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion> {
        const CALL: &str = "ibv_reg_dmabuf_mr";
        let pd = self.for_call(CALL)?;
        let access = access.bits() as libc::c_int;
        // SAFETY: the domain is alive, and the caller guarantees the memory.
        let raw = unsafe {
            rdma_sys::ibv_reg_dmabuf_mr(pd, offset, length, iova, fd.as_raw_fd(), access)
        };
        let too_old = Argument::Library("libibverbs.so.1 is too old and lacks it");
        let raw = raw.ok_or(VerbsError::new(CALL, libc::EOPNOTSUPP, too_old))?;
        let argument = Argument::Number("length", length as u64);
        // SAFETY: null, or a new region that nothing else owns.
        let raw = unsafe { Owned::new(raw, CALL, argument) }?;
        Ok(MemoryRegion::new(raw, self, iova, length))
    }
}

impl MemoryRegion {
    fn new(raw: Owned<ibv_mr>, pd: &ProtectionDomain, addr: u64, length: usize) -> Self {
        // SAFETY: the region is alive, and its keys do not change.
        let lkey = unsafe { (*raw.as_ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        Self { raw, pd: pd.clone(), lkey, rkey, addr, length }
    }

    /// Keeps `owner` as a region of [`register_owned`](ProtectionDomain::register_owned) does.
    #[must_use]
    pub fn keeping(mut self, owner: Arc<dyn Any + Send + Sync>) -> Self {
        self.raw.keep(owner);
        self
    }

    /// Returns the key for local requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Returns the key for peers' requests.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns the address by which requests name the first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "drivers refuse empty regions")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the protection domain of the region.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    /// Deregisters the memory. If that fails, the device may still reach it.
    ///
    /// # Errors
    ///
    /// EBUSY, or EINVAL from rxe: a memory window is bound to the region.
    pub fn close(self) -> std::result::Result<(), VerbsError> {
        self.raw.close()
    }
}
