//! The null device as endpoints use devices, for virtual queue pairs that move to another thread.

use crate::null::{MAX_SGE, NullCq, NullQp, NullRecvBatch, NullSendBatch, RING_SLOTS};
use polyrail::backend::{
    Connect, ConnectOptions, DeviceError, DeviceEvent, Domain, EventCursor, EventLog, Gid,
    MemoryOwner, MemoryRange, Mtu, Notify, Port, QpCap, Region, RemoteQp,
};
use polyrail::memory::RegionKeys;
use polyrail_core::hardware::{
    CommitError, CompletionQueue, CqError, CqId, QpLimits, QueuePair, ReceiveQueue, Refusal,
    SendBatch,
};
use polyrail_core::verbs::{AccessFlags, Completion, DeviceId, SendRequest, Sge};
use rustix::event::{EventfdFlags, eventfd};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// The measuring thread's interface to the device.
#[derive(Debug)]
pub(super) struct Controls {
    start: Instant,
    /// Note when doorbells ring.
    pub(super) notes_doorbells: AtomicBool,
    /// When the last one rang, in nanoseconds since the start; 0 before the first.
    doorbell: AtomicU64,
    /// Completions are held back.
    is_held: AtomicBool,
    /// The completion queue notifies of the next completion.
    is_armed: AtomicBool,
    channel: OwnedFd,
}

impl Controls {
    fn new() -> Self {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Self {
            start: Instant::now(),
            notes_doorbells: AtomicBool::new(false),
            doorbell: AtomicU64::new(0),
            is_held: AtomicBool::new(false),
            is_armed: AtomicBool::new(false),
            channel: eventfd(0, flags).expect("a file descriptor"),
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// When the last doorbell rang, if one did since the last call.
    pub(super) fn take_doorbell(&self) -> Option<u64> {
        match self.doorbell.swap(0, Ordering::AcqRel) {
            0 => None,
            at => Some(at),
        }
    }

    pub(super) fn hold(&self) {
        self.is_held.store(true, Ordering::SeqCst);
    }

    /// Its owner is about to sleep, or sleeps.
    pub(super) fn is_armed(&self) -> bool {
        self.is_armed.load(Ordering::SeqCst)
    }

    /// Whatever was held back completes now.
    pub(super) fn release(&self) {
        self.is_held.store(false, Ordering::SeqCst);
        if self.is_armed.swap(false, Ordering::SeqCst) {
            self.ring();
        }
    }

    fn ring(&self) {
        rustix::io::write(&self.channel, &1_u64.to_ne_bytes()).expect("room for one more");
    }
}

/// A null device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) controls: Arc<Controls>,
    next: Arc<AtomicU32>,
}

impl Device {
    pub(super) fn new() -> Self {
        Self { controls: Arc::new(Controls::new()), next: Arc::new(AtomicU32::new(1)) }
    }
}

/// A queue, which moves to another thread together with everything that it shares cells with.
#[derive(Debug)]
pub(super) struct Movable<T> {
    inner: T,
    controls: Arc<Controls>,
}

// SAFETY: the queues of a device belong to one set, and their shared state has no other handles, so
// the set moves as a whole or not at all.
unsafe impl<T> Send for Movable<T> {}

/// Memory that the device never looks at.
#[derive(Debug)]
pub(super) struct NoRegion;

impl Region for NoRegion {
    fn close(self) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl Domain for Device {
    type Qp = Movable<NullQp>;
    type Cq = Movable<NullCq>;
    type Srq = polyrail::nic::SharedReceiveQueue;
    type Region = NoRegion;

    fn device_id(&self) -> DeviceId {
        DeviceId(0)
    }

    fn device_name(&self) -> &str {
        "null"
    }

    /// The device never looks at memory.
    fn separate(&self) -> Result<Self, DeviceError> {
        Ok(self.clone())
    }

    fn max_qp_wr(&self) -> u32 {
        RING_SLOTS as u32
    }

    fn max_sge(&self) -> u32 {
        MAX_SGE as u32
    }

    fn max_srq_wr(&self) -> u32 {
        0
    }

    fn max_region_bytes(&self) -> u64 {
        u64::MAX
    }

    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        let mtu = Mtu::default();
        let gid = Gid::default();
        Ok(vec![Port { number: 1, gid_index: 0, gid, lid: 0, mtu, max_rd_atomic: 16 }])
    }

    fn port(&self, _number: u8) -> Result<Port, DeviceError> {
        Ok(self.ports()?.remove(0))
    }

    fn event_cursor(&self) -> EventCursor {
        EventLog::<()>::new(1).cursor()
    }

    fn next_event(&self, _reader: &mut EventCursor) -> Option<DeviceEvent> {
        None
    }

