//! Registered memory that the caller owns.

use super::range::OutOfRange;
use super::registration::Registration;
use crate::backend::{
    DeviceError, DmaBuf, Domain, DomainRef, MemoryOwner, MemoryRange, Region, listed,
};
use polyrail_core::verbs::{AccessFlags, LocalBuffer};
use polyrail_software_nic::MemoryRegion;
use std::ops::{Deref, Range};

/// Memory of the caller, registered with one or more devices: an allocation, a mapped file, memory
/// of a GPU.
///
/// It makes requests like a [`RegisteredBuffer`](super::RegisteredBuffer), but has no methods to
/// copy data in and out: the owner accesses the memory directly. Memory that a value owns, such as
/// a `Vec<u8>`, needs no `unsafe`: see [`OwnedBuffer`](super::OwnedBuffer) and
/// [`SharedBuffer`](super::SharedBuffer).
///
/// ```
/// use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
/// use polyrail::memory::ForeignBuffer;
/// use polyrail::nic::{DeviceConfig, Fabric};
/// use polyrail::verbs::{AccessFlags, SendWr};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fabric = Fabric::threaded();
/// # let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
/// # let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
/// # let mut sender = EndpointBuilder::new().build(&[&here])?;
/// # let mut receiver = EndpointBuilder::new().build(&[&there])?;
/// # connect_endpoints(&mut sender, &mut receiver)?;
/// let from = vec![7u8; 100_000];
/// let mut to = vec![0u8; 100_000];
///
/// let start = from.as_ptr().cast_mut();
/// // SAFETY: `from` is freed after `source` is closed, and is not written.
/// let source = unsafe { ForeignBuffer::new(start, from.len(), AccessFlags::empty(), &[&here]) }?;
/// let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
/// // SAFETY: `to` is touched again after `target` is closed.
/// let target = unsafe { ForeignBuffer::new(to.as_mut_ptr(), to.len(), writable, &[&there]) }?;
///
/// let keys = source.toward(&target.remote())?;
/// sender.post_send(&SendWr::write(1, source.local(0, 100_000)?, target.addr(), &keys))?;
/// let done = loop {
///     if let Some(done) = sender.poll(1).completions.pop() {
///         break done;
///     }
/// };
/// if !done.status.is_success() {
///     return Err(sender.explain(done.status).into());
/// }
/// source.close()?;
/// target.close()?;
/// assert_eq!(to, from);
/// # Ok(())
/// # }
/// ```
///
/// # Buffer ownership
///
/// The caller may reuse the memory once [`close`](Self::close) returns without an error. A drop
/// deregisters as well, but cannot report a failure, and a device may write to memory that it
/// failed to deregister. Unless deregistration cannot fail, as on the software NIC, pass an
/// [owner](Self::with_owner) before relying on a drop: after a failure the owner is never dropped.
#[derive(Debug)]
pub struct ForeignBuffer<R = MemoryRegion> {
    registration: Registration<R>,
}

