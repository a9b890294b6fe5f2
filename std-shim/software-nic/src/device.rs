//! Devices: identity, limits, ports and faults.

use crate::fault::{Fault, FaultPlan, Faults, When};
use crate::line::Line;
use crate::options::DeviceConfig;
use crate::shared::{DeviceShared, FabricShared};
use polyrail_core::verbs::DeviceId;
use polyrail_nic_parts::address::{Gid, Mtu};
use polyrail_nic_parts::error::{NicError, errno};
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::event_log::{EventCursor, EventLog};
use polyrail_nic_parts::memory::RegionCount;
use polyrail_nic_parts::options::DeviceLimits;
use polyrail_nic_parts::sync::{lock, nanos};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// State of a port (`enum ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// Ready.
    Active,
}

/// Device numbers are unique per process.
static NEXT_DEVICE: AtomicU32 = AtomicU32::new(0);

/// Whether the number is that of a device of this NIC. Then [`vendor`](crate::vendor) explains the
/// vendor codes of its completions.
pub fn is_device(id: DeviceId) -> bool {
    id.0 < NEXT_DEVICE.load(Ordering::Relaxed)
}

/// Every device counts its queue pairs from here, so that numbers repeat from device to device as
/// they do in real machines.
const FIRST_QP_NUM: u32 = 17;

/// Number of events that a device keeps for its readers.
const EVENTS: usize = 256;

/// The bits of a GUID below its fabric's number: 24 for the device, and 8 for the port.
const FABRIC_SHIFT: u32 = 32;

impl DeviceShared {
    pub(crate) fn new(fabric: &Arc<FabricShared>, index: u32, config: DeviceConfig) -> Self {
        let ports = config.ports.max(1);
        Self {
            id: DeviceId(NEXT_DEVICE.fetch_add(1, Ordering::Relaxed)),
            index,
            name: config.name,
            // A locally administered EUI-64: the fabric, the device, and a byte that counts ports.
            guid: 2 << 56 | u64::from(fabric.number) << FABRIC_SHIFT | u64::from(index) << 8,
            limits: config.limits,
            mtu: config.mtu,
            full_queues: config.full_queues,
            fabric: Arc::clone(fabric),
            ports_up: (0..ports).map(|_| AtomicBool::new(true)).collect(),
            gone: AtomicBool::new(false),
            faults: Faults::new(),
            line: config.bytes_per_second.map(Line::new),
            next_qp_num: AtomicU32::new(FIRST_QP_NUM),
            regions: RegionCount::default(),
            events: EventLog::new(EVENTS),
            events_read: Mutex::default(),
        }
    }

    pub(crate) fn gid(&self, port: u8) -> Option<Gid> {
        self.port(port).map(|_| Gid::link_local(self.guid | u64::from(port)))
    }

    pub(crate) fn has_gid(&self, gid: Gid) -> bool {
        (1..=self.ports_up.len() as u8).any(|port| self.gid(port) == Some(gid))
    }

    /// Whether a port of a device of this fabric can have this address.
    pub(crate) fn reaches(&self, gid: Gid) -> bool {
        let apart = u128::from_be_bytes(gid.0) ^ u128::from_be_bytes(Gid::link_local(self.guid).0);
        apart >> FABRIC_SHIFT == 0
    }

    fn port(&self, port: u8) -> Option<&AtomicBool> {
        self.ports_up.get(usize::from(port.checked_sub(1)?))
    }

    /// Returns whether the port exists and is up, and its device is present.
    pub(crate) fn carries(&self, port: u8) -> bool {
        !self.is_gone() && self.port(port).is_some_and(|up| up.load(Ordering::Acquire))
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether the device belongs to the process that this one is a fork of.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.fabric.process.is_current()
    }

    /// Returns the errno with which a driver refuses posts and polls, if it does.
    #[inline]
    pub(crate) fn refusal(&self) -> Result<(), i32> {
        match () {
            () if self.is_forked() => Err(errno::EPERM),
            () if self.is_gone() => Err(errno::ENODEV),
            () => Ok(()),
        }
    }

    pub(crate) fn check_alive(&self) -> Result<(), NicError> {
        self.fabric.process.check()?;
        if self.is_gone() { Err(NicError::DeviceGone) } else { Ok(()) }
    }

    pub(crate) fn push_event(&self, event: AsyncEvent) {
        self.events.push(event);
    }

    /// Counts bytes that passed this device, and applies planned faults.
    pub(crate) fn carried(&self, length: u32) {
        if self.faults.count(length) {
            while let Some(fault) = self.faults.take_due_bytes() {
                self.suffer(fault);
            }
        }
    }

    /// Applies a fault. Takes only leaf locks, so it may be called during execution.
    pub(crate) fn suffer(&self, fault: Fault) {
        match fault {
            Fault::LinkDown => self.set_ports(false),
            Fault::LinkUp => self.set_ports(true),
            Fault::DeviceGone => self.vanish(),
            Fault::ForceRnr { requests } => self.faults.add_forced_rnr(requests),
            Fault::RefuseRtr { transitions } => self.faults.set_refused_rtr(transitions),
            Fault::SearchPaths(search) => self.faults.set_path_search(search),
            Fault::DelayCompletions(delay) => self.faults.set_delay(delay),
            Fault::Silent(silent) => self.faults.set_silent(silent),
            Fault::LoseAcks(loses) => self.faults.set_loses_acks(loses),
            Fault::DropArriving(drops) => self.faults.set_drops_arriving(drops),
            Fault::FailRequests(fails) => self.faults.set_fails_requests(fails),
            Fault::OneMoreReceive(within) => self.faults.set_one_more_receive(within),
            Fault::TakeSharedReceive(takes) => self.faults.set_takes_shared_receive(takes),
        }
        self.fabric.note_change();
    }

