//! Registered memory that the program owns and takes back, without `unsafe`.

use super::range::OutOfRange;
use super::registration::Registration;
use crate::backend::{DeviceError, Domain, DomainRef, MemoryOwner, MemoryRange, Region, listed};
use polyrail_core::verbs::{AccessFlags, DEVICE_ADDRESSES, LocalBuffer};
use polyrail_process::Process;
use polyrail_software_nic::{MemoryRegion, NicError, Span};
use std::cell::UnsafeCell;
use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

/// Memory of the program, such as a `Vec<u8>`, that is registered with one or more devices, which
/// may read and write it. The buffer owns the memory until [`into_inner`](Self::into_inner) returns
/// it. No byte is copied, and no `unsafe` is needed.
///
/// `M` is any type with `AsMut<[u8]>`: `Vec<u8>`, `Box<[u8]>`, `bytes::BytesMut`,
/// `memmap2::MmapMut`, `&'static mut [u8]`, or a type of yours. Its bytes at the time of the
/// registration are registered. For memory that the program reads meanwhile, or that has only
/// `AsRef<[u8]>`, see [`SharedBuffer`].
///
/// ```
/// use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
/// use polyrail::memory::OwnedBuffer;
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
/// let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
/// let source = OwnedBuffer::new(vec![7; 100_000], AccessFlags::empty(), &[&here])?;
/// let target = OwnedBuffer::new(vec![0; 100_000], writable, &[&there])?;
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
/// assert_eq!(target.into_inner()?, vec![7; 100_000]);
/// # Ok(())
/// # }
/// ```
///
/// # Buffer ownership
///
/// | while | devices and peers | the program |
/// |---|---|---|
/// | the buffer exists | read and write, as the access flags permit | copies bytes in and out: [`read_at`](Self::read_at), [`write_at`](Self::write_at) |
/// | `into_inner` has returned the memory | cannot access it | owns it |
/// | `into_inner` failed | may access it | cannot access it; it is never freed |
///
/// - **Requests in flight**: take the memory back after its requests are reported. If it is taken
///   back earlier, a request that needs it fails with LOC_PROT_ERR, and a peer's request with
///   REM_ACCESS_ERR, which ends the rail. Requests that were posted before on the same rail, and
///   are not acknowledged yet, may fail first: over TCP with RETRY_EXC_ERR and vendor code 0x10
///   ([`KEY_UNKNOWN`](crate::nic::vendor::KEY_UNKNOWN)). Those on other rails are flushed
///   (WR_FLUSH_ERR). A [`LocalBuffer`] may outlive the buffer; requests that
///   name it then fail in the same way.
/// - **INLINE** requests are refused: their bytes are copied by address, without a key. The buffer
///   therefore has a [device address](DEVICE_ADDRESSES), which is that of the memory plus 2^63.
/// - **Drop**: a buffer that is dropped deregisters and frees its memory. If a device fails to
///   deregister it, the memory is never freed. A buffer that is forgotten (`mem::forget`) stays
///   registered. An endpoint may end before its buffers, or after them.
/// - **Forks**: a child of `fork` cannot take its parent's memory back ([`DeviceError::Forked`]).
///   On kernels that do not copy pinned pages at a fork, a NIC's registration removes whole pages
///   from children, with what else is on them; a child must not touch or drop the buffer then.
///   Page-aligned memory that fills its pages, such as an `MmapMut`, shares them with nothing.
#[derive(Debug)]
pub struct OwnedBuffer<M, R = MemoryRegion> {
    held: Held<M, R>,
}

/// Memory of the program that is registered with one or more devices, which only read it, so the
/// program may read it as well. No byte is copied, and no `unsafe` is needed.
///
/// `M` is any type with `AsRef<[u8]>`: `bytes::Bytes`, `memmap2::Mmap`, `Arc<[u8]>`,
/// `&'static [u8]`, or a type of yours. Its bytes at the time of the registration are registered.
///
/// ```
/// use polyrail::memory::SharedBuffer;
/// use polyrail::nic::{DeviceConfig, Fabric};
/// use polyrail::verbs::AccessFlags;
/// use std::sync::Arc;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let domain = Fabric::threaded().create_device(DeviceConfig::named("here")).alloc_pd()?;
/// let model: Arc<[u8]> = Arc::from([1, 2, 3]);
/// let served = SharedBuffer::new(Arc::clone(&model), AccessFlags::REMOTE_READ, &[&domain])?;
/// assert_eq!((served.len(), served.memory()[2], model[2]), (3, 3, 3));
/// drop(served.into_inner()?);
/// # Ok(())
/// # }
/// ```
///
/// # Buffer ownership
///
/// As for [`OwnedBuffer`], but no device and no peer can write the memory, so the program reads it
/// at any time ([`memory`](Self::memory)). A receive, a READ or an atomic that names it fails with
/// LOC_PROT_ERR.
#[derive(Debug)]
pub struct SharedBuffer<M, R = MemoryRegion> {
    held: Held<M, R>,
}

