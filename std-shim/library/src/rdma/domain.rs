//! A device as endpoints use it.

use super::events::{Events, meaning, take_event};
use super::port::{is_active, usable_port};
use crate::backend::{DeviceError, DeviceEvent, Domain, EventCursor, Port, QpCap};
use crate::memory::{Pages, RegionKeys};
use polyrail_core::verbs::{AccessFlags, DeviceId};
use polyrail_ffi::{
    AsyncEvent, CompletionQueue, CqInit, MemoryRegion, ProtectionDomain, QpInit, QueuePair,
    SharedReceiveQueue, SrqInit, VerbsError,
};
use std::iter;
use std::sync::Arc;

/// A device, opened, with a protection domain and the ports that rails take.
#[derive(Clone, Debug)]
pub struct VerbsDomain {
    pd: ProtectionDomain,
    ports: Vec<Port>,
    /// Of the address in every port's table; `None`: chosen.
    gid_index: Option<u8>,
    /// Of the context, which has no other domain.
    events: Arc<Events>,
}

impl VerbsDomain {
    pub(super) fn new(pd: ProtectionDomain, ports: Vec<Port>, gid_index: Option<u8>) -> Self {
        Self { pd, ports, gid_index, events: Arc::new(Events::new()) }
    }

    /// The protection domain, for what this type does not offer.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The oldest event of the device, of any kind, that this reader has not seen, with the `user_context`
    /// that the object which it names was made with; see
    /// [`Context::next_event_and_user_context`](polyrail_ffi::Context::next_event_and_user_context). Never
    /// waits for one. A reader who falls behind by more than 1024 misses the oldest.
    ///
    /// The reader begins with [`event_cursor`](Domain::event_cursor), and takes no event from endpoints;
    /// see the [module](crate::rdma#events).
    pub fn next_async_event(&self, reader: &mut EventCursor) -> Option<(AsyncEvent, usize)> {
        self.events.next(reader, || take_event(self.pd.context()))
    }
}

/// Registered memory, which keeps its pages; forever, if it cannot be deregistered: see
/// [`register_owned`](ProtectionDomain::register_owned).
#[derive(Debug)]
pub struct VerbsRegion(MemoryRegion);

impl VerbsRegion {
    /// The region itself.
    pub fn region(&self) -> &MemoryRegion {
        &self.0
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

    fn max_qp_wr(&self) -> u32 {
        self.pd.context().attributes().max_qp_wr
    }

    fn max_srq_wr(&self) -> u32 {
        self.pd.context().attributes().max_srq_wr
    }

    /// Those that were active when the device was opened, or the one that was named.
    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        Ok(self.ports.clone())
    }

    fn port(&self, number: u8) -> Result<Port, DeviceError> {
        if self.ports.iter().all(|port| port.number != number) {
            return Err(DeviceError::NoPort { port: number });
        }
        let context = self.pd.context();
        let attributes = context.query_port(number)?;
        if !is_active(&attributes) {
            return Err(DeviceError::PortDown { port: number });
        }
        let table = context.gid_table()?;
        usable_port(context, number, &attributes, &table, self.gid_index)
            .ok_or(DeviceError::NoAddress { port: number })
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

    fn register_pages(
        &self,
        pages: &Arc<Pages>,
        access: AccessFlags,
    ) -> Result<(VerbsRegion, RegionKeys), DeviceError> {
        let start = std::ptr::with_exposed_provenance_mut(pages.addr() as usize);
        let owner = Arc::<Pages>::clone(pages);
        // SAFETY: this many bytes exist as long as the pages do, and they are accessed by copying only.
        let registered = unsafe { self.pd.register_owned(start, pages.len(), access, owner) };
        let refused = |source: VerbsError| {
            let device = self.device_name().into();
            DeviceError::Register { device, source: Box::new(source) }
        };
        let region = registered.map_err(refused)?;
        let keys =
            RegionKeys { device: self.device_id(), lkey: region.lkey(), rkey: region.rkey() };
        Ok((VerbsRegion(region), keys))
    }
}

fn verbs_cap(QpCap { max_send_wr, max_recv_wr, max_inline_data }: QpCap) -> polyrail_ffi::QpCap {
    polyrail_ffi::QpCap::new(max_send_wr, max_recv_wr, max_inline_data)
}
