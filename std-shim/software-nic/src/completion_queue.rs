//! Completion queues.
//!
//! Two rings, made at creation: completions that *show*, which polling takes, and completions that
//! are *pending*, because the scheduler has not shown them yet or because a fault delays them.
//! Both count against the capacity. Showing keeps the order of each work queue.

use crate::device::DeviceShared;
use crate::error::errno;
use crate::event::AsyncEvent;
use crate::execute;
use crate::queue_pair::{Progress, QpShared};
use crate::sync::{SplitMix64, lock};
use polyrail_core::hardware::{self, CqError, CqId};
use polyrail_core::verbs::{Completion, DeviceId, Imm, WcFlags, WcOpcode};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// A completion on its way to its poller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) completion: Completion,
    /// Slots of its work queue that are free once it was polled, counted from the beginning.
    pub(crate) releases: u64,
    /// Who is told, as an index into the queue's owners.
    pub(crate) owner: u32,
    /// Which work queue it belongs to.
    pub(crate) is_recv: bool,
    /// Wakes those who wait for solicited completions only.
    pub(crate) solicited: bool,
}

/// The owner of entries whose queue pair is destroyed.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Pending {
    due: u64,
    entry: Entry,
}

impl Pending {
    fn same_queue(&self, other: &Self) -> bool {
        let key = |entry: &Entry| (entry.owner, entry.completion.qp_num, entry.is_recv);
        key(&self.entry) == key(&other.entry)
    }
}

/// A work queue's end of the line: who is told that completions were polled.
#[derive(Debug)]
struct Owner {
    qp: Weak<QpShared>,
    progress: Arc<Progress>,
}

#[derive(Debug)]
struct Inner {
    showing: VecDeque<Entry>,
    pending: VecDeque<Pending>,
    owners: Vec<Option<Owner>>,
    overrun: bool,
    rubbish: SplitMix64,
    solicited: u64,
    armed: Option<Notify>,
    notified: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notify {
    Any,
    Solicited,
}

#[derive(Debug)]
pub(crate) struct CqShared {
    pub(crate) id: CqId,
    /// Place among its fabric's queues: the same in every run, unlike `id`.
    pub(crate) index: u32,
    pub(crate) device: Arc<DeviceShared>,
    capacity: u32,
    inner: Mutex<Inner>,
    /// Queue pairs with send requests to execute. A leaf: nothing is locked while it is held.
    work: Mutex<VecDeque<Weak<QpShared>>>,
}

/// Completion queue numbers are unique per process.
static NEXT_CQ: AtomicU64 = AtomicU64::new(0);

/// A completion that was made to show, for the scheduler's record.
pub(crate) struct Shown {
    pub(crate) completion: Completion,
    pub(crate) is_recv: bool,
}

impl CqShared {
    pub(crate) fn new(device: &Arc<DeviceShared>, capacity: u32) -> Arc<Self> {
        let index = device.fabric.next_cq_index();
        let inner = Inner {
            showing: VecDeque::with_capacity(capacity as usize),
            pending: VecDeque::with_capacity(capacity as usize),
            owners: Vec::new(),
            overrun: false,
            rubbish: SplitMix64::new(device.fabric.seed ^ (u64::from(index) << 32) ^ 0x0072_7562),
            solicited: 0,
            armed: None,
            notified: false,
        };
        Arc::new(Self {
            id: CqId(NEXT_CQ.fetch_add(1, Ordering::Relaxed)),
            index,
            device: Arc::clone(device),
            capacity,
            inner: Mutex::new(inner),
            work: Mutex::new(VecDeque::new()),
        })
    }

    /// Makes a work queue of `qp` complete here; returns its owner index. `sends` reserves a place
    /// in the list of work, so that listing allocates nothing.
    pub(crate) fn attach(&self, qp: Weak<QpShared>, progress: Arc<Progress>, sends: bool) -> u32 {
        let mut inner = lock(&self.inner);
        let owner = Some(Owner { qp, progress });
        if sends {
            // Room for everybody beside what is listed, dropped queue pairs included.
            let attached = inner.owners.len() + 1;
            lock(&self.work).reserve(attached);
        }
        if let Some(free) = inner.owners.iter().position(Option::is_none) {
            inner.owners[free] = owner;
            return free as u32;
        }
        inner.owners.push(owner);
        inner.owners.len() as u32 - 1
    }

