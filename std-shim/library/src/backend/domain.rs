//! The interface of endpoints to a device.

use super::connect::Connect;
use super::connecting::Connecting;
use super::error::DeviceError;
use super::event::DeviceEvent;
use super::notify::Notify;
use super::port::Port;
use super::region::{DmaBuf, MemoryOwner, MemoryRange, Region};
use polyrail_core::hardware::ReceiveQueue;
use polyrail_core::verbs::{AccessFlags, DeviceId};
use polyrail_software_nic::{EventCursor, Pages, QpCap, RegionKeys};
use std::sync::Arc;

/// A device in a list of devices: a reference, or a reference to one. Functions take devices as any
/// iterator of them: `[&here]`, `&[&here]`, `&devices` or `devices.iter()`, if `devices` is a
/// `Vec` of devices or of references to them.
pub trait DomainRef<'d, D> {
    /// Returns the device.
    fn domain(self) -> &'d D;
}

impl<'d, D: Domain> DomainRef<'d, D> for &'d D {
    fn domain(self) -> &'d D {
        self
    }
}

impl<'d, D: Domain> DomainRef<'d, D> for &'d &D {
    fn domain(self) -> &'d D {
        self
    }
}

/// Collects a list of devices.
pub(crate) fn listed<'d, D, T: DomainRef<'d, D>>(
    domains: impl IntoIterator<Item = T>,
) -> Vec<&'d D> {
    domains.into_iter().map(DomainRef::domain).collect()
}

