//! The interface of connections to both kinds of devices, without type parameters for the backend.

use arrayvec::ArrayVec;
use polyrail::backend::{DeviceError, DmaBuf, Domain};
use polyrail::endpoint::MAX_DEVICES;
use polyrail::hardware::CqError;
use polyrail::memory::{CacheLimits, CachedBuffer, ForeignBuffer, RegistrationCache};
use polyrail::p2p::{
    CallError, FlushHandle, HealingLink, NamedFailure, P2pAddress, P2pBuildError, P2pBuilder,
    P2pConnectError, P2pEndpoint, Received, RecvBuffer, RecvHandle, SendHandle,
};
use polyrail::verbs::{AccessFlags, DeviceKeys, LocalBuffer};
use polyrail::virtual_qp::RailEvent;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of completions per poll.
const BUDGET: usize = 32;

/// Access to registered memory: peers write messages, and this end's own devices read it for
/// flushes.
const ACCESS: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_READ);

/// One end of a connection, which sends or receives: a [`P2pEndpoint`] on any backend.
pub(crate) trait Wire: Send {
    fn address(&self) -> P2pAddress;
    /// Connects, without waiting. Returns whether it is connected.
    fn connect(&mut self, peer: &P2pAddress) -> Result<bool, P2pConnectError>;
    fn poll(&mut self) -> Result<(), CqError>;
    fn isend(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError>;
    /// Like `isend`, inline. Only for memory that this process can read.
    fn isend_inline(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError>;
    fn irecv(&mut self, buffers: &[RecvBuffer<'_>]) -> Result<RecvHandle, CallError>;
    fn test_send(&mut self, handle: SendHandle) -> Result<bool, CallError>;
    fn test_recv(&mut self, handle: RecvHandle) -> Result<Option<Received>, CallError>;
    fn flush(&mut self, received: &Received) -> Result<FlushHandle, CallError>;
    fn test_flush(&self, handle: &FlushHandle) -> Result<bool, CallError>;
    /// Returns the link of repair messages, if rails are re-routed.
    fn healing_link(&self) -> Option<HealingLink>;
    /// Handles the peer's repair messages, and creates messages for the peer.
    fn heal(&mut self);
    /// Returns the next event of a rail, with the name of its device.
    fn take_rail_event(&mut self) -> Option<(String, RailEvent)>;
    fn failure(&self) -> Option<NamedFailure>;
    fn fail(&mut self);
    fn give_up(&mut self, patience: Duration);
}

impl<D: Domain> Wire for P2pEndpoint<D>
where
    Self: Send,
{
    fn address(&self) -> P2pAddress {
        (**self).address()
    }

    fn connect(&mut self, peer: &P2pAddress) -> Result<bool, P2pConnectError> {
        (**self).try_connect(peer)
    }

    fn poll(&mut self) -> Result<(), CqError> {
        self.poll(BUDGET).check()
    }

    fn isend(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        (**self).isend(buffer, tag, keys)
    }

    fn isend_inline(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        (**self).isend_inline(buffer, tag, keys)
    }

    fn irecv(&mut self, buffers: &[RecvBuffer<'_>]) -> Result<RecvHandle, CallError> {
        (**self).irecv(buffers)
    }

    fn test_send(&mut self, handle: SendHandle) -> Result<bool, CallError> {
        (**self).test_send(handle)
    }

    fn test_recv(&mut self, handle: RecvHandle) -> Result<Option<Received>, CallError> {
        (**self).test_recv(handle)
    }

    fn flush(&mut self, received: &Received) -> Result<FlushHandle, CallError> {
        (**self).flush(received)
    }

    fn test_flush(&self, handle: &FlushHandle) -> Result<bool, CallError> {
        (**self).test_flush(handle)
    }

    fn healing_link(&self) -> Option<HealingLink> {
        (**self).healing_link()
    }

    fn heal(&mut self) {
        self.heal();
    }

    fn take_rail_event(&mut self) -> Option<(String, RailEvent)> {
        let (_, place, event) = (**self).take_rail_event()?;
        let device = self.device_of(place).unwrap_or_default().to_owned();
        Some((device, event))
    }

    fn failure(&self) -> Option<NamedFailure> {
        (**self).failure()
    }

    fn fail(&mut self) {
        (**self).fail();
    }

    fn give_up(&mut self, patience: Duration) {
        self.give_up(patience);
    }
}

/// Memory of NCCL, registered with all NICs of a device until this is dropped.
pub(crate) struct Registered {
    addr: u64,
    length: usize,
    pub(crate) keys: ArrayVec<DeviceKeys, MAX_DEVICES>,
    /// Whether it is memory of a GPU, where data of a NIC can become visible after its completion.
    pub(crate) is_gpu: bool,
    _held: Box<dyn Any + Send>,
}

impl Registered {
    fn new(
        (addr, length): (u64, usize),
        keys: Vec<DeviceKeys>,
        is_gpu: bool,
        held: Box<dyn Any + Send>,
    ) -> Self {
        let keys = keys.into_iter().take(MAX_DEVICES).collect();
        Self { addr, length, keys, is_gpu, _held: held }
    }

    /// Describes `length` bytes from `addr`, if they lie within the memory.
    pub(crate) fn local(&self, addr: u64, length: u32) -> Option<LocalBuffer> {
        let offset = addr.checked_sub(self.addr)?;
        let end = offset.checked_add(length.into())?;
        // SAFETY: guaranteed by the caller of the registration: the memory stays, and requests may
        // use it.
        (end <= self.length as u64).then(|| unsafe { LocalBuffer::new(addr, length) })
    }
}

/// The NICs of a device, one or several.
pub(crate) trait Nics: Send + Sync {
    /// Returns the number of NICs.
    fn count(&self) -> usize;

    /// Makes an end of a connection over these NICs.
    fn wire(&self, builder: &P2pBuilder) -> Result<Box<dyn Wire>, P2pBuildError>;

    /// Registers memory with each NIC.
    ///
    /// # Safety
    ///
    /// The memory stays allocated until the result is dropped.
    unsafe fn register(
        &self,
        start: *mut u8,
        length: usize,
        is_gpu: bool,
    ) -> Result<Registered, DeviceError>;

    /// Registers memory behind a dma-buf with each NIC.
    ///
    /// # Safety
    ///
    /// As [`register`](Self::register).
    unsafe fn register_dma_buf(&self, dma_buf: &DmaBuf<'_>) -> Result<Registered, DeviceError>;
}

struct NicsOf<D: Domain> {
    domains: Vec<D>,
    /// Shares registrations of the same memory, and deregisters unused memory at once.
    cache: RegistrationCache<D>,
}

/// Makes the interface to these domains.
pub(crate) fn nics<D>(domains: Vec<D>) -> Arc<dyn Nics>
where
    D: Domain,
    P2pEndpoint<D>: Send,
    RegistrationCache<D>: Send + Sync,
    CachedBuffer<D::Region>: Send,
    ForeignBuffer<D::Region>: Send,
{
    let limits = CacheLimits { max_registrations: 0, max_bytes: 0 };
    let cache = RegistrationCache::new(&domains.iter().collect::<Vec<_>>(), limits);
    Arc::new(NicsOf { domains, cache })
}

impl<D> Nics for NicsOf<D>
where
    D: Domain,
    P2pEndpoint<D>: Send,
    RegistrationCache<D>: Send + Sync,
    CachedBuffer<D::Region>: Send,
    ForeignBuffer<D::Region>: Send,
{
    fn count(&self) -> usize {
        self.domains.len()
    }

    fn wire(&self, builder: &P2pBuilder) -> Result<Box<dyn Wire>, P2pBuildError> {
        let domains: Vec<&D> = self.domains.iter().collect();
        Ok(Box::new(builder.build(&domains)?))
    }

    unsafe fn register(
        &self,
        start: *mut u8,
        length: usize,
        is_gpu: bool,
    ) -> Result<Registered, DeviceError> {
        // SAFETY: guaranteed by the caller; the cache keeps no unused registrations.
        let buffer = unsafe { self.cache.get(start, length, ACCESS) }?;
        let keys = buffer.own_keys();
        Ok(Registered::new((buffer.addr(), buffer.len()), keys, is_gpu, Box::new(buffer)))
    }

    unsafe fn register_dma_buf(&self, dma_buf: &DmaBuf<'_>) -> Result<Registered, DeviceError> {
        let domains: Vec<&D> = self.domains.iter().collect();
        // SAFETY: guaranteed by the caller; requests with memory of a GPU are never inline.
        let buffer = unsafe { ForeignBuffer::of_dma_buf(dma_buf, ACCESS, &domains) }?;
        let keys = buffer.own_keys();
        Ok(Registered::new((buffer.addr(), buffer.len()), keys, true, Box::new(buffer)))
    }
}