    /// Returns whether the device is in the state that this fault causes.
    fn suffers(&self, fault: Fault) -> bool {
        let all_ports =
            |wanted| self.ports_up.iter().all(|up| up.load(Ordering::Acquire) == wanted);
        match fault {
            Fault::LinkDown => all_ports(false),
            Fault::LinkUp => all_ports(true),
            Fault::DeviceGone => self.is_gone(),
            Fault::ForceRnr { .. } => self.faults.forces_rnr(),
            Fault::RefuseRtr { transitions } => self.faults.refused_rtr() == transitions,
            Fault::SearchPaths(search) => self.faults.path_search() == nanos(search),
            Fault::DelayCompletions(delay) => self.faults.delay() == nanos(delay),
            Fault::Silent(silent) => self.faults.is_silent() == silent,
            Fault::LoseAcks(loses) => self.faults.loses_acks() == loses,
            Fault::DropArriving(drops) => self.faults.drops_arriving() == drops,
            Fault::FailRequests(fails) => self.faults.fails_requests() == fails,
            Fault::OneMoreReceive(within) => self.faults.one_more_receive() == nanos(within),
            Fault::TakeSharedReceive(takes) => self.faults.takes_shared_receive() == takes,
        }
    }

    fn set_ports(&self, up: bool) {
        for (port, state) in (1..).zip(&self.ports_up) {
            if state.swap(up, Ordering::AcqRel) != up {
                let down = AsyncEvent::PortError { port };
                self.push_event(if up { AsyncEvent::PortActive { port } } else { down });
            }
        }
    }

    fn vanish(&self) {
        if !self.gone.swap(true, Ordering::AcqRel) {
            self.push_event(AsyncEvent::DeviceFatal);
        }
    }
}

/// A device. A cheap handle: clones refer to the same device. A fork of the process that made its
/// fabric cannot use it: calls return [`NicError::Forked`], or do nothing.
#[derive(Clone, Debug)]
pub struct Device(pub(crate) Arc<DeviceShared>);

impl Device {
    /// Returns its number, unique in this process.
    pub fn id(&self) -> DeviceId {
        self.0.id
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns its GUID, unique on its fabric.
    pub fn guid(&self) -> u64 {
        self.0.guid
    }

    /// Returns its limits.
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.limits
    }

    /// Returns its line rate in payload bytes per second; `None`: unlimited.
    pub fn bytes_per_second(&self) -> Option<NonZeroU64> {
        self.0.line.as_ref().map(Line::bytes_per_second)
    }

    /// Changes its line rate, for what it sends from now on. Returns whether it has one.
    pub fn set_bytes_per_second(&self, rate: NonZeroU64) -> bool {
        self.0.line.as_ref().map(|line| line.set_bytes_per_second(rate)).is_some()
    }

    /// Returns the largest MTU that its ports support.
    pub fn mtu(&self) -> Mtu {
        self.0.mtu
    }

    /// Returns the number of its memory regions.
    pub fn memory_regions(&self) -> u32 {
        self.0.regions.get()
    }

    /// Returns the number of ports.
    pub fn ports(&self) -> u8 {
        self.0.ports_up.len() as u8
    }

    /// Returns the address of a port, counted from 1; `None` if the port does not exist.
    pub fn gid(&self, port: u8) -> Option<Gid> {
        self.0.gid(port)
    }

    /// Returns the state of a port, counted from 1; `None` if the port does not exist.
    pub fn port_state(&self, port: u8) -> Option<PortState> {
        self.0.port(port)?;
        Some(if self.0.carries(port) { PortState::Active } else { PortState::Down })
    }

    /// Returns whether the device was unplugged.
    pub fn is_gone(&self) -> bool {
        self.0.is_gone()
    }

    /// Returns the oldest event that this method has not returned yet. The newest 256 events are
    /// kept.
    pub fn next_event(&self) -> Option<AsyncEvent> {
        if self.0.is_forked() {
            return None;
        }
        self.next_event_of(&mut lock(&self.0.events_read))
    }

    /// Returns a cursor for a new reader, which sees events from now on. Readers with cursors do
    /// not take events from each other, nor from [`next_event`](Self::next_event).
    pub fn event_cursor(&self) -> EventCursor {
        self.0.events.cursor()
    }

    /// Returns the oldest event that this reader has not seen. The newest 256 events are kept.
    pub fn next_event_of(&self, reader: &mut EventCursor) -> Option<AsyncEvent> {
        if self.0.is_forked() { None } else { self.0.events.next(reader) }
    }

    /// Returns the payload bytes carried so far, for its own requests and its peers'.
    pub fn carried_bytes(&self) -> u64 {
        self.0.faults.bytes()
    }

    /// Returns whether this fault is in effect: it has happened, and was not undone since.
    pub fn suffers(&self, fault: Fault) -> bool {
        self.0.suffers(fault)
    }

    /// Injects a fault, which happens now or later.
    pub fn inject(&self, when: When, fault: Fault) {
        if self.0.is_forked() {
            return;
        }
        match when {
            When::Now => self.0.suffer(fault),
            When::Bytes(0) => self.0.suffer(fault),
            When::Bytes(bytes) => self.0.faults.plan_bytes(bytes, fault),
            When::Step(step) => self.0.faults.plan_step(step, fault),
        }
    }

    /// Injects a whole plan.
    pub fn apply(&self, plan: &FaultPlan) {
        for &(when, fault) in &plan.faults {
            self.inject(when, fault);
        }
    }
}
