//! Completion queues as queue pairs see them: where completions go, and which queue pairs have work
//! to do.

use crate::pending::{AllCompletions, Pending, spoil};
use crate::receives::Responder;
use crate::shared::{CqShared, DeviceShared, QpShared};
use polyrail_core::hardware::CqId;
use polyrail_core::verbs::Completion;
use polyrail_nic_parts::channel::CompletionChannel;
use polyrail_nic_parts::completions::{Entry, Owner, ReleasedSlots};
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::sync::{Apart, SplitMix64, lock};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Completion queue numbers are unique per process.
static NEXT_CQ: AtomicU64 = AtomicU64::new(0);

/// A completion that was made visible, for the scheduler's record.
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
        let seed = device.fabric.seed ^ (u64::from(index) << 32) ^ 0x0072_7562;
        let inner = AllCompletions::new(capacity, seed);
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

    /// Attaches a work queue of `qp`, whose completions go here. Returns its owner index. `sends`
    /// reserves a place in the list of work, so that listing allocates nothing.
    pub(crate) fn attach(
        &self,
        qp: Weak<QpShared>,
        released: Arc<ReleasedSlots>,
        sends: bool,
    ) -> u32 {
        let mut inner = lock(&self.inner);
        if sends {
            // Room for all queue pairs in addition to the listed ones, which may include dropped
            // queue pairs.
            let attached = inner.owners.len() + 1;
            lock(&self.work).reserve(attached);
        }
        inner.attach(Owner { qp, released })
    }

    /// Undoes [`attach`](Self::attach). Its completions stay in the queue.
    pub(crate) fn detach(&self, owner: u32) {
        lock(&self.inner).detach(owner);
    }

    /// Drops invisible completions of `owner`, whose queue pair was reset.
    pub(crate) fn forget_pending(&self, owner: u32) {
        let mut inner = lock(&self.inner);
        inner.forget_pending(owner);
        self.note_contents(&inner);
    }

    /// Returns whether a completed receive of `owner` is not visible yet.
    pub(crate) fn has_pending_receive(&self, owner: u32) -> bool {
        let inner = lock(&self.inner);
        inner.pending.iter().any(|pending| pending.entry.owner == owner && pending.entry.is_recv)
    }

    /// Adds a completion, now or after the device's delay.
    pub(crate) fn push(&self, entry: Entry) {
        self.push_all([entry]);
    }

    /// Adds completions in this order under one lock, now or after the device's delay.
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

    /// Adds a completion. Returns whether a notification was requested for it.
    fn add(&self, inner: &mut AllCompletions<QpShared>, mut entry: Entry) -> bool {
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

    /// Records whether a poll would find anything. Called after every change of the contents.
    pub(crate) fn note_contents(&self, inner: &AllCompletions<QpShared>) {
        let is_empty = inner.held() == 0 && !inner.overrun;
        // Written only if it changes, because polling threads have the line in their caches.
        if self.is_empty.load(Ordering::Relaxed) != is_empty {
            self.is_empty.store(is_empty, Ordering::Release);
        }
    }

    /// Notifies the channel.
    pub(crate) fn ring(&self) {
        if let Some(channel) = &self.channel {
            channel.ring();
        }
    }

    /// Notifies waiting programs that polls have requests to execute. Called after the requests
    /// were recorded, because [`CompletionQueue::req_notify`](crate::CompletionQueue::req_notify)
    /// does the two steps in reverse order.
    fn tell_of_work(&self) {
        if self.channel.is_some() && self.tells_of_work.swap(false, Ordering::AcqRel) {
            self.ring();
        }
    }

    /// Enables notifications of work, and notifies at once if there is some.
    pub(crate) fn begin_to_tell_of_work(&self, has_pending: bool) {
        if self.channel.is_some() && self.device.fabric.threaded {
            self.tells_of_work.store(true, Ordering::Release);
            let has_work = has_pending || !lock(&self.work).is_empty();
            if has_work {
                self.tell_of_work();
            }
        }
    }

    /// Moves the queue pairs of an overrun completion queue to ERR.
    fn fail_owners(&self, inner: &AllCompletions<QpShared>) {
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

    /// Returns when the first pending completion is due, if that is after `now`.
    pub(crate) fn next_due(&self, now: u64) -> Option<u64> {
        let inner = lock(&self.inner);
        inner.pending.iter().map(|pending| pending.due).filter(|&due| due > now).min()
    }

    /// Returns whether an invisible completion is due.
    pub(crate) fn has_due(&self, now: u64) -> bool {
        let inner = lock(&self.inner);
        (0..inner.pending.len()).any(|i| inner.may_show(i, now))
    }

    /// Makes one due completion visible, chosen by `rng`.
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
    /// Completes a receive, which enters its queue with the next [`hand_over`](Self::hand_over).
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
        recv.complete(Entry { completion, releases, owner, is_recv: true, solicited });
    }

    /// Adds the collected completions of receives to their queue.
    pub(crate) fn hand_over(&self, recv: &mut Responder) {
        if !recv.done.is_empty() {
            self.recv_cq.push_all(recv.done.drain(..));
        }
    }

    /// Puts the queue pair on its send completion queue's list of work, and notifies the poller.
    /// Not needed on a deterministic fabric.
    pub(crate) fn list_work(&self) {
        if self.device.fabric.threaded && !self.listed.swap(true, Ordering::AcqRel) {
            self.send_cq.list(self.me.clone());
        }
    }
}