impl<M: AsMut<[u8]> + Send + 'static, R: Region> OwnedBuffer<M, R> {
    /// Registers the bytes of `memory` with the same access in each of the domains.
    ///
    /// # Errors
    ///
    /// Contains the memory, unless a device may still access it ([`DeviceError::Deregister`]). No
    /// domains; no bytes; [`DeviceError::NoOnDemandPaging`]; a refusal of a device, such as the
    /// limit of locked memory.
    pub fn new<'d, D: Domain<Region = R>>(
        memory: M,
        access: AccessFlags,
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    ) -> Result<Self, RegisterError<M>> {
        let memory = Arc::new(Pinned(UnsafeCell::new(memory)));
        // SAFETY: nothing else has the memory yet. The slice stays borrowed from it until it is
        // deregistered: until then, it is neither accessed nor moved.
        let bytes = unsafe { &mut *memory.0.get() }.as_mut();
        let range = MemoryRange::new(bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the bytes live as long as the memory, and no reference to them remains.
        let held = unsafe { Held::register(memory, range, access, &listed(domains)) };
        Ok(Self { held: held? })
    }
}

impl<M, R: Region> OwnedBuffer<M, R> {
    /// Deregisters the memory with every device and returns it. Waits for accesses in progress.
    ///
    /// # Errors
    ///
    /// The memory is lost: it is not freed while the process lives. [`DeviceError::Deregister`]: a
    /// device may still access it. [`DeviceError::Forked`]: it belongs to the parent of this
    /// process.
    pub fn into_inner(self) -> Result<M, DeviceError> {
        self.held.take_back()
    }
}

impl<M, R> OwnedBuffer<M, R> {
    /// Describes `length` bytes from `offset`, for requests that are not INLINE.
    ///
    /// # Errors
    ///
    /// The range is not within the buffer.
    pub fn local(&self, offset: usize, length: u32) -> Result<LocalBuffer, OutOfRange> {
        self.held.local(offset, length)
    }

    /// Copies `bytes` into the buffer. Bytes that a device accesses meanwhile may be torn.
    ///
    /// # Errors
    ///
    /// The range is not within the buffer; nothing was copied.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.span(offset, bytes.len())?.write(bytes);
        Ok(())
    }

    /// Copies bytes out of the buffer. Bytes that a device writes meanwhile may be torn.
    ///
    /// # Errors
    ///
    /// The range is not within the buffer; nothing was copied.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        self.span(offset, bytes.len())?.read(bytes);
        Ok(())
    }

    fn span(&self, offset: usize, length: usize) -> Result<Span<'_>, OutOfRange> {
        let addr = self.held.registration.at(offset, length)? - DEVICE_ADDRESSES;
        let start = ptr::with_exposed_provenance_mut(addr as usize);
        // SAFETY: within the memory, which `self` keeps. There are no references to it, and devices
        // and programs access it by such copies.
        Ok(unsafe { Span::new(start, length) })
    }
}

/// Access flags with which a device or a peer may write, or let others write.
const WRITES: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND);

impl<M: AsRef<[u8]> + Send + Sync + 'static, R: Region> SharedBuffer<M, R> {
    /// Registers the bytes of `memory` with the same access in each of the domains.
    ///
    /// # Errors
    ///
    /// As [`OwnedBuffer::new`]. [`DeviceError::SharedAccess`]: the access flags permit more than
    /// reading.
    pub fn new<'d, D: Domain<Region = R>>(
        memory: M,
        access: AccessFlags,
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    ) -> Result<Self, RegisterError<M>> {
        if access.intersects(WRITES) {
            let error = DeviceError::SharedAccess { access: access & WRITES };
            return Err(RegisterError { error, memory: Some(memory) });
        }
        let memory = Arc::new(Pinned(UnsafeCell::new(memory)));
        // SAFETY: until it is deregistered, the memory is only borrowed by shared references, of
        // which this is one, and not moved.
        let bytes = unsafe { &*memory.0.get() }.as_ref();
        let range = MemoryRange::new(bytes.as_ptr().cast_mut(), bytes.len());
        // SAFETY: the bytes live as long as the memory, and nothing writes them, because the access
        // flags do not permit it.
        let held = unsafe { Held::register(memory, range, access, &listed(domains)) };
        Ok(Self { held: held? })
    }

    /// Returns the memory.
    pub fn memory(&self) -> &M {
        // SAFETY: until it is deregistered, which consumes `self`, there are only shared references
        // to the memory, and `M` is `Sync`.
        unsafe { &*self.held.owner.0.get() }
    }
}

