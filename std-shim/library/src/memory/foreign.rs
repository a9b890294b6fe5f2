//! Registered memory that somebody else owns.

use super::range::OutOfRange;
use super::registration::Registration;
use crate::backend::{DeviceError, DmaBuf, Domain, MemoryOwner, Region};
use polyrail_core::verbs::{AccessFlags, LocalBuffer};
use polyrail_software_nic::MemoryRegion;
use std::ops::{Deref, Range};

/// Memory of the caller's own, registered with one or more devices: an allocation, a mapped file, memory of a
/// GPU.
///
/// It has what a [`RegisteredBuffer`](super::RegisteredBuffer) has to make requests, and nothing to copy in and
/// out: the bytes are reached as their owner reaches them.
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
/// // SAFETY: `from` is freed after `source` is closed, and nobody writes it.
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
/// The memory is the caller's again once [`close`](Self::close) returns without an error. A drop deregisters as
/// well, but cannot say that it failed, and while a device has not deregistered memory it may write it: whoever
/// drops without knowing that deregistration never fails, as on the software NIC, gives an
/// [owner](Self::with_owner), which then is kept for good.
#[derive(Debug)]
pub struct ForeignBuffer<R = MemoryRegion> {
    registration: Registration<R>,
}

impl<R: Region> ForeignBuffer<R> {
    /// `length` bytes from `start` on, registered with the same access in each of the domains.
    ///
    /// With [`ON_DEMAND`](AccessFlags::ON_DEMAND) they are not pinned: devices that have it wait for pages that
    /// are not there.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Deregister`]: a device refused, and one before did not let go of the memory: it is as if
    /// [`close`](Self::close) had failed. Otherwise the memory is the caller's: no domain at all; no bytes;
    /// [`DeviceError::NoOnDemandPaging`]; what a device refuses, such as more memory than may be locked.
    ///
    /// # Safety
    ///
    /// Until it is deregistered, see [buffer ownership](Self#buffer-ownership):
    ///
    /// - the bytes stay allocated, and writable if `access` has [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE);
    /// - while requests may write some of the bytes (receives, READs, atomics, and anything that
    ///   peers may do with the rkey), nobody else accesses those bytes, and no reference to them
    ///   exists; while requests may only read some of them, nobody writes those.
    ///
    /// A completion that was polled, and everything that the peer's software orders by one, ends a
    /// request's access.
    ///
    /// The promise covers every [`LocalBuffer`] that [`local`](Self::local) gives: none of them is posted after
    /// the memory is freed.
    pub unsafe fn new<D: Domain<Region = R>>(
        start: *mut u8,
        length: usize,
        access: AccessFlags,
        domains: &[&D],
    ) -> Result<Self, DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { Self::register(start, length, access, domains, None) }
    }

    /// As [`new`](Self::new), of memory that `owner` owns. It is kept until the memory is deregistered with
    /// every device; for good, if one cannot.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new), but the bytes have to stay allocated as long as `owner` is not dropped, and
    /// beyond that only for the sake of what [`local`](Self::local) gave.
    pub unsafe fn with_owner<D: Domain<Region = R>>(
        start: *mut u8,
        length: usize,
        access: AccessFlags,
        domains: &[&D],
        owner: MemoryOwner,
    ) -> Result<Self, DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { Self::register(start, length, access, domains, Some(owner)) }
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
        let place = (start.expose_provenance() as u64, length);
        let registration = Registration::new(place, access, domains, |domain: &D| {
            // SAFETY: the caller's promise.
            unsafe { domain.register_memory(start, length, access, owner.clone()) }
        });
        Ok(Self { registration: registration? })
    }

    /// A part of a dma-buf, registered with the same access in each of the domains. Requests name it by
    /// [`iova`](DmaBuf::iova).
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoDmaBuf`] on the software NIC; EOPNOTSUPP where the device, its driver or the library
    /// does not know dma-bufs. As [`new`](Self::new) otherwise.
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new), for the memory behind it. No INLINE request names it: those read the address that
    /// they are told, on the processor.
    pub unsafe fn of_dma_buf<D: Domain<Region = R>>(
        dma_buf: &DmaBuf<'_>,
        access: AccessFlags,
        domains: &[&D],
    ) -> Result<Self, DeviceError> {
        let place = (dma_buf.iova, dma_buf.length);
        let registration = Registration::new(place, access, domains, |domain: &D| {
            // SAFETY: the caller's promise.
            unsafe { domain.register_dma_buf(dma_buf, access) }
        });
        Ok(Self { registration: registration? })
    }

    /// Deregisters the memory.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Deregister`]: a device may still access it, for as long as the process has the device
    /// open.
    pub fn close(self) -> Result<(), DeviceError> {
        self.registration.close()
    }
}

impl<R> ForeignBuffer<R> {
    /// A handle to the same registration, for a range within this one.
    pub(super) fn part(&self, range: &Range<u64>) -> Self {
        Self { registration: self.registration.part(range) }
    }

    /// Describes `length` bytes from `offset` on, for requests.
    ///
    /// # Errors
    ///
    /// The range does not lie within the buffer.
    pub fn local(&self, offset: usize, length: u32) -> Result<LocalBuffer, OutOfRange> {
        let addr = self.registration.at(offset, length as usize)?;
        // SAFETY: who made the buffer promised it.
        Ok(unsafe { LocalBuffer::new(addr, length) })
    }
}

impl<R> Deref for ForeignBuffer<R> {
    type Target = Registration<R>;

    fn deref(&self) -> &Registration<R> {
        &self.registration
    }
}
