//! What endpoints ask of a device.

use super::connect::Connect;
use super::connecting::Connecting;
use super::error::DeviceError;
use super::event::DeviceEvent;
use super::notify::Notify;
use super::port::Port;
use super::region::{DmaBuf, MemoryOwner, Region};
use polyrail_core::hardware::ReceiveQueue;
use polyrail_core::verbs::{AccessFlags, DeviceId};
use polyrail_software_nic::{EventCursor, Pages, QpCap, RegionKeys};
use std::sync::Arc;

/// A device as endpoints use it: opened, with a protection domain, and with the ports that rails
/// are to take. A cheap handle: clones mean the same device. An endpoint keeps one, and makes queue pairs
/// with it in the place of those that failed.
pub trait Domain: Clone + Send + Sync + 'static {
    /// Its queue pairs.
    type Qp: Connect;
    /// Its completion queues.
    type Cq: Notify;
    /// Its shared receive queues. A clone is another handle of the same queue, which may post from another
    /// thread.
    type Srq: ReceiveQueue + Clone;
    /// Registered memory.
    type Region: Region;

    /// The device's number, unique in this process.
    fn device_id(&self) -> DeviceId;

    /// The device's name, for people.
    fn device_name(&self) -> &str;

    /// Requests that one queue of a queue pair can hold.
    fn max_qp_wr(&self) -> u32;

    /// Buffers that one request or receive can have, at most.
    fn max_sge(&self) -> u32;

    /// Receives that one shared receive queue can hold.
    fn max_srq_wr(&self) -> u32;

    /// The ports that rails take in turn, at least one.
    ///
    /// # Errors
    ///
    /// The device does not report them, or is gone.
    fn ports(&self) -> Result<Vec<Port>, DeviceError>;

    /// One of its [`ports`](Self::ports) as it is now: its address may be another one than before.
    ///
    /// # Errors
    ///
    /// There is no such port, or it carries no data now; the device is gone.
    fn port(&self, number: u8) -> Result<Port, DeviceError>;

    /// Where a reader of the device's events who begins now begins: behind those that happened so far.
    fn event_cursor(&self) -> EventCursor;

    /// The oldest event that this reader has not seen. Never waits for one, and costs little when there is
    /// none: it may be asked every millisecond.
    ///
    /// All readers, of all clones, see all events. A reader who falls far behind misses the oldest, so an
    /// event is a hint to act at once; what it would have told is also found by completions that fail
    /// and by [`port`](Self::port).
    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent>;

    /// A completion queue for at least `capacity` completions.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_cq(&self, capacity: u32) -> Result<Self::Cq, DeviceError>;

    /// A completion queue that tells a completion channel of its own when it has something, once it is
    /// [armed](Notify::req_notify). `comp_vector` is which interrupt tells, modulo the number of those that the
    /// device has.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_cq_with_channel(
        &self,
        capacity: u32,
        comp_vector: u32,
    ) -> Result<Self::Cq, DeviceError>;

    /// Makes a completion queue of this device hold at least `capacity` completions, more than before. What it
    /// holds stays.
    ///
    /// # Errors
    ///
    /// The device refuses, or cannot: some drivers have no way to.
    fn resize_cq(&self, cq: &mut Self::Cq, capacity: u32) -> Result<(), DeviceError>;

    /// A reliable connected queue pair in RESET, whose queues both complete on `cq`.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_qp(&self, cq: &Self::Cq, cap: QpCap) -> Result<Self::Qp, DeviceError>;

    /// A shared receive queue for `max_wr` receives.
    ///
    /// # Errors
    ///
    /// The device refuses, or has none.
    fn create_srq(&self, max_wr: u32) -> Result<Self::Srq, DeviceError>;

    /// As [`create_qp`](Self::create_qp), but receives come from `srq`: there is no room for others, whatever
    /// `cap` says.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_qp_with_srq(
        &self,
        cq: &Self::Cq,
        srq: &Self::Srq,
        cap: QpCap,
    ) -> Result<Self::Qp, DeviceError>;

    /// A queue pair as [`create_qp`](Self::create_qp) makes it, or with `srq` as
    /// [`create_qp_with_srq`](Self::create_qp_with_srq) does, with which `steps` are then carried out; they are told the
    /// [`port`](Self::port) of this number as it is now. Where any of that may take long, its owner does not wait for
    /// it.
    fn make_aside<T: Send + 'static>(
        &self,
        (cq, srq): (&Self::Cq, Option<&Self::Srq>),
        cap: QpCap,
        port: u8,
        steps: impl FnOnce(&Self::Qp, Port) -> Result<T, DeviceError> + Send + 'static,
    ) -> Connecting<(Self::Qp, T)> {
        let make = || {
            let port = self.port(port)?;
            let qp = match srq {
                Some(srq) => self.create_qp_with_srq(cq, srq, cap),
                None => self.create_qp(cq, cap),
            }?;
            let more = steps(&qp, port)?;
            Ok((qp, more))
        };
        Connecting::done(make())
    }

    /// Whether memory can be registered with [`ON_DEMAND`](AccessFlags::ON_DEMAND), for all requests of
    /// endpoints but atomics: it is not pinned, and the device waits for pages that are not there.
    ///
    /// # Errors
    ///
    /// The device does not say.
    fn has_on_demand_paging(&self) -> Result<bool, DeviceError>;

    /// Registers `length` bytes from `start` on. The region keeps the owner; for good, if the memory cannot be
    /// deregistered.
    ///
    /// # Errors
    ///
    /// The device refuses.
    ///
    /// # Safety
    ///
    /// Until the region is gone, and longer if [`close`](Region::close) fails; with an owner, until it is
    /// dropped:
    ///
    /// - the bytes stay allocated, and writable if `access` has [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE);
    /// - while requests may write some of the bytes (receives, READs, atomics, and anything that
    ///   peers may do with the rkey), nobody else accesses those bytes, and no reference to them
    ///   exists; while requests may only read some of them, nobody writes those.
    ///
    /// A completion that was polled, and everything that the peer's software orders by one, ends a
    /// request's access.
    unsafe fn register_memory(
        &self,
        start: *mut u8,
        length: usize,
        access: AccessFlags,
        owner: Option<MemoryOwner>,
    ) -> Result<(Self::Region, RegionKeys), DeviceError>;

    /// Registers a part of a dma-buf.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoDmaBuf`]: not on this backend, as long as it does not have this method. The device
    /// refuses.
    ///
    /// # Safety
    ///
    /// As [`register_memory`](Self::register_memory), for the memory behind it. No INLINE request names it:
    /// those read the address that they are told, on the processor.
    unsafe fn register_dma_buf(
        &self,
        _dma_buf: &DmaBuf<'_>,
        _access: AccessFlags,
    ) -> Result<(Self::Region, RegionKeys), DeviceError> {
        Err(DeviceError::NoDmaBuf { device: self.device_name().into() })
    }

    /// Registers `pages`, all [`len`](Pages::len) bytes and no more. Until the region is dropped, it
    /// keeps the pages.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn register_pages(
        &self,
        pages: &Arc<Pages>,
        access: AccessFlags,
    ) -> Result<(Self::Region, RegionKeys), DeviceError> {
        let start = std::ptr::with_exposed_provenance_mut(pages.addr() as usize);
        let owner: MemoryOwner = Arc::<Pages>::clone(pages);
        // SAFETY: this many bytes exist as long as the pages do, and they are accessed by copying only.
        unsafe { self.register_memory(start, pages.len(), access, Some(owner)) }
    }
}