/// An open device with a protection domain, and the ports that rails use. Cloning is cheap: clones
/// share the device. An endpoint keeps a clone to create replacements of failed queue pairs.
pub trait Domain: Clone + Send + Sync + 'static {
    /// The backend's queue pair.
    type Qp: Connect + Send;
    /// The backend's completion queue.
    type Cq: Notify;
    /// The backend's shared receive queue. A clone is another handle of the same queue, which may
    /// post from another thread.
    type Srq: ReceiveQueue + Clone;
    /// The backend's registered memory.
    type Region: Region;

    /// Returns the device's number, unique in this process.
    fn device_id(&self) -> DeviceId;

    /// Returns the device's name, for messages.
    fn device_name(&self) -> &str;

    /// Returns whether its queue pairs are connected over TCP. They can be connected only to others
    /// over TCP. By default `false`.
    fn is_tcp(&self) -> bool {
        false
    }

    /// Allocates another protection domain of the device, with the same ports. Keys of one are
    /// worth nothing on queue pairs of the other, so peers that do not trust each other get one
    /// each.
    ///
    /// # Errors
    ///
    /// The device has no more, or was removed.
    fn separate(&self) -> Result<Self, DeviceError>;

    /// Maximum outstanding requests per queue of a queue pair.
    fn max_qp_wr(&self) -> u32;

    /// Maximum scatter/gather entries per request or receive.
    fn max_sge(&self) -> u32;

    /// Maximum receives in a shared receive queue.
    fn max_srq_wr(&self) -> u32;

    /// Maximum length of a memory region in bytes; [`u64::MAX`] if it is unlimited or unknown.
    fn max_region_bytes(&self) -> u64;

    /// Returns the ports that rails use in turn, at least one.
    ///
    /// # Errors
    ///
    /// The device does not report them, or was removed.
    fn ports(&self) -> Result<Vec<Port>, DeviceError>;

    /// Returns the present attributes of one of the [`ports`](Self::ports); its address may have
    /// changed.
    ///
    /// # Errors
    ///
    /// The port does not exist or is down, or the device was removed.
    fn port(&self, number: u8) -> Result<Port, DeviceError>;

    /// Returns the present rate in Mbit/s at which the device can use one of the
    /// [`ports`](Self::ports); 0 if it is unknown, as by default. Not cheap: it may read several
    /// files of the kernel.
    ///
    /// # Errors
    ///
    /// Those of [`port`](Self::port).
    fn port_mbps(&self, number: u8) -> Result<u32, DeviceError> {
        self.port(number).map(|_| 0)
    }

    /// Whether the device was removed, or failed and will not work again, so that no rail uses it any
    /// more ([`DeviceEvent::Gone`]). By default `false`. Memory is then registered with the other
    /// devices only: see [`Registration`](crate::memory::Registration#devices-that-are-gone).
    fn is_gone(&self) -> bool {
        false
    }

    /// Returns a cursor for a new reader of the device's events. It is after all events so far.
    fn event_cursor(&self) -> EventCursor;

    /// Returns the oldest event that this reader has not read. Does not block, and is cheap if
    /// there is no event, so it may be called every millisecond.
    ///
    /// All readers of all clones see all events. A reader that falls far behind misses the oldest,
    /// so events only make reactions faster: every condition that an event reports also shows in
    /// failed completions and in [`port`](Self::port).
    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent>;

    /// Creates a completion queue for at least `capacity` completions.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_cq(&self, capacity: u32) -> Result<Self::Cq, DeviceError>;

    /// Creates a completion queue with a separate completion channel, which reports completions
    /// once the queue is [armed](Notify::req_notify). `comp_vector`, modulo the device's number of
    /// completion vectors, selects the interrupt.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_cq_with_channel(
        &self,
        capacity: u32,
        comp_vector: u32,
    ) -> Result<Self::Cq, DeviceError>;

    /// Enlarges a completion queue of this device to at least `capacity` completions. Queued
    /// completions stay.
    ///
    /// # Errors
    ///
    /// The device refuses, or its driver does not support resizing.
    fn resize_cq(&self, cq: &mut Self::Cq, capacity: u32) -> Result<(), DeviceError>;

    /// Creates a reliable connected queue pair in RESET. Both its queues complete on `cq`.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_qp(&self, cq: &Self::Cq, cap: QpCap) -> Result<Self::Qp, DeviceError>;

    /// Creates a shared receive queue for `max_wr` receives.
    ///
    /// # Errors
    ///
    /// The device refuses, or does not support shared receive queues.
    fn create_srq(&self, max_wr: u32) -> Result<Self::Srq, DeviceError>;

    /// Like [`create_qp`](Self::create_qp), with receives from `srq`; `cap.max_recv_wr` is ignored.
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

    /// Creates a queue pair as [`create_qp`](Self::create_qp) does, or as
    /// [`create_qp_with_srq`](Self::create_qp_with_srq) does if there is an `srq`, then executes
    /// `steps` with it and the present attributes of [`port`](Self::port) `number`, and returns
    /// what they return. Backends on which this is slow use another thread, so that the caller does
    /// not block.
    fn make_aside<T: Send + 'static>(
        &self,
        (cq, srq): (&Self::Cq, Option<&Self::Srq>),
        cap: QpCap,
        port: u8,
        steps: impl FnOnce(Self::Qp, Port) -> Result<T, DeviceError> + Send + 'static,
    ) -> Connecting<T> {
        let make = || {
            let port = self.port(port)?;
            let qp = match srq {
                Some(srq) => self.create_qp_with_srq(cq, srq, cap),
                None => self.create_qp(cq, cap),
            }?;
            steps(qp, port)
        };
        Connecting::done(make())
    }

    /// Whether memory can be registered with [`ON_DEMAND`](AccessFlags::ON_DEMAND) for all requests
    /// of endpoints but atomics. Such memory is not pinned; the device waits for pages that are not
    /// present.
    ///
    /// # Errors
    ///
    /// The device does not answer the query.
    fn has_on_demand_paging(&self) -> Result<bool, DeviceError>;

    /// Whether registering memory takes a time in proportion to its length, because the device pins
    /// each page. Several such devices register long memory at the same time, on other threads.
    fn pins_memory(&self) -> bool {
        true
    }

    /// Registers memory. The region keeps `owner` until the memory is deregistered; if that fails,
    /// it is never dropped.
    ///
    /// # Errors
    ///
    /// The device refuses.
    ///
    /// # Safety
    ///
    /// Until the region is dropped, and afterwards if [`close`](Region::close) fails; with an
    /// owner, until the owner is dropped:
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
    unsafe fn register_memory(
        &self,
        memory: MemoryRange,
        access: AccessFlags,
        owner: Option<MemoryOwner>,
    ) -> Result<(Self::Region, RegionKeys), DeviceError>;

    /// Registers a part of a dma-buf.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoDmaBuf`]: the backend does not implement this method. The device refuses.
    ///
    /// # Safety
    ///
    /// As [`register_memory`](Self::register_memory), for the dma-buf's memory. No INLINE request
    /// may name it, because the CPU reads inline data from its address.
    unsafe fn register_dma_buf(
        &self,
        _dma_buf: &DmaBuf<'_>,
        _access: AccessFlags,
    ) -> Result<(Self::Region, RegionKeys), DeviceError> {
        Err(DeviceError::NoDmaBuf { device: self.device_name().into() })
    }

    /// Registers `pages`, exactly [`len`](Pages::len) bytes. The region keeps the pages until it is
    /// dropped.
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
        // SAFETY: the bytes exist as long as the pages, which the region owns, and are only
        // accessed by copies.
        unsafe { self.register_memory(MemoryRange::new(start, pages.len()), access, Some(owner)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_software_nic::{DeviceConfig, Fabric, ProtectionDomain};

    fn ids<'d, D: Domain>(domains: impl IntoIterator<Item: DomainRef<'d, D>>) -> Vec<DeviceId> {
        listed(domains).into_iter().map(D::device_id).collect()
    }

    /// As of a program that is generic over backends.
    fn generic<D: Domain>(domains: &[D]) -> Vec<DeviceId> {
        let references: Vec<&D> = domains.iter().collect();
        assert_eq!(ids(&references), ids(domains));
        ids(&[&domains[0], &domains[1]])
    }

    #[test]
    fn devices_are_listed_by_any_iterator_of_references() {
        let fabric = Fabric::threaded();
        let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap();
        let domains: Vec<ProtectionDomain> = vec![device("a"), device("b")];
        let expected = [domains[0].device_id(), domains[1].device_id()];
        assert_eq!(ids(&domains), expected);
        assert_eq!(ids(domains.iter()), expected);
        assert_eq!(ids([&domains[0], &domains[1]]), expected);
        assert_eq!(ids(&[&domains[0], &domains[1]]), expected);
        assert_eq!(ids(domains.iter().rev().rev()), expected);
        assert_eq!(generic(&domains), expected);
    }
}