    /// Undoes [`attach`](Self::attach). Completions that are here stay.
    pub(crate) fn detach(&self, owner: u32) {
        let mut inner = lock(&self.inner);
        inner.owners[owner as usize] = None;
        let inner = &mut *inner;
        let pending = inner.pending.iter_mut().map(|pending| &mut pending.entry);
        for entry in inner.showing.iter_mut().chain(pending) {
            if entry.owner == owner {
                entry.owner = NOBODY;
            }
        }
    }

    /// Drops completions of `owner` that do not show yet: its queue pair was reset.
    pub(crate) fn forget_pending(&self, owner: u32) {
        lock(&self.inner).pending.retain(|pending| pending.entry.owner != owner);
    }

    /// Adds a completion, now or after the device's delay.
    pub(crate) fn push(&self, mut entry: Entry) {
        let delay = self.device.faults.delay();
        let mut inner = lock(&self.inner);
        if inner.overrun {
            return;
        }
        if inner.showing.len() + inner.pending.len() == self.capacity as usize {
            inner.overrun = true;
            self.fail_owners(&inner);
            return;
        }
        if !entry.completion.status.is_success() {
            spoil(&mut entry.completion, &mut inner.rubbish);
        }
        let fabric = &self.device.fabric;
        if !fabric.threaded || delay > 0 || !inner.pending.is_empty() {
            let due = fabric.clock.now().saturating_add(delay);
            inner.pending.push_back(Pending { due, entry });
        } else {
            inner.show(entry);
        }
    }

    /// A completion queue that overran takes its queue pairs with it.
    fn fail_owners(&self, inner: &Inner) {
        self.device.push_event(AsyncEvent::CqError { cq: self.id });
        for qp in inner.owners.iter().flatten().filter_map(|owner| owner.qp.upgrade()) {
            if qp.state.fail() {
                qp.list_work();
            }
        }
    }

    /// Puts a queue pair on the list of work.
    pub(crate) fn list(&self, qp: Weak<QpShared>) {
        lock(&self.work).push_back(qp);
    }

    /// Executes a share of what the listed queue pairs have to do. One round: whoever has more to
    /// do goes to the end of the list and waits for the next poll.
    fn run_work(&self) {
        let listed = lock(&self.work).len();
        for _ in 0..listed {
            let Some(qp) = lock(&self.work).pop_front() else { return };
            if let Some(qp) = qp.upgrade() {
                execute::service(&qp);
            }
        }
    }

    /// When the first pending completion is due, if that is after `now`.
    pub(crate) fn next_due(&self, now: u64) -> Option<u64> {
        let inner = lock(&self.inner);
        inner.pending.iter().map(|pending| pending.due).filter(|&due| due > now).min()
    }

    /// Whether a completion is due that does not show yet.
    pub(crate) fn has_due(&self, now: u64) -> bool {
        let inner = lock(&self.inner);
        (0..inner.pending.len()).any(|i| inner.may_show(i, now))
    }

    /// Shows one completion that is due, any that `rng` likes.
    pub(crate) fn show_one(&self, rng: &mut SplitMix64, now: u64) -> Option<Shown> {
        let mut inner = lock(&self.inner);
        let count = inner.pending.len();
        let start = rng.below(count);
        let around = (start..count).chain(0..start);
        let index = around.into_iter().find(|&i| inner.may_show(i, now))?;
        let entry = inner.pending.remove(index)?.entry;
        inner.show(entry);
        Some(Shown { completion: entry.completion, is_recv: entry.is_recv })
    }
}

impl Inner {
    fn show(&mut self, entry: Entry) {
        self.showing.push_back(entry);
        // As verbs has it, a failed completion wakes those who wait for solicited ones too.
        let solicited = entry.solicited || !entry.completion.status.is_success();
        self.solicited += u64::from(solicited);
        if self.armed == Some(Notify::Any) || (solicited && self.armed.is_some()) {
            self.armed = None;
            self.notified = true;
        }
    }

    /// Whether a pending entry is due and the first of its work queue.
    fn may_show(&self, index: usize, now: u64) -> bool {
        let this = &self.pending[index];
        this.due <= now && !self.pending.range(..index).any(|earlier| earlier.same_queue(this))
    }

