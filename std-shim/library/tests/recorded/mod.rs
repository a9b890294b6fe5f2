//! A backend for tests: the software NIC, with a record of what endpoints ask of it, with drivers
//! that grant more than they are asked for, and with transitions and deregistrations that are
//! refused.

#![allow(dead_code, reason = "every test program uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

use polyrail::backend::{
    Connect, ConnectOptions, ConnectSteps, Connecting, DeviceError, DeviceEvent, Domain,
    EventCursor, MemoryOwner, MemoryRange, Port, QpCap, Region, RemoteQp,
};
use polyrail::hardware::{
    CommitError, CqId, QpLimits, QueuePair, ReceiveQueue, RecvBatch, Refusal,
};
use polyrail::memory::RegionKeys;
use polyrail::nic::{
    self, DeviceConfig, DeviceLimits, Fabric, MemoryRegion, NicError, ProtectionDomain,
};
use polyrail::verbs::{AccessFlags, DeviceId, RecvRequest};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// What an endpoint asked of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asked {
    Init { port: u8, options: ConnectOptions },
    Receives(u32),
    Rtr { port: u8, peer: RemoteQp, options: ConnectOptions },
    Rts { psn: u32, options: ConnectOptions },
    Err,
    Retire,
}

/// What was asked of which queue pair, in order.
pub type Log = Arc<Mutex<Vec<(DeviceId, u32, Asked)>>>;

#[derive(Clone, Debug)]
pub struct Recorded {
    pub domain: ProtectionDomain,
    pub log: Log,
    /// The queue pair that is not moved to RTR.
    pub stubborn: Option<u32>,
    /// How often it was asked for one of its ports.
    pub asked_for_ports: Arc<AtomicUsize>,
    /// While it is set, nothing that is done on other threads goes on.
    pub holds: Arc<AtomicBool>,
    /// While it is set, no region can be closed.
    pub keeps_regions: Arc<AtomicBool>,
    /// While it is set, closing a region takes its time.
    pub is_slow: Arc<AtomicBool>,
    /// Registrations that have begun, and how many must have before one of them is made.
    pub registers_with: Option<Arc<(AtomicUsize, usize)>>,
    /// Whether it says that registering takes a time in proportion to the length.
    pub pins_memory: bool,
    /// The thread of the last registration.
    pub registered_on: Arc<Mutex<Option<ThreadId>>>,
    /// The rate of its ports, and how often it has changed.
    pub speed: Arc<Mutex<Speed>>,
}

/// The rate of ports in Mbit/s, and the changes that no reader has seen.
#[derive(Debug, Default)]
pub struct Speed {
    mbps: u32,
    changes: u32,
}

impl Recorded {
    pub fn new(domain: ProtectionDomain, log: &Log) -> Self {
        Self {
            domain,
            log: Arc::clone(log),
            stubborn: None,
            asked_for_ports: Arc::default(),
            holds: Arc::default(),
            keeps_regions: Arc::default(),
            is_slow: Arc::default(),
            registers_with: None,
            pins_memory: true,
            registered_on: Arc::default(),
            speed: Arc::default(),
        }
    }

    /// Sets the rate of its ports, without an event.
    pub fn set_speed_silently(&self, mbps: u32) {
        self.speed.lock().unwrap().mbps = mbps;
    }

    /// Changes the rate of its ports, with an event for its only reader.
    pub fn set_speed(&self, mbps: u32) {
        let mut speed = self.speed.lock().unwrap();
        *speed = Speed { mbps, changes: speed.changes + 1 };
    }

    /// A device of this name and these limits, without a record.
    pub fn on(fabric: &Fabric, name: &str, limits: DeviceLimits) -> Self {
        let config = DeviceConfig { limits, ..DeviceConfig::named(name) };
        Self::new(fabric.create_device(config).alloc_pd().unwrap(), &Log::default())
    }

    /// Whether the reader has not seen all changes of the rate.
    pub fn has_unread_speed(&self) -> bool {
        self.speed.lock().unwrap().changes > 0
    }

    /// Regions that the device has now.
    pub fn regions(&self) -> u32 {
        self.domain.device().memory_regions()
    }

    fn record(&self, qp: nic::QueuePair) -> RecordedQp {
        let stubborn = self.stubborn == Some(qp.qp_num());
        let (log, holds) = (Arc::clone(&self.log), Arc::clone(&self.holds));
        RecordedQp { qp, log, stubborn, holds }
    }
}

/// Whether receives were posted, and the first of them before any queue pair could be reached.
pub fn receives_come_first(log: &Log) -> bool {
    let log = log.lock().unwrap();
    let receives = log.iter().position(|(.., asked)| matches!(asked, Asked::Receives(_)));
    let reachable = log.iter().position(|(.., asked)| matches!(asked, Asked::Rtr { .. }));
    receives.is_some_and(|receives| reachable.is_some_and(|reachable| receives < reachable))
}

