//! The shared state of a fabric, its devices and their queues. These types refer to each other, so
//! they are declared in one file. Their methods are in the files with their names.
//!
//! # Locks
//!
//! Locks are always taken in this order:
//!
//! 1. the scheduler (deterministic fabrics);
//! 2. a queue pair's send queue, one at a time;
//! 3. the memory table, for reading;
//! 4. a queue pair's responder side, one at a time;
//! 5. a queue pair's posted receives, or a shared receive queue;
//! 6. a completion queue;
//! 7. leaves: lists of work, events, planned faults, the registry.
//!
//! Execution takes the sender's 2, then 3, then the peer's 4. Two queue pairs that execute toward
//! each other hold their own 2 and take the other's 4, which no thread holds while taking a 2. That
//! is why a failing responder only marks its send queue as failed, and the poller of that queue
//! flushes it.

use crate::clock::Clock;
use crate::fault::Faults;
use crate::line::Line;
use crate::pending::AllCompletions;
use crate::posts::Posts;
use crate::receives::{Responder, SrqInner};
use crate::send_queue;
use polyrail_core::hardware::{CqId, QpLimits};
use polyrail_core::verbs::DeviceId;
use polyrail_nic_parts::address::{Gid, Mtu};
use polyrail_nic_parts::channel::CompletionChannel;
use polyrail_nic_parts::completions::ReleasedSlots;
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::event_log::{EventCursor, EventLog};
use polyrail_nic_parts::memory::{DomainId, MemoryTable, RegionCount};
use polyrail_nic_parts::options::DeviceLimits;
use polyrail_nic_parts::random::random;
use polyrail_nic_parts::state::StateCell;
use polyrail_nic_parts::sync::{Apart, SplitMix64, lock, write};
use polyrail_process::Process;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

/// A send queue whose peer is a queue pair of the same fabric.
pub(crate) type SendQueue = send_queue::SendQueue<QpShared>;

/// Everything that the devices of one fabric share.
#[derive(Debug)]
pub(crate) struct FabricShared {
    /// The process that made the fabric. A fork of it has a copy, whose locks may be held by
    /// threads that the fork does not have, so it takes none of them.
    pub(crate) process: Process,
    /// In all its addresses, so that no device takes one of another process for its own. Random,
    /// 24 bits.
    pub(crate) number: u32,
    pub(crate) threaded: bool,
    pub(crate) clock: Clock,
    pub(crate) seed: u64,
    pub(crate) memory: Apart<RwLock<MemoryTable>>,
    pub(crate) registry: Mutex<Registry>,
    pub(crate) scheduler: Mutex<Scheduler>,
    /// Counts changes that may unblock a request.
    pub(crate) changes: Apart<AtomicU64>,
    pub(crate) next_domain: AtomicU32,
}

fn random_number() -> u32 {
    // Kernels before 3.17 and some sandboxes refuse getrandom(2). The process's number differs from
    // that of every other process of the machine.
    random().map_or_else(|_| std::process::id(), u32::from_ne_bytes) & 0x00ff_ffff
}

/// All existing objects. Weak references, because handles own the objects.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) devices: Vec<Weak<DeviceShared>>,
    pub(crate) devices_made: u32,
    /// By the device's index and the queue pair's number, so that the order of iteration is the
    /// same in every run.
    pub(crate) qps: BTreeMap<(u32, u32), Weak<QpShared>>,
    pub(crate) cqs: Vec<Weak<CqShared>>,
    pub(crate) cqs_made: u32,
}

impl FabricShared {
    pub(crate) fn new(threaded: bool, clock: Clock, seed: u64) -> Self {
        Self {
            process: Process::current(),
            number: random_number(),
            threaded,
            clock,
            seed,
            memory: Apart::new(RwLock::new(MemoryTable::new(seed ^ 0x6d65_6d6f_7279))),
            registry: Mutex::new(Registry::default()),
            scheduler: Mutex::new(Scheduler::new(seed)),
            changes: Apart::new(AtomicU64::new(0)),
            next_domain: AtomicU32::new(0),
        }
    }

