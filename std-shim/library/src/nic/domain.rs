//! A software device as a [`Domain`].

use crate::backend::{
    DeviceError, DeviceEvent, Domain, MemoryOwner, MemoryRange, Notify, Port, Region,
};
use polyrail_core::verbs::{AccessFlags, DeviceId};
use polyrail_software_nic::{
    AsyncEvent, CompletionChannel, CompletionQueue, EventCursor, MemoryRegion, NicError, PortState,
    ProtectionDomain, QpCap, QpInit, QueuePair, RegionKeys, SharedReceiveQueue,
};
use std::iter;
use std::num::NonZeroU64;
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

    /// Returns all ports of the device. They have no LIDs and no GID table.
    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        let device = self.device();
        let max_rd_atomic = device.limits().max_qp_rd_atom;
        let port = |number| {
            let gid = device.gid(number)?;
            Some(Port { number, gid_index: 0, gid, lid: 0, mtu: device.mtu(), max_rd_atomic })
        };
        Ok((1..=device.ports()).filter_map(port).collect())
    }

    fn port(&self, number: u8) -> Result<Port, DeviceError> {
        let device = self.device();
        if device.is_gone() {
            return Err(NicError::DeviceGone.into());
        }
        if device.port_state(number) == Some(PortState::Down) {
            return Err(DeviceError::PortDown { port: number });
        }
        let found = self.ports()?.into_iter().find(|port| port.number == number);
        found.ok_or(DeviceError::NoPort { port: number })
    }

    fn is_gone(&self) -> bool {
        self.device().is_gone()
    }

    /// Returns the line rate of the device, which its ports share. It is at least 1 if it is limited.
    fn port_mbps(&self, number: u8) -> Result<u32, DeviceError> {
        self.port(number)?;
        let megabits = |bytes: NonZeroU64| (bytes.get() / 125_000).clamp(1, u32::MAX.into()) as u32;
        Ok(self.device().bytes_per_second().map_or(0, megabits))
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

    /// The software device has no interrupts, so it ignores the completion vector.
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
        const NO_LIMIT: u32 = 0;
        Ok(self.create_srq(max_wr, NO_LIMIT)?)
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

/// Deregistering memory never fails on the software NIC.
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
        AsyncEvent::DeviceFatal => Some(DeviceEvent::Gone),
        _ => None,
    }
}