impl Domain for Recorded {
    type Qp = RecordedQp;
    type Cq = nic::CompletionQueue;
    type Srq = nic::SharedReceiveQueue;
    type Region = RecordedRegion;

    fn device_id(&self) -> DeviceId {
        self.domain.device_id()
    }

    fn device_name(&self) -> &str {
        self.domain.device_name()
    }

    fn separate(&self) -> Result<Self, DeviceError> {
        Ok(Self { domain: self.domain.separate()?, ..self.clone() })
    }

    fn max_qp_wr(&self) -> u32 {
        self.domain.max_qp_wr()
    }

    fn max_sge(&self) -> u32 {
        self.domain.max_sge()
    }

    fn max_srq_wr(&self) -> u32 {
        self.domain.max_srq_wr()
    }

    fn max_region_bytes(&self) -> u64 {
        self.domain.max_region_bytes()
    }

    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        self.domain.ports()
    }

    fn port(&self, number: u8) -> Result<Port, DeviceError> {
        self.asked_for_ports.fetch_add(1, SeqCst);
        self.domain.port(number)
    }

    fn port_mbps(&self, number: u8) -> Result<u32, DeviceError> {
        self.domain.port(number)?;
        Ok(self.speed.lock().unwrap().mbps)
    }

    fn is_gone(&self) -> bool {
        self.domain.is_gone()
    }

    fn event_cursor(&self) -> EventCursor {
        self.domain.event_cursor()
    }

    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent> {
        let mut speed = self.speed.lock().unwrap();
        if let Some(changes) = speed.changes.checked_sub(1) {
            speed.changes = changes;
            return Some(DeviceEvent::SpeedChange);
        }
        self.domain.next_event(reader)
    }

    fn create_cq(&self, capacity: u32) -> Result<Self::Cq, DeviceError> {
        self.domain.create_cq(capacity)
    }

    fn create_cq_with_channel(
        &self,
        capacity: u32,
        comp_vector: u32,
    ) -> Result<Self::Cq, DeviceError> {
        self.domain.create_cq_with_channel(capacity, comp_vector)
    }

    fn resize_cq(&self, cq: &mut Self::Cq, capacity: u32) -> Result<(), DeviceError> {
        self.domain.resize_cq(cq, capacity)
    }

    /// Grants twice what is asked for, as some drivers do.
    fn create_qp(&self, cq: &Self::Cq, cap: QpCap) -> Result<RecordedQp, DeviceError> {
        let max_send_wr = 2 * cap.max_send_wr;
        let max_recv_wr = 2 * cap.max_recv_wr;
        let qp = Domain::create_qp(&self.domain, cq, QpCap { max_send_wr, max_recv_wr, ..cap })?;
        Ok(self.record(qp))
    }

    fn create_srq(&self, max_wr: u32) -> Result<Self::Srq, DeviceError> {
        Domain::create_srq(&self.domain, max_wr)
    }

    fn create_qp_with_srq(
        &self,
        cq: &Self::Cq,
        srq: &Self::Srq,
        cap: QpCap,
    ) -> Result<RecordedQp, DeviceError> {
        Ok(self.record(self.domain.create_qp_with_srq(cq, srq, cap)?))
    }

    /// Completion queues of the software NIC stay with their owner, and so does what is made on
    /// them.
    fn make_aside<T: Send + 'static>(
        &self,
        (cq, srq): (&Self::Cq, Option<&Self::Srq>),
        cap: QpCap,
        port: u8,
        steps: impl FnOnce(RecordedQp, Port) -> Result<T, DeviceError> + Send + 'static,
    ) -> Connecting<T> {
        let domain = self.clone();
        let made = match srq {
            Some(srq) => self.create_qp_with_srq(cq, srq, cap),
            None => self.create_qp(cq, cap),
        };
        aside(&self.holds, move || {
            let (qp, port) = (made?, domain.port(port)?);
            steps(qp, port)
        })
    }

    fn has_on_demand_paging(&self) -> Result<bool, DeviceError> {
        self.domain.has_on_demand_paging()
    }

    fn pins_memory(&self) -> bool {
        self.pins_memory
    }

    unsafe fn register_memory(
        &self,
        memory: MemoryRange,
        access: AccessFlags,
        owner: Option<MemoryOwner>,
    ) -> Result<(RecordedRegion, RegionKeys), DeviceError> {
        *self.registered_on.lock().unwrap() = Some(thread::current().id());
        if let Some(together) = &self.registers_with {
            let (begun, needed) = &**together;
            begun.fetch_add(1, SeqCst);
            let since = Instant::now();
            while begun.load(SeqCst) < *needed {
                assert!(
                    since.elapsed() < Duration::from_secs(600),
                    "{} has begun alone",
                    memory.length
                );
                thread::yield_now();
            }
        }
        // SAFETY: the caller's promise.
        let registered = unsafe { self.domain.register_memory(memory, access, owner) };
        let (stays, is_slow) = (Arc::clone(&self.keeps_regions), Arc::clone(&self.is_slow));
        registered.map(|(region, keys)| (RecordedRegion { region, stays, is_slow }, keys))
    }
}

