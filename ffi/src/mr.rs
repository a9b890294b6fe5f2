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

// Access flags are passed through.
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
/// The region does not own its memory, unless it was given the owner: see
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
    /// Registers memory: pins it and gives it keys.
    ///
    /// [`RELAXED_ORDERING`](AccessFlags::RELAXED_ORDERING) is a wish, which devices that do not know
    /// it ignore; every other flag that a device cannot grant is an error.
    ///
    /// With [`ZERO_BASED`](AccessFlags::ZERO_BASED) requests name the bytes by their place in the
    /// region, from 0 on, and `addr` must be a multiple of the page size.
    ///
    /// # Forks
    ///
    /// Where the kernel does not copy pinned pages at a fork, and unless `access` has
    /// [`ON_DEMAND`](AccessFlags::ON_DEMAND), the library takes the pages out of child processes
    /// (`MADV_DONTFORK`) until the region is gone. It can do that with whole pages only: what else lies
    /// on them is missing in a child too, and touching it there is a segmentation fault. Memory on
    /// pages of its own avoids that. [`fork_safety`](crate::fork_safety) says whether forks are safe.
    ///
    /// # Errors
    ///
    /// ENOMEM: mostly the limit of locked memory; EINVAL: flags that do not go together, or a zero
    /// based region off the start of a page; EFAULT: the
    /// range is not mapped; EOPNOTSUPP: a flag that the device does not know.
    ///
    /// # Safety
    ///
    /// Until the region is deregistered, which a drop does unless it tells the
    /// [hook](crate::set_destroy_hook) that it could not:
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
    ) -> Result<MemoryRegion> {
        let start = addr.expose_provenance() as u64;
        // Not every driver looks at the flag.
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { start };
        // SAFETY: the domain is alive, and the caller vouches for the memory. This is what the
        // header's `ibv_reg_mr` calls unless it can see that no optional flag is given.
        let raw = unsafe {
            rdma_sys::ibv_reg_mr_iova2(self.as_ptr(), addr.cast(), length, iova, access.bits())
        };
        // SAFETY: null, or a fresh region that is handed over.
        let raw =
            unsafe { Owned::new(raw, "ibv_reg_mr", Argument::Number("length", length as u64)) }?;
        Ok(MemoryRegion::new(raw, self, iova, length))
    }

    /// As [`register`](Self::register), of memory that `owner` owns. The region keeps it for as long as
    /// the device may reach the memory: until it is deregistered, and for the rest of the process if
    /// that fails, for example because a window that was forgotten is bound to it. So memory can leak
    /// here, and is never written by a device after it became somebody else's. A failure in a drop tells
    /// the [hook](crate::set_destroy_hook), once for each region that keeps its owner.
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
    ) -> Result<MemoryRegion> {
        // SAFETY: the caller's promise, and the owner is kept for so long.
        let mut region = unsafe { self.register(addr, length, access) }?;
        region.raw.keep(owner);
        Ok(region)
    }

    /// Registers `length` bytes from `offset` on of a dma-buf, such as memory of a GPU. Requests name
    /// them by addresses from `iova` on, which is a multiple of the page size plus `offset`'s rest.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP: the device or its driver knows no dma-buf, or the library is older than rdma-core 34, which
    /// the argument tells; EBADF; EINVAL: the range does not lie within the buffer.
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
        let access = access.bits() as libc::c_int;
        // SAFETY: the domain is alive, and the caller vouches for the memory.
        let raw = unsafe {
            rdma_sys::ibv_reg_dmabuf_mr(self.as_ptr(), offset, length, iova, fd.as_raw_fd(), access)
        };
        const CALL: &str = "ibv_reg_dmabuf_mr";
        let too_old = Argument::Library("libibverbs.so.1 is too old and lacks it");
        let raw = raw.ok_or(VerbsError::new(CALL, libc::EOPNOTSUPP, too_old))?;
        let argument = Argument::Number("length", length as u64);
        // SAFETY: null, or a fresh region that is handed over.
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

    /// Key for local requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Key for peers' requests.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Address by which requests name the first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "drivers refuse empty regions")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// The domain it is registered in.
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
    /// EBUSY, of rxe EINVAL: a memory window is bound to it.
    pub fn close(self) -> std::result::Result<(), VerbsError> {
        self.raw.close()
    }
}
