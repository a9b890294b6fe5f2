//! A verbs device as a [`Domain`].

use super::events::{Events, meaning, take_event};
use super::port::usable_port;
use crate::backend::{
    Connecting, DeviceError, DeviceEvent, DmaBuf, Domain, EventCursor, MemoryOwner, MemoryRange,
    Notify, Port, QpCap, Region,
};
use crate::devices::present_mbps;
use crate::memory::RegionKeys;
use crate::place::Place;
use polyrail_core::verbs::{AccessFlags, DeviceId};
use polyrail_ffi::{
    AsyncEvent, CompletionChannel, CompletionQueue, CqInit, MemoryRegion, OnDemandRequests,
    PortAttributes, ProtectionDomain, QpInit, QueuePair, SharedReceiveQueue, SrqInit, VerbsError,
};
use std::iter;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// An open verbs device, with a protection domain and the ports that rails use.
#[derive(Clone, Debug)]
pub struct VerbsDomain {
    pd: ProtectionDomain,
    ports: Vec<Port>,
    /// Index in every port's GID table; `None` selects the best entry.
    gid_index: Option<u8>,
    /// Events of the context, which its domains share.
    events: Arc<Events>,
}

impl VerbsDomain {
    pub(super) fn new(pd: ProtectionDomain, ports: Vec<Port>, gid_index: Option<u8>) -> Self {
        Self { pd, ports, gid_index, events: Arc::new(Events::new()) }
    }

    /// Returns the protection domain, for operations that this type does not have.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns the present attributes of one of the ports, which is active.
    fn active_port(&self, number: u8) -> Result<PortAttributes, DeviceError> {
        if self.ports.iter().all(|port| port.number != number) {
            return Err(DeviceError::NoPort { port: number });
        }
        let attributes = self.pd.context().query_port(number)?;
        if !attributes.state.is_active() {
            return Err(DeviceError::PortDown { port: number });
        }
        Ok(attributes)
    }

    /// Wraps a region, or the error of registering it.
    fn registered(
        &self,
        registered: Result<MemoryRegion, VerbsError>,
    ) -> Result<(VerbsRegion, RegionKeys), DeviceError> {
        let device = self.device_id();
        let refused = |source: VerbsError| DeviceError::Register {
            device: self.device_name().into(),
            source: Box::new(source),
        };
        let region = registered.map_err(refused)?;
        let keys = RegionKeys { device, lkey: region.lkey(), rkey: region.rkey() };
        Ok((VerbsRegion(region), keys))
    }

    /// Returns the oldest event of the device, of any kind, that this reader has not read. The
    /// second value is the `user_context` of the object that the event names; see
    /// [`polyrail_ffi::Context::next_event_and_user_context`]. Does not block. A reader that falls
    /// behind by more than 1024 events misses the oldest.
    ///
    /// A reader starts with [`event_cursor`](Domain::event_cursor), and does not take events from
    /// endpoints; see the [module](crate::rdma#events).
    pub fn next_async_event(&self, reader: &mut EventCursor) -> Option<(AsyncEvent, usize)> {
        self.events.next(reader, || take_event(self.pd.context()))
    }
}

/// Registered memory, which keeps its owner. If it cannot be deregistered, the owner is never
/// dropped: see [`register_owned`](ProtectionDomain::register_owned).
#[derive(Debug)]
pub struct VerbsRegion(MemoryRegion);

impl VerbsRegion {
    /// Returns the underlying region.
    pub fn region(&self) -> &MemoryRegion {
        &self.0
    }
}

impl Region for VerbsRegion {
    fn close(self) -> Result<(), DeviceError> {
        let device = self.0.pd().context().name().into();
        self.0.close().map_err(|error| DeviceError::Deregister { device, errno: error.errno })
    }
}

impl Domain for VerbsDomain {
    type Qp = QueuePair;
    type Cq = CompletionQueue;
    type Srq = SharedReceiveQueue;
    type Region = VerbsRegion;

    fn device_id(&self) -> DeviceId {
        self.pd.context().id()
    }

    fn device_name(&self) -> &str {
        self.pd.context().name()
    }

    fn separate(&self) -> Result<Self, DeviceError> {
        Ok(Self { pd: self.pd.context().alloc_pd()?, ..self.clone() })
    }

    fn max_qp_wr(&self) -> u32 {
        self.pd.context().attributes().max_qp_wr
    }

    fn max_sge(&self) -> u32 {
        self.pd.context().attributes().max_sge
    }

    fn max_srq_wr(&self) -> u32 {
        self.pd.context().attributes().max_srq_wr
    }

    fn max_region_bytes(&self) -> u64 {
        // A driver that does not fill the attribute reports 0.
        match self.pd.context().attributes().max_mr_size {
            0 => u64::MAX,
            bytes => bytes,
        }
    }

