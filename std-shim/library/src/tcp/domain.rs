//! A device over TCP as a [`Domain`].

use super::devices::mbps_of;
use crate::backend::{
    DeviceError, DeviceEvent, Domain, EventCursor, MemoryOwner, MemoryRange, Notify, Port, QpCap,
    Region,
};
use crate::place::Place;
use polyrail_core::verbs::{AccessFlags, DeviceId};
use polyrail_nic_parts::channel::CompletionChannel;
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::memory::RegionKeys;
use polyrail_tcp_nic::{
    CompletionQueue, MemoryRegion, PORT, ProtectionDomain, QpInit, QueuePair, SharedReceiveQueue,
};
use std::iter;
use std::os::fd::{AsFd, BorrowedFd};

impl Domain for ProtectionDomain {
    type Qp = QueuePair;
    type Cq = CompletionQueue;
    type Srq = SharedReceiveQueue;
    type Region = MemoryRegion;

    fn device_id(&self) -> DeviceId {
        self.device().id()
    }

    fn device_name(&self) -> &str {
        self.device().name()
    }

    fn is_tcp(&self) -> bool {
        true
    }

    fn separate(&self) -> Result<Self, DeviceError> {
        Ok(self.device().alloc_pd()?)
    }

    fn max_qp_wr(&self) -> u32 {
        self.device().limits().max_qp_wr
    }

    fn max_sge(&self) -> u32 {
        self.device().limits().max_sge
    }

    fn max_srq_wr(&self) -> u32 {
        self.device().limits().max_srq_wr
    }

    fn max_region_bytes(&self) -> u64 {
        self.device().limits().max_mr_size
    }

    /// Returns the device's only port. Its GID is the IP address.
    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        let device = self.device();
        Ok(vec![Port {
            number: PORT,
            gid_index: 0,
            gid: device.gid(),
            lid: 0,
            mtu: device.mtu(),
            max_rd_atomic: device.limits().max_qp_rd_atom,
        }])
    }

    fn port(&self, number: u8) -> Result<Port, DeviceError> {
        if number != PORT {
            return Err(DeviceError::NoPort { port: number });
        }
        if !self.device().is_up() {
            return Err(DeviceError::PortDown { port: number });
        }
        self.ports()?.pop().ok_or(DeviceError::NoPort { port: number })
    }

    fn port_mbps(&self, number: u8) -> Result<u32, DeviceError> {
        self.port(number)?;
        let interface = self.device().interface();
        let mbps = mbps_of(interface).unwrap_or(0);
        Ok(Place::of_interface(interface).limited_mbps(mbps))
    }

    fn event_cursor(&self) -> EventCursor {
        self.device().event_cursor()
    }

    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent> {
        let device = self.device();
        iter::from_fn(|| device.next_event_of(reader)).find_map(meaning)
    }

    fn create_cq(&self, capacity: u32) -> Result<CompletionQueue, DeviceError> {
        Ok(self.device().create_cq(capacity)?)
    }

    /// There are no interrupts, so the completion vector is ignored.
    fn create_cq_with_channel(
        &self,
        capacity: u32,
        _comp_vector: u32,
    ) -> Result<CompletionQueue, DeviceError> {
        let device = self.device();
        Ok(device.create_cq_with_channel(capacity, &device.create_channel()?)?)
    }

    fn resize_cq(&self, cq: &mut CompletionQueue, capacity: u32) -> Result<(), DeviceError> {
        Ok(cq.resize(capacity)?)
    }

    fn create_qp(&self, cq: &CompletionQueue, cap: QpCap) -> Result<QueuePair, DeviceError> {
        Ok(self.create_qp(&QpInit::new(cq, cap))?)
    }

    fn create_srq(&self, max_wr: u32) -> Result<SharedReceiveQueue, DeviceError> {
        Ok(self.create_srq(max_wr)?)
    }

    fn create_qp_with_srq(
        &self,
        cq: &CompletionQueue,
        srq: &SharedReceiveQueue,
        cap: QpCap,
    ) -> Result<QueuePair, DeviceError> {
        Ok(self.create_qp(&QpInit { srq: Some(srq), ..QpInit::new(cq, cap) })?)
    }

    fn has_on_demand_paging(&self) -> Result<bool, DeviceError> {
        Ok(self.device().limits().on_demand_paging)
    }

    fn pins_memory(&self) -> bool {
        false
    }

    unsafe fn register_memory(
        &self,
        memory: MemoryRange,
        access: AccessFlags,
        owner: Option<MemoryOwner>,
    ) -> Result<(MemoryRegion, RegionKeys), DeviceError> {
        let MemoryRange { start, length, iova } = memory;
        // SAFETY: guaranteed by the caller.
        let region = unsafe { self.register_iova(start, length, iova, access, owner) }?;
        let keys = region.keys();
        Ok((region, keys))
    }
}

impl Notify for CompletionQueue {
    fn req_notify(&mut self) -> Result<(), DeviceError> {
        const SOLICITED_ONLY: bool = false;
        self.req_notify(SOLICITED_ONLY);
        Ok(())
    }

    fn forget_events(&mut self) -> Result<(), DeviceError> {
        self.channel().into_iter().for_each(CompletionChannel::clear);
        Ok(())
    }

    fn channel_fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel().map(CompletionChannel::as_fd)
    }
}

/// Deregistering memory never fails over TCP.
impl Region for MemoryRegion {
    fn close(self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Translates an event. Events of queues are left out, since their completions fail as well.
fn meaning(event: AsyncEvent) -> Option<DeviceEvent> {
    match event {
        AsyncEvent::PortError { port } => Some(DeviceEvent::PortDown { port }),
        AsyncEvent::PortActive { port } => Some(DeviceEvent::PortUp { port }),
        _ => None,
    }
}
