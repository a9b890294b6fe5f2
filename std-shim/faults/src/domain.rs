//! Devices with a faulty driver, for endpoints.

use crate::faults::Faults;
use crate::faulty::Faulty;
use polyrail::backend::{
    Connect, ConnectOptions, ConnectSteps, Connecting, DeviceError, DeviceEvent, DmaBuf, Domain,
    EventCursor, Gone, MemoryOwner, MemoryRange, Notify, Port, QpCap, RemoteQp,
};
use polyrail::memory::RegionKeys;
use polyrail_core::verbs::{AccessFlags, DeviceId};
use std::os::fd::BorrowedFd;

impl Faults {
    /// Wraps a device as endpoints use it: its queue pairs and completion queues are wrapped as
    /// well.
    pub fn domain<D: Domain>(&self, inner: D) -> Faulty<D> {
        Faulty::new(inner, self)
    }
}

impl<D: Domain> Domain for Faulty<D> {
    type Qp = Faulty<D::Qp>;
    type Cq = Faulty<D::Cq>;
    type Srq = Faulty<D::Srq>;
    type Region = D::Region;

    fn device_id(&self) -> DeviceId {
        self.inner.device_id()
    }

    fn device_name(&self) -> &str {
        self.inner.device_name()
    }

    fn is_tcp(&self) -> bool {
        self.inner.is_tcp()
    }

    fn separate(&self) -> Result<Self, DeviceError> {
        Ok(Self { inner: self.inner.separate()?, ..self.clone() })
    }

    fn max_qp_wr(&self) -> u32 {
        self.inner.max_qp_wr()
    }

    fn max_sge(&self) -> u32 {
        self.inner.max_sge()
    }

    fn max_srq_wr(&self) -> u32 {
        self.inner.max_srq_wr()
    }

    fn max_region_bytes(&self) -> u64 {
        self.inner.max_region_bytes()
    }

    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        self.inner.ports()
    }

    fn port(&self, number: u8) -> Result<Port, DeviceError> {
        self.inner.port(number)
    }

    fn port_mbps(&self, number: u8) -> Result<u32, DeviceError> {
        self.inner.port_mbps(number)
    }

    fn is_gone(&self) -> bool {
        self.inner.is_gone()
    }

    fn event_cursor(&self) -> EventCursor {
        self.inner.event_cursor()
    }

    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent> {
        self.inner.next_event(reader)
    }

    fn create_cq(&self, capacity: u32) -> Result<Self::Cq, DeviceError> {
        Ok(self.faults.completion_queue(self.inner.create_cq(capacity)?))
    }

    fn create_cq_with_channel(
        &self,
        capacity: u32,
        comp_vector: u32,
    ) -> Result<Self::Cq, DeviceError> {
        let cq = self.inner.create_cq_with_channel(capacity, comp_vector)?;
        Ok(self.faults.completion_queue(cq))
    }

    fn resize_cq(&self, cq: &mut Self::Cq, capacity: u32) -> Result<(), DeviceError> {
        self.inner.resize_cq(&mut cq.inner, capacity)
    }

    fn create_qp(&self, cq: &Self::Cq, cap: QpCap) -> Result<Self::Qp, DeviceError> {
        Ok(self.faults.queue_pair(self.inner.create_qp(&cq.inner, cap)?))
    }

    fn create_srq(&self, max_wr: u32) -> Result<Self::Srq, DeviceError> {
        Ok(self.faults.receive_queue(self.inner.create_srq(max_wr)?, max_wr))
    }

    fn create_qp_with_srq(
        &self,
        cq: &Self::Cq,
        srq: &Self::Srq,
        cap: QpCap,
    ) -> Result<Self::Qp, DeviceError> {
        let qp = self.inner.create_qp_with_srq(&cq.inner, &srq.inner, cap)?;
        Ok(self.faults.queue_pair(qp))
    }

    fn has_on_demand_paging(&self) -> Result<bool, DeviceError> {
        self.inner.has_on_demand_paging()
    }

    fn pins_memory(&self) -> bool {
        self.inner.pins_memory()
    }

    unsafe fn register_memory(
        &self,
        memory: MemoryRange,
        access: AccessFlags,
        owner: Option<MemoryOwner>,
    ) -> Result<(Self::Region, RegionKeys), DeviceError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.inner.register_memory(memory, access, owner) }
    }

    unsafe fn register_dma_buf(
        &self,
        dma_buf: &DmaBuf<'_>,
        access: AccessFlags,
    ) -> Result<(Self::Region, RegionKeys), DeviceError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.inner.register_dma_buf(dma_buf, access) }
    }
}

/// Notifications of held back completions come too early, when the completion reaches the inner
/// queue. A waiting program has to poll again from time to time.
impl<C: Notify> Notify for Faulty<C> {
    fn req_notify(&mut self) -> Result<(), DeviceError> {
        self.inner.req_notify()
    }

    fn forget_events(&mut self) -> Result<(), DeviceError> {
        self.inner.forget_events()
    }

    fn channel_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.channel_fd()
    }
}

impl<Q: Connect> Connect for Faulty<Q> {
    fn init(&self, port: &Port, options: &ConnectOptions) -> Result<(), DeviceError> {
        self.inner.init(port, options)
    }

    fn ready_to_receive(
        &self,
        port: &Port,
        peer: &RemoteQp,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError> {
        self.inner.ready_to_receive(port, peer, options)
    }

    fn ready_to_send(&self, psn: u32, options: &ConnectOptions) -> Result<(), DeviceError> {
        self.inner.ready_to_send(psn, options)
    }

    fn fail(&self) -> Result<(), DeviceError> {
        self.inner.fail()
    }

    fn connect_aside(&self, steps: &ConnectSteps) -> Connecting<()> {
        self.inner.connect_aside(steps)
    }

    fn is_connected(&self) -> bool {
        self.inner.is_connected()
    }

    fn retire(self) {
        self.inner.retire();
    }

    fn gone(&self) -> Option<Gone> {
        self.inner.gone()
    }
}