#[derive(Debug)]
pub struct RecordedRegion {
    region: MemoryRegion,
    stays: Arc<AtomicBool>,
    is_slow: Arc<AtomicBool>,
}

impl Region for RecordedRegion {
    fn close(self) -> Result<(), DeviceError> {
        if self.is_slow.load(SeqCst) {
            thread::sleep(Duration::from_millis(50));
        }
        if !self.stays.load(SeqCst) {
            return self.region.close();
        }
        std::mem::forget(self.region);
        Err(DeviceError::Deregister { device: "stubborn".into(), errno: libc::EBUSY })
    }
}

#[derive(Debug)]
pub struct RecordedQp {
    qp: nic::QueuePair,
    log: Log,
    stubborn: bool,
    holds: Arc<AtomicBool>,
}

impl RecordedQp {
    fn note(&self, asked: Asked) {
        self.log.lock().unwrap().push((self.qp.device(), self.qp.qp_num(), asked));
    }
}

impl Connect for RecordedQp {
    fn init(&self, port: &Port, options: &ConnectOptions) -> Result<(), DeviceError> {
        self.note(Asked::Init { port: port.number, options: *options });
        self.qp.init(port, options)
    }

    fn ready_to_receive(
        &self,
        port: &Port,
        peer: &RemoteQp,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError> {
        if self.stubborn {
            return Err(NicError::DeviceGone.into());
        }
        self.note(Asked::Rtr { port: port.number, peer: *peer, options: *options });
        self.qp.ready_to_receive(port, peer, options)
    }

    fn ready_to_send(&self, psn: u32, options: &ConnectOptions) -> Result<(), DeviceError> {
        self.note(Asked::Rts { psn, options: *options });
        self.qp.ready_to_send(psn, options)
    }

    fn fail(&self) -> Result<(), DeviceError> {
        self.note(Asked::Err);
        self.qp.fail()
    }

    fn retire(self) {
        self.note(Asked::Retire);
    }

    /// It takes its time.
    fn connect_aside(&self, steps: &ConnectSteps) -> Connecting<()> {
        let connected = steps.run(self);
        aside(&self.holds, move || connected)
    }
}

/// On another thread, which takes its time.
fn aside<T: Send + 'static>(
    holds: &Arc<AtomicBool>,
    work: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
) -> Connecting<T> {
    let holds = Arc::clone(holds);
    Connecting::aside(move || {
        thread::sleep(Duration::from_millis(1));
        while holds.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        work()
    })
}

// SAFETY: it touches no memory.
unsafe impl QueuePair for RecordedQp {
    type SendBatch<'q> = nic::SendBatch<'q>;

    fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    fn device(&self) -> DeviceId {
        self.qp.device()
    }

    fn cq(&self) -> CqId {
        self.qp.cq()
    }

    fn limits(&self) -> QpLimits {
        self.qp.limits()
    }

    fn start_send(&mut self) -> Self::SendBatch<'_> {
        self.qp.start_send()
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        self.note(Asked::Err);
        self.qp.enter_error()
    }

    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        self.qp.last_wqe_reached()
    }
}

impl ReceiveQueue for RecordedQp {
    type RecvBatch<'q> = RecordedBatch<'q>;

    fn start_recv(&mut self) -> RecordedBatch<'_> {
        let of = (self.qp.device(), self.qp.qp_num());
        RecordedBatch { batch: self.qp.start_recv(), log: &self.log, of, receives: 0 }
    }
}

#[derive(Debug)]
pub struct RecordedBatch<'q> {
    batch: nic::RecvBatch<'q>,
    log: &'q Log,
    of: (DeviceId, u32),
    receives: u32,
}

impl RecvBatch for RecordedBatch<'_> {
    fn add(&mut self, request: &RecvRequest) {
        self.receives += 1;
        self.batch.add(request);
    }

    fn commit(self) -> Result<(), CommitError> {
        self.batch.commit()?;
        let (device, qp_num) = self.of;
        self.log.lock().unwrap().push((device, qp_num, Asked::Receives(self.receives)));
        Ok(())
    }
}
