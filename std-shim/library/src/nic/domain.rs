//! A device as endpoints use it.

use crate::backend::{DeviceError, DeviceEvent, Domain, MemoryOwner, Port, Region};
use polyrail_core::verbs::{AccessFlags, DeviceId};
use polyrail_software_nic::{
    AsyncEvent, CompletionQueue, EventCursor, MemoryRegion, Mtu, NicError, PortState,
    ProtectionDomain, QpCap, QpInit, QueuePair, RegionKeys, SharedReceiveQueue,
};
use std::iter;

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

    fn max_qp_wr(&self) -> u32 {
        self.device().limits().max_qp_wr
    }

    fn max_srq_wr(&self) -> u32 {
        self.device().limits().max_srq_wr
    }

    /// All ports of the device. It has neither LIDs nor a table of addresses.
    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        let device = self.device();
        let max_rd_atomic = device.limits().max_qp_rd_atom;
        let port = |number| {
            let gid = device.gid(number)?;
            Some(Port { number, gid_index: 0, gid, lid: 0, mtu: Mtu::default(), max_rd_atomic })
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

    unsafe fn register_memory(
        &self,
        start: *mut u8,
        length: usize,
        access: AccessFlags,
        owner: Option<MemoryOwner>,
    ) -> Result<(MemoryRegion, RegionKeys), DeviceError> {
        let region = match owner {
            // SAFETY: the caller's promise.
            Some(owner) => unsafe { self.register_owned(start, length, access, owner) },
            // SAFETY: the caller's promise.
            None => unsafe { self.register(start, length, access) },
        }?;
        let keys = region.keys();
        Ok((region, keys))
    }
}

/// The software NIC never fails to deregister memory.
impl Region for MemoryRegion {
    fn close(self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// What an event means to endpoints. What breaks queues, they learn from completions.
fn meaning(event: AsyncEvent) -> Option<DeviceEvent> {
    match event {
        AsyncEvent::PortError { port } => Some(DeviceEvent::PortDown { port }),
        AsyncEvent::PortActive { port } => Some(DeviceEvent::PortUp { port }),
        AsyncEvent::DeviceFatal => Some(DeviceEvent::Gone),
        _ => None,
    }
}