    pub(crate) fn next_domain(&self) -> DomainId {
        DomainId(self.next_domain.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Counts a change that may unblock requests.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until every copy that began before the call has ended. Must be called without locks.
    pub(crate) fn quiesce(&self) {
        drop(write(&self.memory));
    }

    /// Returns the index of the next completion queue on the fabric.
    pub(crate) fn next_cq_index(&self) -> u32 {
        let mut registry = lock(&self.registry);
        registry.cqs_made += 1;
        registry.cqs_made - 1
    }

    pub(crate) fn add_cq(&self, cq: &Arc<CqShared>) {
        let mut registry = lock(&self.registry);
        registry.cqs.retain(|cq| cq.strong_count() > 0);
        registry.cqs.push(Arc::downgrade(cq));
    }

    pub(crate) fn add_qp(&self, qp: &Arc<QpShared>) {
        lock(&self.registry).qps.insert((qp.device.index, qp.number), Arc::downgrade(qp));
    }

    pub(crate) fn remove_qp(&self, device: &DeviceShared, number: u32) {
        lock(&self.registry).qps.remove(&(device.index, number));
    }

    /// Returns the queue pair with this number on the device with this address.
    pub(crate) fn find_qp(&self, gid: Gid, number: u32) -> Option<Arc<QpShared>> {
        let registry = lock(&self.registry);
        let device = registry.devices.iter().filter_map(Weak::upgrade).find(|d| d.has_gid(gid))?;
        registry.qps.get(&(device.index, number))?.upgrade()
    }
}

/// The scheduler of a deterministic fabric.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) rng: SplitMix64,
    pub(crate) steps: u64,
}

impl Scheduler {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: SplitMix64::new(seed), steps: 0 }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }
}

/// A device, shared with its queues.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    pub(crate) id: DeviceId,
    /// Index among its fabric's devices, which is the same in every run, unlike `id`.
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) limits: DeviceLimits,
    pub(crate) mtu: Mtu,
    /// Queues get all their memory when they are created.
    pub(crate) full_queues: bool,
    pub(crate) fabric: Arc<FabricShared>,
    pub(crate) ports_up: Box<[AtomicBool]>,
    pub(crate) gone: AtomicBool,
    pub(crate) faults: Faults,
    /// Its line, if its rate is limited.
    pub(crate) line: Option<Line>,
    pub(crate) next_qp_num: AtomicU32,
    /// Number of memory regions.
    pub(crate) regions: RegionCount,
    pub(crate) events: EventLog<AsyncEvent>,
    /// The cursor of readers without a separate one. Locked before the events.
    pub(crate) events_read: Mutex<EventCursor>,
}

/// A completion queue, shared with its queue pairs.
#[derive(Debug)]
pub(crate) struct CqShared {
    pub(crate) id: CqId,
    /// Index among its fabric's queues, which is the same in every run, unlike `id`.
    pub(crate) index: u32,
    pub(crate) device: Arc<DeviceShared>,
    /// Changed under the lock of `inner`.
    pub(crate) capacity: AtomicU32,
    pub(crate) inner: Apart<Mutex<AllCompletions<QpShared>>>,
    /// Whether a poll would find nothing in `inner`, changed under its lock. Polls of an empty
    /// queue therefore do not contend with threads that complete requests there.
    pub(crate) is_empty: Apart<AtomicBool>,
    /// The channel that it notifies.
    pub(crate) channel: Option<CompletionChannel>,
    /// Whether it also notifies of work: it was armed, and has a channel.
    pub(crate) tells_of_work: AtomicBool,
    /// Queue pairs with send requests to execute. A leaf: no other lock is taken while it is held.
    pub(crate) work: Apart<Mutex<VecDeque<Weak<QpShared>>>>,
    /// Whether the list of work is empty, changed under its lock.
    pub(crate) is_idle: AtomicBool,
}

/// A shared receive queue, shared with its queue pairs.
#[derive(Debug)]
pub(crate) struct SrqShared {
    pub(crate) device: Arc<DeviceShared>,
    pub(crate) domain: DomainId,
    pub(crate) capacity: u32,
    pub(crate) inner: Mutex<SrqInner>,
}

/// A queue pair, shared with its device.
#[derive(Debug)]
pub(crate) struct QpShared {
    pub(crate) me: Weak<Self>,
    pub(crate) number: u32,
    pub(crate) device: Arc<DeviceShared>,
    pub(crate) domain: DomainId,
    pub(crate) send_cq: Arc<CqShared>,
    pub(crate) recv_cq: Arc<CqShared>,
    pub(crate) srq: Option<Arc<SrqShared>>,
    pub(crate) sq_sig_all: bool,
    pub(crate) limits: QpLimits,
    pub(crate) state: StateCell,
    /// The port in use, counted from 1; 0 before INIT.
    pub(crate) port: AtomicU8,
    pub(crate) send: Apart<Mutex<SendQueue>>,
    pub(crate) recv: Apart<Mutex<Responder>>,
    /// Its own receives, as posted.
    pub(crate) posts: Apart<Mutex<Posts>>,
    pub(crate) released: Arc<ReleasedSlots>,
    pub(crate) send_owner: u32,
    pub(crate) recv_owner: u32,
    /// Whether it is on the list of work of `send_cq`.
    pub(crate) listed: Apart<AtomicBool>,
}
