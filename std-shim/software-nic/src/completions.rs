//! The contents of a completion queue.
//!
//! Two rings, allocated at creation: *visible* completions, which polls return, and *pending*
//! completions, which the scheduler has not made visible yet or which a fault delays. Both count
//! against the capacity. Completions of a work queue become visible in order. `Q` is the queue pair
//! that is notified when its completions are polled.

use crate::sync::SplitMix64;
use polyrail_core::verbs::{Completion, Imm, WcFlags, WcOpcode};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A completion in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) completion: Completion,
    /// Number of slots of its work queue that are free after it was polled, counted from the
    /// beginning.
    pub(crate) releases: u64,
    /// The queue pair that is notified, as an index into the queue's owners.
    pub(crate) owner: u32,
    /// Which work queue it belongs to.
    pub(crate) is_recv: bool,
    /// Whether it wakes waits for solicited completions.
    pub(crate) solicited: bool,
}

/// The owner index of entries whose queue pair is destroyed.
pub(crate) const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) due: u64,
    pub(crate) entry: Entry,
}

impl Pending {
    pub(crate) fn same_queue(&self, other: &Self) -> bool {
        let key = |entry: &Entry| (entry.owner, entry.completion.qp_num, entry.is_recv);
        key(&self.entry) == key(&other.entry)
    }
}

/// Number of released slots, counted from the beginning. Written by the poller.
#[derive(Debug, Default)]
pub(crate) struct ReleasedSlots {
    send: AtomicU64,
    recv: AtomicU64,
}

impl ReleasedSlots {
    /// Records that everything below `position` is free. A position below the recorded one, such as
    /// of a completion from before a reset, changes nothing.
    pub(crate) fn release(&self, is_recv: bool, position: u64) {
        let side = if is_recv { &self.recv } else { &self.send };
        side.fetch_max(position, Ordering::AcqRel);
    }

    pub(crate) fn sends(&self) -> u64 {
        self.send.load(Ordering::Acquire)
    }

    pub(crate) fn recvs(&self) -> u64 {
        self.recv.load(Ordering::Acquire)
    }
}

/// A queue pair that is notified when completions of its work queue are polled.
#[derive(Debug)]
pub(crate) struct Owner<Q> {
    pub(crate) qp: Weak<Q>,
    pub(crate) released: Arc<ReleasedSlots>,
}

/// A report that slots of a work queue are free.
#[derive(Clone, Copy, Debug)]
struct Released {
    owner: u32,
    is_recv: bool,
    position: u64,
}

impl Released {
    fn tell<Q>(self, owners: &[Option<Owner<Q>>]) {
        if let Some(Some(owner)) = owners.get(self.owner as usize) {
            owner.released.release(self.is_recv, self.position);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Completions<Q> {
    pub(crate) showing: VecDeque<Entry>,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) owners: Vec<Option<Owner<Q>>>,
    pub(crate) overrun: bool,
    pub(crate) rubbish: SplitMix64,
    pub(crate) solicited: u64,
    pub(crate) armed: Option<Notify>,
    pub(crate) notified: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notify {
    Any,
    Solicited,
}

impl<Q> Completions<Q> {
    /// Returns the number of completions, visible or not.
    pub(crate) fn held(&self) -> usize {
        self.showing.len() + self.pending.len()
    }

    /// Changes the capacity; completions in the queue stay.
    pub(crate) fn make_room(&mut self, capacity: usize) {
        self.showing.reserve(capacity.saturating_sub(self.showing.len()));
        self.pending.reserve(capacity.saturating_sub(self.pending.len()));
    }

    /// Makes a completion visible. Returns whether a notification was requested for it.
    pub(crate) fn show(&mut self, entry: Entry) -> bool {
        self.showing.push_back(entry);
        // As in verbs, a failed completion also wakes waits for solicited completions.
        let solicited = entry.solicited || !entry.completion.status.is_success();
        self.solicited += u64::from(solicited);
        let notifies = self.armed == Some(Notify::Any) || (solicited && self.armed.is_some());
        if notifies {
            self.armed = None;
            self.notified = true;
        }
        notifies
    }

    /// Returns whether a pending entry is due and the first of its work queue.
    pub(crate) fn may_show(&self, index: usize, now: u64) -> bool {
        let this = &self.pending[index];
        this.due <= now && !self.pending.range(..index).any(|earlier| earlier.same_queue(this))
    }

    /// Makes all due completions visible, in order. Returns whether a notification was requested
    /// for one of them.
    pub(crate) fn show_due(&mut self, now: u64) -> bool {
        let mut notifies = false;
        let mut index = 0;
        while index < self.pending.len() {
            if !self.may_show(index, now) {
                index += 1;
            } else if let Some(pending) = self.pending.remove(index) {
                notifies |= self.show(pending.entry);
            }
        }
        notifies
    }

    pub(crate) fn take<'o>(&mut self, out: &'o mut [MaybeUninit<Completion>]) -> &'o [Completion] {
        let count = out.len().min(self.showing.len());
        let out = &mut out[..count];
        // Later completions of a work queue release at least as many slots, so only the last of a
        // run is reported.
        let mut run = Released { owner: NOBODY, is_recv: false, position: 0 };
        for (slot, entry) in out.iter_mut().zip(self.showing.drain(..count)) {
            slot.write(entry.completion);
            let Entry { owner, is_recv, releases: position, .. } = entry;
            if (owner, is_recv) != (run.owner, run.is_recv) {
                run.tell(&self.owners);
            }
            run = Released { owner, is_recv, position };
        }
        run.tell(&self.owners);
        // SAFETY: `showing` had `count` entries, so each of the `count` slots was written.
        unsafe { out.assume_init_ref() }
    }
}

/// Fills the fields that verbs leaves undefined on a failed completion with misleading values.
pub(crate) fn spoil(completion: &mut Completion, rng: &mut SplitMix64) {
    const LIES: [WcOpcode; 6] = [
        WcOpcode::SEND,
        WcOpcode::RDMA_WRITE,
        WcOpcode::RDMA_READ,
        WcOpcode::RECV,
        WcOpcode::RECV_RDMA_WITH_IMM,
        WcOpcode(0xdead),
    ];
    let a = rng.next();
    let b = rng.next();
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
