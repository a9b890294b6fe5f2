//! The contents of a completion queue.
//!
//! `Q` is the queue pair that is notified when its completions are polled.

use polyrail_core::hardware::assume_init_slice;
use polyrail_core::verbs::Completion;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A completion in the queue, and what the queue's owners need to know about it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What a poll returns.
    pub completion: Completion,
    /// Number of slots of its work queue that are free after it was polled, counted from the
    /// beginning.
    pub releases: u64,
    /// The queue pair that is notified, as an index into the queue's owners.
    pub owner: u32,
    /// Whether it belongs to the receive queue of its queue pair, or else to the send queue.
    pub is_recv: bool,
    /// Whether it wakes waits for solicited completions.
    pub solicited: bool,
}

/// Completions for which a queue begins with memory, if its capacity is not smaller. A queue that
/// thousands of queue pairs share has a capacity for all that can fail at once, and gets memory for
/// what it holds.
pub const FIRST_ENTRIES: usize = 1024;

/// The owner index of entries whose queue pair is destroyed.
pub const NOBODY: u32 = u32::MAX;

/// Numbers of released slots of a queue pair's two work queues, counted from the beginning. Written
/// by the poller.
#[derive(Debug, Default)]
pub struct ReleasedSlots {
    send: AtomicU64,
    recv: AtomicU64,
}

impl ReleasedSlots {
    /// Records that everything below `position` is free. A position below the recorded one, such as
    /// of a completion from before a reset, changes nothing.
    #[inline]
    pub fn release(&self, is_recv: bool, position: u64) {
        let side = if is_recv { &self.recv } else { &self.send };
        side.fetch_max(position, Ordering::AcqRel);
    }

    /// Returns the number of released slots of the send queue.
    #[inline]
    pub fn sends(&self) -> u64 {
        self.send.load(Ordering::Acquire)
    }

    /// Returns the number of released slots of the receive queue.
    #[inline]
    pub fn recvs(&self) -> u64 {
        self.recv.load(Ordering::Acquire)
    }
}

/// A queue pair that is notified when completions of its work queue are polled.
#[derive(Debug)]
pub struct Owner<Q> {
    /// The queue pair.
    pub qp: Weak<Q>,
    /// Where released slots are recorded.
    pub released: Arc<ReleasedSlots>,
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

/// The completions of a queue, its owners, and the requested notification.
#[derive(Debug)]
pub struct Completions<Q> {
    /// Completions, oldest first.
    pub showing: VecDeque<Entry>,
    /// The work queues that complete here; `None` after their queue pair was destroyed.
    pub owners: Vec<Option<Owner<Q>>>,
    /// Whether a completion found the queue full. The queue is broken then.
    pub overrun: bool,
    /// Number of completions so far that wake waits for solicited completions.
    pub solicited: u64,
    /// The requested notification, of which there is at most one.
    pub armed: Option<Notify>,
    /// Whether a notification was given since this was last cleared.
    pub notified: bool,
}

/// The completions of which a notification is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next completion.
    Any,
    /// The next solicited or failed completion.
    Solicited,
}

impl<Q> Completions<Q> {
    /// Makes an empty queue without owners. It has memory for `capacity` completions, at most
    /// [`FIRST_ENTRIES`]; the caller enforces the capacity.
    pub fn new(capacity: u32) -> Self {
        Self {
            showing: VecDeque::with_capacity(FIRST_ENTRIES.min(capacity as usize)),
            owners: Vec::new(),
            overrun: false,
            solicited: 0,
            armed: None,
            notified: false,
        }
    }

    /// Attaches a work queue, whose completions go here. Returns its owner index.
    pub fn attach(&mut self, owner: Owner<Q>) -> u32 {
        let owner = Some(owner);
        if let Some(free) = self.owners.iter().position(Option::is_none) {
            self.owners[free] = owner;
            return free as u32;
        }
        self.owners.push(owner);
        self.owners.len() as u32 - 1
    }

    /// Undoes [`attach`](Self::attach). Its completions stay in the queue.
    pub fn detach(&mut self, owner: u32) {
        self.owners[owner as usize] = None;
        for entry in &mut self.showing {
            if entry.owner == owner {
                entry.owner = NOBODY;
            }
        }
    }

    /// Returns the number of completions.
    #[inline]
    pub fn held(&self) -> usize {
        self.showing.len()
    }

    /// Adds a completion. Returns whether a notification was requested for it.
    #[inline]
    pub fn show(&mut self, entry: Entry) -> bool {
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

    /// Moves the oldest completions to `out`, as many as fit, and releases their slots.
    /// Returns them.
    #[inline]
    pub fn take<'o>(&mut self, out: &'o mut [MaybeUninit<Completion>]) -> &'o [Completion] {
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
        unsafe { assume_init_slice(out) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::verbs::{WcOpcode, WcStatus};

    fn entry(owner: u32, wr_id: u64) -> Entry {
        let completion = Completion::success(17, wr_id, WcOpcode::SEND);
        Entry { completion, releases: wr_id + 1, owner, is_recv: false, solicited: false }
    }

    fn owner(qp: &Arc<()>) -> (Owner<()>, Arc<ReleasedSlots>) {
        let released = Arc::new(ReleasedSlots::default());
        (Owner { qp: Arc::downgrade(qp), released: Arc::clone(&released) }, released)
    }

    #[test]
    fn slots_are_released_when_their_completions_are_taken() {
        let qp = Arc::new(());
        let (first, first_released) = owner(&qp);
        let (second, second_released) = owner(&qp);
        let mut completions = Completions::new(8);
        let indices = [first, second].map(|owner| completions.attach(owner));
        for wr_id in 0..2 {
            for index in indices {
                completions.show(entry(index, wr_id));
            }
        }
        let mut out = [MaybeUninit::uninit(); 3];
        let taken = completions.take(&mut out);
        assert_eq!(taken.iter().map(|one| one.wr_id).collect::<Vec<_>>(), [0, 0, 1]);
        assert_eq!((first_released.sends(), second_released.sends()), (2, 1));
        assert_eq!((first_released.recvs(), completions.held()), (0, 1));
    }

    #[test]
    fn completions_of_a_detached_owner_stay_and_release_nothing() {
        let qp = Arc::new(());
        let (first, first_released) = owner(&qp);
        let mut completions = Completions::new(8);
        let index = completions.attach(first);
        completions.show(entry(index, 0));
        completions.show(entry(index, 1));
        completions.detach(index);
        let (next, next_released) = owner(&qp);
        assert_eq!(completions.attach(next), index, "a free index is used again");
        assert_eq!(completions.take(&mut [MaybeUninit::uninit(); 8]).len(), 2);
        assert_eq!((first_released.sends(), next_released.sends()), (0, 0));
    }

    #[test]
    fn a_notification_is_given_once_for_a_completion_that_was_requested() {
        let mut completions = Completions::<()>::new(8);
        assert!(!completions.show(entry(0, 0)));
        completions.armed = Some(Notify::Solicited);
        assert!(!completions.show(entry(0, 1)));
        let failed = Completion::failure(17, 2, WcStatus::WR_FLUSH_ERR, 0);
        assert!(completions.show(Entry { completion: failed, ..entry(0, 2) }));
        assert!(completions.notified && completions.armed.is_none());
        assert!(!completions.show(Entry { solicited: true, ..entry(0, 3) }));
        assert_eq!(completions.solicited, 2);
    }
}
