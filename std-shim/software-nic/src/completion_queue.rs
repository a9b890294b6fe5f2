//! Completion queues as queue pairs see them: where completions go, and which queue pairs have work to do.

use crate::channel::CompletionChannel;
use crate::completions::{Completions, Entry, NOBODY, Owner, Pending, ReleasedSlots, spoil};
use crate::event::AsyncEvent;
use crate::receives::Responder;
use crate::shared::{CqShared, DeviceShared, QpShared};
use crate::sync::{Apart, SplitMix64, lock};
use polyrail_core::hardware::CqId;
use polyrail_core::verbs::Completion;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Completion queue numbers are unique per process.
static NEXT_CQ: AtomicU64 = AtomicU64::new(0);

/// A completion that was made to show, for the scheduler's record.
pub(crate) struct Shown {
    pub(crate) completion: Completion,
    pub(crate) is_recv: bool,
}

impl CqShared {
    pub(crate) fn new(
        device: &Arc<DeviceShared>,
        capacity: u32,
        channel: Option<CompletionChannel>,
    ) -> Arc<Self> {
        let index = device.fabric.next_cq_index();
        let inner = Completions {
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
            capacity: AtomicU32::new(capacity),
            inner: Apart::new(Mutex::new(inner)),
            is_empty: Apart::new(AtomicBool::new(true)),
            channel,
            tells_of_work: AtomicBool::new(false),
            work: Apart::new(Mutex::new(VecDeque::new())),
            is_idle: AtomicBool::new(true),
        })
    }

    /// Makes a work queue of `qp` complete here; returns its owner index. `sends` reserves a place
    /// in the list of work, so that listing allocates nothing.
    pub(crate) fn attach(
        &self,
        qp: Weak<QpShared>,
        released: Arc<ReleasedSlots>,
        sends: bool,
    ) -> u32 {
        let mut inner = lock(&self.inner);
        let owner = Some(Owner { qp, released });
        if sends {
            // Room for all queue pairs beside what is listed, dropped queue pairs included.
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
        let mut inner = lock(&self.inner);
        inner.pending.retain(|pending| pending.entry.owner != owner);
        self.note_contents(&inner);
    }

    /// Whether a receive of `owner` completed that does not show yet.
    pub(crate) fn has_pending_receive(&self, owner: u32) -> bool {
        let inner = lock(&self.inner);
        inner.pending.iter().any(|pending| pending.entry.owner == owner && pending.entry.is_recv)
    }

    /// Adds a completion, now or after the device's delay.
    pub(crate) fn push(&self, entry: Entry) {
        self.push_all([entry]);
    }

    /// Adds completions in this order, all together, now or after the device's delay.
    pub(crate) fn push_all(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut inner = lock(&self.inner);
        let mut notifies = false;
        for entry in entries {
            notifies |= self.add(&mut inner, entry);
        }
        self.note_contents(&inner);
        if notifies {
            self.ring();
        }
        if !inner.pending.is_empty() {
            self.tell_of_work();
        }
    }

    /// Returns whether a notification was asked for this one, which is there from now on.
    fn add(&self, inner: &mut Completions<QpShared>, mut entry: Entry) -> bool {
        let delay = self.device.faults.delay();
        if inner.overrun {
            return false;
        }
        if inner.held() == self.capacity.load(Ordering::Relaxed) as usize {
            inner.overrun = true;
            self.note_contents(inner);
            self.fail_owners(inner);
            return false;
        }
        if !entry.completion.status.is_success() {
            spoil(&mut entry.completion, &mut inner.rubbish);
        }
        let fabric = &self.device.fabric;
        if !fabric.threaded || delay > 0 || !inner.pending.is_empty() {
            let due = fabric.clock.now().saturating_add(delay);
            inner.pending.push_back(Pending { due, entry });
            return false;
        }
        inner.show(entry)
    }

    /// Notes whether there is something for a poll, after any change of what is here.
    pub(crate) fn note_contents(&self, inner: &Completions<QpShared>) {
        let is_empty = inner.held() == 0 && !inner.overrun;
        // Only if it changes: a poll elsewhere has the line in its cache.
        if self.is_empty.load(Ordering::Relaxed) != is_empty {
            self.is_empty.store(is_empty, Ordering::Release);
        }
    }

    /// Tells those who wait.
    pub(crate) fn ring(&self) {
        if let Some(channel) = &self.channel {
            channel.ring();
        }
    }

    /// Tells those who wait, if there are any, that polls have something to carry out. After it was noted
    /// what: [`CompletionQueue::req_notify`](crate::CompletionQueue::req_notify) looks the other way round.
    fn tell_of_work(&self) {
        if self.channel.is_some() && self.tells_of_work.swap(false, Ordering::AcqRel) {
            self.ring();
        }
    }

    /// Begins to tell of work; at once, if there is some.
    pub(crate) fn begin_to_tell_of_work(&self, has_pending: bool) {
        if self.channel.is_some() && self.device.fabric.threaded {
            self.tells_of_work.store(true, Ordering::Release);
            let has_work = has_pending || !lock(&self.work).is_empty();
            if has_work {
                self.tell_of_work();
            }
        }
    }

    /// A completion queue that overran takes its queue pairs with it.
    fn fail_owners(&self, inner: &Completions<QpShared>) {
        self.device.push_event(AsyncEvent::CqError { cq: self.id });
        for qp in inner.owners.iter().flatten().filter_map(|owner| owner.qp.upgrade()) {
            if qp.state.fail() {
                qp.list_work();
            }
        }
    }

    /// Puts a queue pair on the list of work.
    pub(crate) fn list(&self, qp: Weak<QpShared>) {
        {
            let mut work = lock(&self.work);
            work.push_back(qp);
            self.is_idle.store(false, Ordering::Release);
        }
        self.tell_of_work();
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
        if inner.show(entry) {
            self.ring();
        }
        Some(Shown { completion: entry.completion, is_recv: entry.is_recv })
    }
}

impl QpShared {
    /// Completes a receive; its queue is given it with the next [`hand_over`](Self::hand_over).
    pub(crate) fn push_receive(
        &self,
        recv: &mut Responder,
        releases: u64,
        completion: Completion,
        solicited: bool,
    ) {
        if recv.is_full() {
            self.hand_over(recv);
        }
        let owner = self.recv_owner;
        recv.done.push(Entry { completion, releases, owner, is_recv: true, solicited });
    }

    /// Gives the queue the completions of receives that it was not given yet.
    pub(crate) fn hand_over(&self, recv: &mut Responder) {
        if !recv.done.is_empty() {
            self.recv_cq.push_all(recv.done.drain(..));
        }
    }

    /// Tells the poller of the send completions that there is something to do. Nobody needs to be
    /// told on a deterministic fabric.
    pub(crate) fn list_work(&self) {
        if self.device.fabric.threaded && !self.listed.swap(true, Ordering::AcqRel) {
            self.send_cq.list(self.me.clone());
        }
    }
}