    /// Shows everything that is due, in the order it came.
    fn show_due(&mut self, now: u64) {
        let mut index = 0;
        while index < self.pending.len() {
            if !self.may_show(index, now) {
                index += 1;
            } else if let Some(pending) = self.pending.remove(index) {
                self.show(pending.entry);
            }
        }
    }

    fn take<'o>(&mut self, out: &'o mut [MaybeUninit<Completion>]) -> &'o [Completion] {
        let count = out.len().min(self.showing.len());
        let out = &mut out[..count];
        for (slot, entry) in out.iter_mut().zip(self.showing.drain(..count)) {
            slot.write(entry.completion);
            if let Some(Some(owner)) = self.owners.get(entry.owner as usize) {
                owner.progress.release(entry.is_recv, entry.releases);
            }
        }
        // SAFETY: `showing` had `count` entries, so each of the `count` slots was written.
        unsafe { out.assume_init_ref() }
    }
}

/// Fills what verbs leaves undefined on a failed completion with what misleads most.
fn spoil(completion: &mut Completion, rng: &mut SplitMix64) {
    const LIES: [WcOpcode; 6] = [
        WcOpcode::SEND,
        WcOpcode::RDMA_WRITE,
        WcOpcode::RDMA_READ,
        WcOpcode::RECV,
        WcOpcode::RECV_RDMA_WITH_IMM,
        WcOpcode(0xdead),
    ];
    let (a, b) = (rng.next(), rng.next());
    completion.opcode = LIES[rng.below(LIES.len())];
    completion.byte_len = a as u32;
    completion.imm = Imm::from_number((a >> 32) as u32);
    completion.src_qp = b as u32;
    completion.wc_flags = WcFlags::from_bits_retain((b >> 32) as u32 | 2);
    completion.pkey_index = (a >> 16) as u16;
    completion.slid = (b >> 16) as u16;
    completion.sl = (a >> 8) as u8;
    completion.dlid_path_bits = (b >> 8) as u8;
}

/// A completion queue. Dropping it is fine at any time: its queue pairs keep it alive.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) shared: Arc<CqShared>,
}

impl CompletionQueue {
    pub(crate) fn new(shared: Arc<CqShared>) -> Self {
        Self { shared }
    }

    /// Asks for a notification of the next completion that shows (`ibv_req_notify_cq`): of any, or
    /// of the next that is solicited or failed. Asking for any outlasts asking for solicited ones.
    pub fn req_notify(&mut self, solicited_only: bool) {
        let mut inner = lock(&self.shared.inner);
        if !solicited_only {
            inner.armed = Some(Notify::Any);
        } else if inner.armed.is_none() {
            inner.armed = Some(Notify::Solicited);
        }
    }

    /// Whether the notification asked for has come; tells it once (`ibv_get_cq_event`, without
    /// waiting).
    pub fn take_event(&mut self) -> bool {
        std::mem::take(&mut lock(&self.shared.inner).notified)
    }

    /// Completions so far that were solicited by the sender, or failed.
    pub fn solicited_completions(&self) -> u64 {
        lock(&self.shared.inner).solicited
    }

    fn error(&self, errno: i32) -> CqError {
        CqError { cq: self.shared.id, device: self.shared.device.id, errno }
    }
}

// SAFETY: a completion is shown once its request is executed, in the order of its queue, and is taken
// out when it is polled.
unsafe impl hardware::CompletionQueue for CompletionQueue {
    fn id(&self) -> CqId {
        self.shared.id
    }

    fn device(&self) -> DeviceId {
        self.shared.device.id
    }

    fn capacity(&self) -> u32 {
        self.shared.capacity
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let device = &self.shared.device;
        if device.is_gone() {
            return Err(self.error(errno::ENODEV));
        }
        if device.fabric.threaded {
            self.shared.run_work();
        }
        let mut inner = lock(&self.shared.inner);
        if inner.overrun {
            return Err(self.error(errno::EIO));
        }
        if device.fabric.threaded && !inner.pending.is_empty() {
            let now = device.fabric.clock.now();
            inner.show_due(now);
        }
        Ok(inner.take(out))
    }
}