impl<M, R: Region> SharedBuffer<M, R> {
    /// Deregisters the memory with every device and returns it. Waits for accesses in progress.
    ///
    /// # Errors
    ///
    /// As [`OwnedBuffer::into_inner`].
    pub fn into_inner(self) -> Result<M, DeviceError> {
        self.held.take_back()
    }
}

impl<M, R> SharedBuffer<M, R> {
    /// Describes `length` bytes from `offset`, for requests that are not INLINE.
    ///
    /// # Errors
    ///
    /// The range is not within the buffer.
    pub fn local(&self, offset: usize, length: u32) -> Result<LocalBuffer, OutOfRange> {
        self.held.local(offset, length)
    }
}

impl<M, R> Deref for OwnedBuffer<M, R> {
    type Target = Registration<R>;

    fn deref(&self) -> &Registration<R> {
        &self.held.registration
    }
}

impl<M, R> Deref for SharedBuffer<M, R> {
    type Target = Registration<R>;

    fn deref(&self) -> &Registration<R> {
        &self.held.registration
    }
}

/// Memory at a fixed place. Regions own it, so it is freed after the last of them is gone, and
/// moved only by [`Held::take_back`].
struct Pinned<M>(UnsafeCell<M>);

// SAFETY: shared handles of the memory access it only through `SharedBuffer`, which requires that
// `M` is `Sync`; the last handle drops or returns it.
unsafe impl<M: Send> Sync for Pinned<M> {}

/// A registration with the memory behind it.
struct Held<M, R> {
    // Before `owner`: deregistered first, although the regions own the memory anyway.
    registration: Registration<R>,
    owner: Arc<Pinned<M>>,
    process: Process,
}

impl<M: Send + 'static, R: Region> Held<M, R> {
    /// Registers `range`, which is memory of `owner`, at a device address.
    ///
    /// # Safety
    ///
    /// As [`Domain::register_memory`], for as long as `owner` or a clone of it exists.
    unsafe fn register<D: Domain<Region = R>>(
        owner: Arc<Pinned<M>>,
        range: MemoryRange,
        access: AccessFlags,
        domains: &[&D],
    ) -> Result<Self, RegisterError<M>> {
        let MemoryRange { iova: addr, length, .. } = range;
        let end = addr.checked_add(length as u64);
        let registered = if end.is_some_and(|end| end <= DEVICE_ADDRESSES) {
            let memory = MemoryRange { iova: addr + DEVICE_ADDRESSES, ..range };
            Registration::new((memory.iova, length), access, domains, |domain: &D| {
                let owner: MemoryOwner = Arc::<Pinned<M>>::clone(&owner);
                // SAFETY: guaranteed by the caller; the region keeps the owner.
                unsafe { domain.register_memory(memory, access, Some(owner)) }
            })
        } else {
            Err(NicError::AddressWraps { addr, length: length as u64 }.into())
        };
        match registered {
            Ok(registration) => Ok(Self { registration, owner, process: Process::current() }),
            Err(error) => Err(RegisterError { error, memory: unpin(owner) }),
        }
    }
}

impl<M, R: Region> Held<M, R> {
    fn take_back(self) -> Result<M, DeviceError> {
        // A child's copies of the regions keep the memory.
        self.process.check()?;
        let Self { registration, owner, .. } = self;
        registration.close()?;
        unpin(owner).ok_or(DeviceError::OwnerInUse)
    }
}

impl<M, R> Held<M, R> {
    fn local(&self, offset: usize, length: u32) -> Result<LocalBuffer, OutOfRange> {
        let addr = self.registration.at(offset, length as usize)?;
        // SAFETY: a device address. While it is registered, the regions own the bytes; devices only
        // read them, or no reference to them exists.
        Ok(unsafe { LocalBuffer::new(addr, length) })
    }
}

/// Returns the memory, unless a region still owns it.
fn unpin<M>(owner: Arc<Pinned<M>>) -> Option<M> {
    Arc::into_inner(owner).map(|pinned| pinned.0.into_inner())
}

/// Does not print the memory, which a device may be writing.
impl<M, R: fmt::Debug> fmt::Debug for Held<M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registration.fmt(f)
    }
}

/// Memory could not be registered.
pub struct RegisterError<M> {
    /// Why not.
    pub error: DeviceError,
    /// The memory; `None` after [`DeviceError::Deregister`], when a device may still access it.
    pub memory: Option<M>,
}

/// Does not print the memory.
impl<M> fmt::Debug for RegisterError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RegisterError").field(&self.error).finish()
    }
}

impl<M> fmt::Display for RegisterError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> Error for RegisterError<M> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

impl<M> From<RegisterError<M>> for DeviceError {
    fn from(error: RegisterError<M>) -> Self {
        error.error
    }
}