    fn create_cq(&self, capacity: u32) -> Result<Self::Cq, DeviceError> {
        let cq = CqId(u64::from(self.next.fetch_add(1, Ordering::Relaxed)));
        let inner = NullCq::new(cq, self.device_id(), capacity.next_power_of_two());
        Ok(Movable { inner, controls: Arc::clone(&self.controls) })
    }

    fn create_cq_with_channel(&self, capacity: u32, _: u32) -> Result<Self::Cq, DeviceError> {
        self.create_cq(capacity)
    }

    fn resize_cq(&self, cq: &mut Self::Cq, capacity: u32) -> Result<(), DeviceError> {
        assert!(capacity <= cq.inner.capacity(), "no bench adds queue pairs");
        Ok(())
    }

    fn create_qp(&self, cq: &Self::Cq, cap: QpCap) -> Result<Self::Qp, DeviceError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let inner = cq.inner.queue_pair(number, cap.max_send_wr, cap.max_recv_wr);
        Ok(Movable { inner, controls: Arc::clone(&self.controls) })
    }

    fn create_srq(&self, _max_wr: u32) -> Result<Self::Srq, DeviceError> {
        unreachable!("no bench of handles has shared receives")
    }

    fn create_qp_with_srq(
        &self,
        _cq: &Self::Cq,
        _srq: &Self::Srq,
        _cap: QpCap,
    ) -> Result<Self::Qp, DeviceError> {
        unreachable!("no bench of handles has shared receives")
    }

    fn has_on_demand_paging(&self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    unsafe fn register_memory(
        &self,
        _memory: MemoryRange,
        _access: AccessFlags,
        _owner: Option<MemoryOwner>,
    ) -> Result<(NoRegion, RegionKeys), DeviceError> {
        unreachable!("the null device looks at no memory")
    }
}

/// The null device connects nothing and never fails.
impl Connect for Movable<NullQp> {
    fn init(&self, _: &Port, _: &ConnectOptions) -> Result<(), DeviceError> {
        Ok(())
    }

    fn ready_to_receive(
        &self,
        _: &Port,
        _: &RemoteQp,
        _: &ConnectOptions,
    ) -> Result<(), DeviceError> {
        Ok(())
    }

    fn ready_to_send(&self, _: u32, _: &ConnectOptions) -> Result<(), DeviceError> {
        Ok(())
    }

    fn fail(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

// SAFETY: every call goes to the inner queue pair.
unsafe impl QueuePair for Movable<NullQp> {
    type SendBatch<'q> = Batch<'q>;

    fn qp_num(&self) -> u32 {
        self.inner.qp_num()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn cq(&self) -> CqId {
        self.inner.cq()
    }

    fn limits(&self) -> QpLimits {
        self.inner.limits()
    }

    #[inline]
    fn start_send(&mut self) -> Batch<'_> {
        Batch { inner: self.inner.start_send(), controls: &self.controls }
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        self.inner.enter_error()
    }

    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        self.inner.last_wqe_reached()
    }
}

impl ReceiveQueue for Movable<NullQp> {
    type RecvBatch<'q> = NullRecvBatch<'q>;

    #[inline]
    fn start_recv(&mut self) -> NullRecvBatch<'_> {
        self.inner.start_recv()
    }
}

/// Sends whose doorbell may be noted.
#[derive(Debug)]
pub(super) struct Batch<'q> {
    inner: NullSendBatch<'q>,
    controls: &'q Controls,
}

impl SendBatch for Batch<'_> {
    #[inline(always)]
    fn add(&mut self, request: &SendRequest) {
        self.inner.add(request);
    }

    #[inline(always)]
    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        self.inner.add_list(request, buffers);
    }

    #[inline]
    fn commit(self) -> Result<(), CommitError> {
        let committed = self.inner.commit();
        if self.controls.notes_doorbells.load(Ordering::Relaxed) {
            self.controls.doorbell.store(self.controls.now(), Ordering::Release);
        }
        committed
    }
}

// SAFETY: every call goes to the inner queue, or does nothing.
unsafe impl CompletionQueue for Movable<NullCq> {
    fn id(&self) -> CqId {
        self.inner.id()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn capacity(&self) -> u32 {
        self.inner.capacity()
    }

    #[inline]
    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        if self.controls.is_held.load(Ordering::Relaxed) {
            return Ok(&[]);
        }
        self.inner.poll(out)
    }
}

impl Notify for Movable<NullCq> {
    fn req_notify(&mut self) -> Result<(), DeviceError> {
        self.controls.is_armed.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn forget_events(&mut self) -> Result<(), DeviceError> {
        // An empty descriptor is not an error.
        _ = rustix::io::read(&self.controls.channel, &mut [0; 8]);
        Ok(())
    }

    fn channel_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.controls.channel.as_fd())
    }
}
