//! A device whose completion queues let other threads come first, before each thing that they do.

use polyrail::backend::QpCap;
use polyrail::backend::{
    DeviceError, DeviceEvent, Domain, EventCursor, MemoryOwner, MemoryRange, Notify, Port,
};
use polyrail::memory::RegionKeys;
use polyrail::nic::{
    CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, SharedReceiveQueue,
};
use polyrail_core::hardware::{self, CqError, CqId};
use polyrail_core::verbs::{AccessFlags, Completion, DeviceId};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

#[cfg(polyrail_loom)]
loom::lazy_static! {
    static ref STEPS: loom::sync::atomic::AtomicUsize = loom::sync::atomic::AtomicUsize::new(0);
}

/// Other threads may come first. (The software NIC does not use loom, which takes what it does
/// for a part of the step before.)
pub(crate) fn step() {
    #[cfg(polyrail_loom)]
    STEPS.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
}

#[derive(Clone, Debug)]
pub(crate) struct Stepped<T>(pub(crate) T);

impl Domain for Stepped<ProtectionDomain> {
    type Qp = QueuePair;
    type Cq = Stepped<CompletionQueue>;
    type Srq = SharedReceiveQueue;
    type Region = MemoryRegion;

    fn device_id(&self) -> DeviceId {
        self.0.device_id()
    }

    fn device_name(&self) -> &str {
        self.0.device_name()
    }

    fn separate(&self) -> Result<Self, DeviceError> {
        self.0.separate().map(Stepped)
    }

    fn max_qp_wr(&self) -> u32 {
        self.0.max_qp_wr()
    }

    fn max_sge(&self) -> u32 {
        self.0.max_sge()
    }

    fn max_srq_wr(&self) -> u32 {
        self.0.max_srq_wr()
    }

    fn max_region_bytes(&self) -> u64 {
        self.0.max_region_bytes()
    }

    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        self.0.ports()
    }

    fn port(&self, number: u8) -> Result<Port, DeviceError> {
        Domain::port(&self.0, number)
    }

    fn event_cursor(&self) -> EventCursor {
        Domain::event_cursor(&self.0)
    }

    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent> {
        Domain::next_event(&self.0, reader)
    }

    fn create_cq(&self, capacity: u32) -> Result<Self::Cq, DeviceError> {
        Domain::create_cq(&self.0, capacity).map(Stepped)
    }

    fn create_cq_with_channel(
        &self,
        capacity: u32,
        comp_vector: u32,
    ) -> Result<Self::Cq, DeviceError> {
        Domain::create_cq_with_channel(&self.0, capacity, comp_vector).map(Stepped)
    }

    fn resize_cq(&self, cq: &mut Self::Cq, capacity: u32) -> Result<(), DeviceError> {
        self.0.resize_cq(&mut cq.0, capacity)
    }

    fn create_qp(&self, cq: &Self::Cq, cap: QpCap) -> Result<QueuePair, DeviceError> {
        Domain::create_qp(&self.0, &cq.0, cap)
    }

    fn create_srq(&self, max_wr: u32) -> Result<SharedReceiveQueue, DeviceError> {
        Domain::create_srq(&self.0, max_wr)
    }

    fn create_qp_with_srq(
        &self,
        cq: &Self::Cq,
        srq: &SharedReceiveQueue,
        cap: QpCap,
    ) -> Result<QueuePair, DeviceError> {
        self.0.create_qp_with_srq(&cq.0, srq, cap)
    }

    fn has_on_demand_paging(&self) -> Result<bool, DeviceError> {
        self.0.has_on_demand_paging()
    }

    unsafe fn register_memory(
        &self,
        memory: MemoryRange,
        access: AccessFlags,
        owner: Option<MemoryOwner>,
    ) -> Result<(MemoryRegion, RegionKeys), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { Domain::register_memory(&self.0, memory, access, owner) }
    }
}

// SAFETY: it does what the queue inside does.
unsafe impl hardware::CompletionQueue for Stepped<CompletionQueue> {
    fn id(&self) -> CqId {
        self.0.id()
    }

    fn device(&self) -> DeviceId {
        self.0.device()
    }

    fn capacity(&self) -> u32 {
        self.0.capacity()
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        step();
        self.0.poll(out)
    }
}

impl Notify for Stepped<CompletionQueue> {
    fn req_notify(&mut self) -> Result<(), DeviceError> {
        step();
        Notify::req_notify(&mut self.0)
    }

    fn forget_events(&mut self) -> Result<(), DeviceError> {
        step();
        self.0.forget_events()
    }

    fn channel_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.channel_fd()
    }
}