impl<R: Region> ForeignBuffer<R> {
    /// Registers `length` bytes from `start` with the same access in each of the domains.
    ///
    /// With [`ON_DEMAND`](AccessFlags::ON_DEMAND) they are not pinned; the device waits for pages
    /// that are not present.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Deregister`]: a device refused, and another one then failed to deregister the
    /// memory, as if [`close`](Self::close) had failed. After any other error the memory is not
    /// registered: no domains; no bytes; [`DeviceError::NoOnDemandPaging`];
    /// [`DeviceError::RegionTooLong`], see [long memory](Registration#long-memory); another refusal
    /// of a device, such as the limit of locked memory.
    ///
    /// # Safety
    ///
    /// Until it is deregistered, see [buffer ownership](Self#buffer-ownership):
    ///
    /// - the bytes stay allocated, and writable if `access` has
    ///   [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE);
    /// - while requests may write some of the bytes (receives, READs, atomics, and any operation
    ///   that peers may do with the rkey), the program does not access those bytes, and no
    ///   reference to them exists; while requests may only read some of the bytes, the program does
    ///   not write those.
    ///
    /// A request's access ends with its polled completion. A peer's access ends with a completion
    /// here that its software ordered after the access.
    ///
    /// The same holds for every [`LocalBuffer`] that [`local`](Self::local) returns: none of them
    /// may be posted after the memory is freed.
    pub unsafe fn new<'d, D: Domain<Region = R>>(
        start: *mut u8,
        length: usize,
        access: AccessFlags,
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    ) -> Result<Self, DeviceError> {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::register(start, length, access, &listed(domains), None) }
    }

    /// Like [`new`](Self::new), for memory that `owner` owns. The owner is kept until the memory is
    /// deregistered with every device; if that fails, it is never dropped.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new), but the bytes only have to stay allocated until `owner` is dropped,
    /// and afterwards while a [`LocalBuffer`] from [`local`](Self::local) may be posted.
    pub unsafe fn with_owner<'d, D: Domain<Region = R>>(
        start: *mut u8,
        length: usize,
        access: AccessFlags,
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
        owner: MemoryOwner,
    ) -> Result<Self, DeviceError> {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::register(start, length, access, &listed(domains), Some(owner)) }
    }

    /// # Safety
    ///
    /// As [`new`](Self::new), or as [`with_owner`](Self::with_owner).
    unsafe fn register<D: Domain<Region = R>>(
        start: *mut u8,
        length: usize,
        access: AccessFlags,
        domains: &[&D],
        owner: Option<MemoryOwner>,
    ) -> Result<Self, DeviceError> {
        let memory = MemoryRange::new(start, length);
        let registration =
            Registration::new((memory.iova, length), access, domains, |domain: &D| {
                // SAFETY: guaranteed by the caller.
                unsafe { domain.register_memory(memory, access, owner.clone()) }
            });
        Ok(Self { registration: registration? })
    }

    /// Registers a part of a dma-buf with the same access in each of the domains. Requests name it
    /// by [`iova`](DmaBuf::iova).
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoDmaBuf`] on the software NIC; EOPNOTSUPP if the device, its driver or the
    /// library does not support dma-bufs. Otherwise as [`new`](Self::new).
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new), for the dma-buf's memory. No INLINE request may name it, because the
    /// CPU reads inline data from its address.
    pub unsafe fn of_dma_buf<'d, D: Domain<Region = R>>(
        dma_buf: &DmaBuf<'_>,
        access: AccessFlags,
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    ) -> Result<Self, DeviceError> {
        let place = (dma_buf.iova, dma_buf.length);
        let registration = Registration::new(place, access, &listed(domains), |domain: &D| {
            // SAFETY: guaranteed by the caller.
            unsafe { domain.register_dma_buf(dma_buf, access) }
        });
        Ok(Self { registration: registration? })
    }

    /// Deregisters the memory.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Deregister`]: a device may still access the memory, until the process closes
    /// the device.
    pub fn close(self) -> Result<(), DeviceError> {
        self.registration.close()
    }
}

impl<R> ForeignBuffer<R> {
    /// Returns a handle of the same registration, for a range within this one.
    pub(super) fn part(&self, range: &Range<u64>) -> Self {
        Self { registration: self.registration.part(range) }
    }

    /// Returns the description of the `length` bytes from `offset` that a request takes as its
    /// local buffer.
    ///
    /// # Errors
    ///
    /// The range is not within the buffer.
    pub fn local(&self, offset: usize, length: u32) -> Result<LocalBuffer, OutOfRange> {
        let addr = self.registration.at(offset, length as usize)?;
        // SAFETY: guaranteed by the caller of the constructor.
        Ok(unsafe { LocalBuffer::new(addr, length) })
    }
}

impl<R> Deref for ForeignBuffer<R> {
    type Target = Registration<R>;

    fn deref(&self) -> &Registration<R> {
        &self.registration
    }
}