    /// Returns the ports that were active when the device was opened, or the port that was named.
    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        Ok(self.ports.clone())
    }

    fn port(&self, number: u8) -> Result<Port, DeviceError> {
        let attributes = self.active_port(number)?;
        let context = self.pd.context();
        let table = context.gid_table()?;
        usable_port(context, number, &attributes, &table, self.gid_index)
            .map_err(|_| DeviceError::NoAddress { port: number })
    }

    fn port_mbps(&self, number: u8) -> Result<u32, DeviceError> {
        let attributes = self.active_port(number)?;
        let context = self.pd.context();
        let mbps = present_mbps(&attributes, context.query_port_speed(number));
        Ok(Place::of(context.name()).limited_mbps(mbps))
    }

    /// Whether the device has reported [`DeviceFatal`](AsyncEvent::DeviceFatal). Its context does not
    /// work again: drivers that recover make a new device.
    fn is_gone(&self) -> bool {
        self.events.is_gone(|| take_event(self.pd.context()))
    }

    fn event_cursor(&self) -> EventCursor {
        self.events.cursor(|| take_event(self.pd.context()))
    }

    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent> {
        iter::from_fn(|| self.next_async_event(reader)).find_map(meaning)
    }

    fn create_cq(&self, capacity: u32) -> Result<CompletionQueue, DeviceError> {
        Ok(self.pd.context().create_cq(&CqInit::new(capacity))?)
    }

    fn create_cq_with_channel(
        &self,
        capacity: u32,
        comp_vector: u32,
    ) -> Result<CompletionQueue, DeviceError> {
        let context = self.pd.context();
        let channel = context.create_channel()?;
        let comp_vector = comp_vector % context.num_comp_vectors().max(1);
        let init = CqInit { channel: Some(&channel), comp_vector, ..CqInit::new(capacity) };
        Ok(context.create_cq(&init)?)
    }

    fn resize_cq(&self, cq: &mut CompletionQueue, capacity: u32) -> Result<(), DeviceError> {
        Ok(cq.resize(capacity)?)
    }

    fn create_qp(&self, cq: &CompletionQueue, cap: QpCap) -> Result<QueuePair, DeviceError> {
        Ok(self.pd.create_qp(&QpInit::new(cq, verbs_cap(cap)))?)
    }

    fn create_srq(&self, max_wr: u32) -> Result<SharedReceiveQueue, DeviceError> {
        Ok(self.pd.create_srq(&SrqInit::new(max_wr))?)
    }

    fn create_qp_with_srq(
        &self,
        cq: &CompletionQueue,
        srq: &SharedReceiveQueue,
        cap: QpCap,
    ) -> Result<QueuePair, DeviceError> {
        let init = QpInit { srq: Some(srq), ..QpInit::new(cq, verbs_cap(cap)) };
        Ok(self.pd.create_qp(&init)?)
    }

    /// On a new thread: a port query blocks while the port is being reconfigured, and creating a
    /// queue pair takes milliseconds.
    fn make_aside<T: Send + 'static>(
        &self,
        (cq, srq): (&CompletionQueue, Option<&SharedReceiveQueue>),
        cap: QpCap,
        port: u8,
        steps: impl FnOnce(QueuePair, Port) -> Result<T, DeviceError> + Send + 'static,
    ) -> Connecting<T> {
        let (domain, cq, srq) = (self.clone(), cq.handle().clone(), srq.cloned());
        Connecting::aside(move || {
            let port = domain.port(port)?;
            let init = QpInit { srq: srq.as_ref(), ..QpInit::new(&cq, verbs_cap(cap)) };
            steps(domain.pd.create_qp(&init)?, port)
        })
    }

    fn has_on_demand_paging(&self) -> Result<bool, DeviceError> {
        let paging = self.pd.context().on_demand_paging()?;
        let needed = OnDemandRequests::SEND
            | OnDemandRequests::RECV
            | OnDemandRequests::WRITE
            | OnDemandRequests::READ;
        Ok(paging.supported && paging.rc.contains(needed))
    }

    unsafe fn register_memory(
        &self,
        memory: MemoryRange,
        access: AccessFlags,
        owner: Option<MemoryOwner>,
    ) -> Result<(VerbsRegion, RegionKeys), DeviceError> {
        let MemoryRange { start, length, iova } = memory;
        // SAFETY: guaranteed by the caller.
        let region = unsafe { self.pd.register_iova(start, length, iova, access) };
        self.registered(region.map(|region| match owner {
            Some(owner) => region.keeping(owner),
            None => region,
        }))
    }

    unsafe fn register_dma_buf(
        &self,
        dma_buf: &DmaBuf<'_>,
        access: AccessFlags,
    ) -> Result<(VerbsRegion, RegionKeys), DeviceError> {
        let DmaBuf { fd, offset, length, iova } = *dma_buf;
        // SAFETY: guaranteed by the caller.
        self.registered(unsafe { self.pd.register_dmabuf(fd, offset, length, iova, access) })
    }
}

impl Notify for CompletionQueue {
    fn req_notify(&mut self) -> Result<(), DeviceError> {
        const SOLICITED_ONLY: bool = false;
        Ok(self.handle().arm(SOLICITED_ONLY)?)
    }

    fn forget_events(&mut self) -> Result<(), DeviceError> {
        let Some(channel) = self.handle().channel() else { return Ok(()) };
        while channel.next_event()?.is_some() {}
        Ok(())
    }

    fn channel_fd(&self) -> Option<BorrowedFd<'_>> {
        self.handle().channel().map(CompletionChannel::as_fd)
    }
}

fn verbs_cap(cap: QpCap) -> polyrail_ffi::QpCap {
    let QpCap { max_send_wr, max_recv_wr, max_inline_data, max_send_sge, max_recv_sge } = cap;
    polyrail_ffi::QpCap { max_send_wr, max_recv_wr, max_inline_data, max_send_sge, max_recv_sge }
}
