//! The contents of a completion queue.
//!
//! Two rings, whose memory grows with what they hold: *visible* completions, which polls return,
//! and *pending* completions, which the scheduler has not made visible yet or which a fault delays.
//! Both count against the capacity. Completions of a work queue become visible in order.

use polyrail_core::verbs::{Completion, Imm, WcFlags, WcOpcode};
use polyrail_nic_parts::completions::{Completions, Entry, FIRST_ENTRIES, NOBODY};
use polyrail_nic_parts::sync::SplitMix64;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// A completion that polls do not return yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// The time at which it may become visible, in nanoseconds of the fabric's clock.
    pub(crate) due: u64,
    /// The completion.
    pub(crate) entry: Entry,
}

impl Pending {
    /// Returns whether both completions are of one work queue, whose order must be kept.
    pub(crate) fn same_queue(&self, other: &Self) -> bool {
        let key = |entry: &Entry| (entry.owner, entry.completion.qp_num, entry.is_recv);
        key(&self.entry) == key(&other.entry)
    }
}

/// Visible and pending completions. It dereferences to the visible ones.
#[derive(Debug)]
pub(crate) struct AllCompletions<Q> {
    visible: Completions<Q>,
    /// Completions that are not visible yet, oldest first.
    pub(crate) pending: VecDeque<Pending>,
    /// Source of the values of undefined fields; see [`spoil`].
    pub(crate) rubbish: SplitMix64,
}

impl<Q> Deref for AllCompletions<Q> {
    type Target = Completions<Q>;

    #[inline]
    fn deref(&self) -> &Completions<Q> {
        &self.visible
    }
}

impl<Q> DerefMut for AllCompletions<Q> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Completions<Q> {
        &mut self.visible
    }
}

impl<Q> AllCompletions<Q> {
    /// Makes an empty queue of `capacity` completions, without owners. `seed` determines the values
    /// of undefined fields.
    pub(crate) fn new(capacity: u32, seed: u64) -> Self {
        Self {
            visible: Completions::new(capacity),
            pending: VecDeque::with_capacity(FIRST_ENTRIES.min(capacity as usize)),
            rubbish: SplitMix64::new(seed),
        }
    }

    /// Detaches a work queue. Its completions stay in the queue.
    pub(crate) fn detach(&mut self, owner: u32) {
        self.visible.detach(owner);
        for Pending { entry, .. } in &mut self.pending {
            if entry.owner == owner {
                entry.owner = NOBODY;
            }
        }
    }

    /// Drops the invisible completions of `owner`, whose queue pair was reset.
    pub(crate) fn forget_pending(&mut self, owner: u32) {
        self.pending.retain(|pending| pending.entry.owner != owner);
    }

    /// Returns the number of completions, visible or not.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.visible.held() + self.pending.len()
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

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_nic_parts::completions::{Owner, ReleasedSlots};
    use std::mem::MaybeUninit;
    use std::sync::Arc;

    fn entry(owner: u32, wr_id: u64) -> Entry {
        let completion = Completion::success(17, wr_id, WcOpcode::SEND);
        Entry { completion, releases: wr_id + 1, owner, is_recv: false, solicited: false }
    }

    #[test]
    fn pending_completions_of_a_detached_owner_stay_and_release_nothing() {
        let qp = Arc::new(());
        let released = Arc::<ReleasedSlots>::default();
        let owner = || Owner { qp: Arc::downgrade(&qp), released: Arc::clone(&released) };
        let mut completions = AllCompletions::new(8, 1);
        let index = completions.attach(owner());
        completions.pending.push_back(Pending { due: 0, entry: entry(index, 1) });
        completions.detach(index);
        assert_eq!(completions.attach(owner()), index, "a free index is used again");
        completions.forget_pending(index);
        assert_eq!(completions.held(), 1);
        completions.show_due(0);
        assert_eq!(completions.take(&mut [MaybeUninit::uninit(); 8]).len(), 1);
        assert_eq!(released.sends(), 0);
    }

    #[test]
    fn a_work_queue_keeps_its_order_while_another_overtakes() {
        let mut completions = AllCompletions::<()>::new(8, 1);
        for (due, owner, wr_id) in [(9, 0, 0), (1, 0, 1), (1, 1, 2)] {
            completions.pending.push_back(Pending { due, entry: entry(owner, wr_id) });
        }
        let mut shown = |now| {
            completions.show_due(now);
            let mut out = [MaybeUninit::uninit(); 8];
            completions.take(&mut out).iter().map(|one| one.wr_id).collect::<Vec<_>>()
        };
        assert_eq!(shown(1), [2]);
        assert_eq!(shown(9), [0, 1]);
    }
}
