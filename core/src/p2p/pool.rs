//! The receives that all connections of a device share.
//!
//! Immediates take receives without a buffer out of the device's shared receive queue. What one connection
//! may need there, it *promises* with each irecv: one receive for every immediate that may come for a
//! waiting slot. The rule, for each device, at any time:
//!
//! ```text
//! posted - taken >= sum over its connections of what they promised
//! ```
//!
//! Nothing is shared between connections for that, no counter and no lock. Each has an [`Account`]: a
//! handle of its own of the shared queue, the receives that it posted through it, and the receive
//! completions of its own queue pairs, whatever their status. It keeps its own difference at what it
//! promised, so the sum over all connections keeps the rule. A peer that sends immediates nobody asked for
//! takes receives that others posted; that draws its own account, which is filled up again in the same poll.
//!
//! It may make others wait until then: their senders are told "receiver not ready", and nothing is lost if queue
//! pairs of senders retry that for ever (`rnr_retry` 7) and those of receivers ask for it soon again (a small
//! `min_rnr_timer`). Where one peer must not make another wait at all, they get pools of their own.
//!
//! The [`Pool`] is the ledger: it grants accounts with limits that add up to no more than the queue holds,
//! takes over what a closed account leaves, and counts receives that unknown queue pairs took. Queue pairs of a
//! closed account may have taken receives whose completions nobody has polled yet, so what it leaves is in nobody's
//! account until the completion queue was seen empty.

use crate::hardware::{ENGINE_WR_ID, ReceiveQueue, RecvBatch, Refusal, Taken};
use crate::verbs::{Completion, DeviceId, RecvRequest, Sge};
use core::sync::atomic::{AtomicU64, Ordering};

/// The `wr_id` of every receive of a pool: they are all alike.
pub const POOL_WR_ID: u64 = 0x706f_6f6c;

const _: () = assert!(POOL_WR_ID & ENGINE_WR_ID == 0, "shared queues refuse the engine's");

/// The low water mark of accounts that are not small.
const LOW_WATER: u32 = 64;

/// Receives in an account after a batch, unless more were promised.
const HIGH_WATER: u32 = 512;

/// Posts `count` receives.
fn post<S: ReceiveQueue>(queue: &mut S, count: u32) -> Taken {
    if count == 0 {
        return Taken { count: 0, refusal: None };
    }
    let mut batch = queue.start_recv();
    for _ in 0..count {
        batch.add(&RecvRequest { wr_id: POOL_WR_ID, sge: Sge::EMPTY });
    }
    Taken::of(count, batch.commit())
}

/// The ledger of one device's shared receive queue.
///
/// ```
/// use polyrail_core::hardware::ReceiveQueue;
/// use polyrail_core::p2p::{Account, Pool, PoolError};
/// use polyrail_core::verbs::DeviceId;
///
/// /// Accounts of two connections: each brings a handle of the same shared receive queue.
/// fn open<S: ReceiveQueue>(device: DeviceId, queues: [S; 2]) -> Result<[Account<S>; 2], PoolError> {
///     let mut pool = Pool::new(device, 4096);
///     let [first, second] = queues;
///     Ok([pool.open(first, 512)?, pool.open(second, 2048)?])
/// }
/// ```
#[derive(Debug)]
pub struct Pool {
    /// No other pool of this process has it.
    id: u64,
    device: DeviceId,
    capacity: u32,
    granted: u32,
    /// Receives in the queue that no account has; below 0, receives that were taken at the cost of others.
    unowned: i64,
    /// Receives that closed accounts left: in the queue, or taken by completions that nobody has polled.
    unsettled: u32,
}

/// The next pool has this id.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// An account cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The limits of all accounts together would pass what the queue holds.
    #[error("an account of {asked} receives, where {left} of {capacity} are not granted yet")]
    Full {
        /// The limit that was asked for.
        asked: u32,
        /// What is left.
        left: u32,
        /// Receives that the queue holds.
        capacity: u32,
    },
    /// There would be room, but for receives of closed accounts that may be in the queue: poll until the completion
    /// queue is empty, and [say so](Pool::note_empty).
    #[error(
        "cannot reserve {asked} receives: {left} are left, and {unsettled} of closed accounts are not settled"
    )]
    Unsettled {
        /// The limit that was asked for.
        asked: u32,
        /// What is left.
        left: u32,
        /// Receives that closed accounts left.
        unsettled: u32,
    },
    /// An account of no receives is of no use.
    #[error("an account of no receives")]
    Nothing,
}

/// A pool takes back only accounts that it opened; nothing changed.
#[derive(Debug, thiserror::Error)]
#[error(
    "another pool, of device {}, opened the account, not this one of device {}", account.device.0, pool.0
)]
pub struct ForeignAccount<S> {
    /// The device of the pool that did not take it.
    pub pool: DeviceId,
    /// The account.
    pub account: Account<S>,
}

impl Pool {
    /// The ledger of a shared receive queue, empty now, of `device`.
    ///
    /// `capacity` is how many receives it holds, or how many the completion queue of the device's connections
    /// has [set aside](crate::virtual_cq::VirtualCq::set_aside) for them, if that is less: each of them
    /// completes there.
    pub fn new(device: DeviceId, capacity: u32) -> Self {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Self { id, device, capacity, granted: 0, unowned: 0, unsettled: 0 }
    }

    /// The device.
    pub const fn device(&self) -> DeviceId {
        self.device
    }

    /// Receives that all accounts together may have posted: as many as the queue holds, less those that were
    /// [written off](Self::write_off).
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Receives that new accounts may have: all that the queue holds, less those of open accounts, and less those
    /// of closed ones that [may be in the queue](Self::note_empty).
    pub const fn left(&self) -> u32 {
        self.capacity.saturating_sub(self.granted).saturating_sub(self.unsettled)
    }

    /// Opens an account for one connection. `queue` is a handle of the shared receive queue, for this
    /// connection alone; `limit` bounds what it may have posted, and so what it may promise: slots times
    /// rails is always enough.
    ///
    /// # Errors
    ///
    /// The limits of all accounts must not exceed the capacity, nor what is [left](Self::left) of it.
    pub fn open<S: ReceiveQueue>(&mut self, queue: S, limit: u32) -> Result<Account<S>, PoolError> {
        let Self { id, device, capacity, unsettled, .. } = *self;
        let left = self.left();
        if limit == 0 {
            return Err(PoolError::Nothing);
        }
        if limit > left {
            return Err(match left.saturating_add(unsettled) {
                all if limit > all => PoolError::Full { asked: limit, left, capacity },
                _ => PoolError::Unsettled { asked: limit, left, unsettled },
            });
        }
        self.granted += limit;
        // What closed accounts left, and is known to be there, is this one's now. What they owe is the pool's.
        let posted = self.unowned.clamp(0, i64::from(limit));
        self.unowned -= posted;
        // An account for few receives is not filled up with each that is taken.
        let low_water = LOW_WATER.min(limit / 8);
        Ok(Account { pool: id, device, queue, limit, low_water, posted })
    }

    /// Takes an account back, of a connection that has ended: none of its queue pairs takes a receive any
    /// more, or if one does, its completion is [foreign](Self::note_foreign). The handle is returned.
    ///
    /// The receives that it leaves are promised to nobody before [`note_empty`](Self::note_empty). What it took
    /// at the cost of others is to be [settled](Self::settle).
    ///
    /// # Errors
    ///
    /// Another pool opened the account; nothing changed, and it is given back.
    pub fn close<S>(&mut self, account: Account<S>) -> Result<S, ForeignAccount<S>> {
        if account.pool != self.id {
            return Err(ForeignAccount { pool: self.device, account });
        }
        self.granted -= account.limit;
        match u32::try_from(account.posted) {
            Ok(posted) => self.unsettled += posted,
            // It took more than it posted, of others.
            Err(_) => self.unowned += account.posted,
        }
        Ok(account.queue)
    }

    /// Takes note of a [foreign](crate::virtual_cq::Event::Foreign) completion of this device. Returns
    /// whether it is of a receive of the pool.
    pub const fn note_foreign(&mut self, completion: &Completion) -> bool {
        let is_ours = completion.wr_id == POOL_WR_ID;
        if is_ours {
            // Receives are all alike: as long as closed accounts have left some, it is one of them.
            match self.unsettled.checked_sub(1) {
                Some(rest) => self.unsettled = rest,
                None => self.unowned -= 1,
            }
        }
        is_ours
    }

    /// Takes note that the completion queue of this device was found empty, and that every
    /// [foreign](Self::note_foreign) completion was noted: by a poll that began when no queue pair of a closed
    /// account took receives any more. What those accounts left is in the queue then, and the next ones have it.
    ///
    /// Poll before these queue pairs are destroyed: some drivers forget the completions of one that is. If that poll
    /// fails, [write these receives off](Self::write_off).
    pub fn note_empty(&mut self) {
        self.unowned += i64::from(core::mem::take(&mut self.unsettled));
    }

    /// Gives up what closed accounts left: their queue pairs are destroyed, and the completion queue could not be
    /// polled before, so nobody can find out how many of these receives are in the queue. Nobody is promised any of
    /// them, and the pool's [capacity](Self::capacity) is that much less from now on.
    pub const fn write_off(&mut self) {
        self.capacity -= self.unsettled;
        self.unsettled = 0;
    }

    /// Posts receives in the place of those that were taken at the cost of open accounts, and returns how
    /// many.
    ///
    /// # Errors
    ///
    /// The driver refused some of them: to be tried again.
    pub fn settle<S: ReceiveQueue>(&mut self, queue: &mut S) -> Result<u32, Refusal> {
        let owed = self.unowned.min(0).unsigned_abs();
        let taken = post(queue, owed.min(u64::from(self.capacity)) as u32);
        self.unowned += i64::from(taken.count);
        taken.refusal.map_or(Ok(taken.count), Err)
    }

    /// Receives in the queue, or taken by completions that nobody has polled, that no account has.
    pub const fn unowned(&self) -> i64 {
        self.unowned + self.unsettled as i64
    }
}

/// One connection's part of a device's pool.
#[derive(Debug)]
pub struct Account<S> {
    /// The id of the pool that opened it.
    pool: u64,
    device: DeviceId,
    queue: S,
    limit: u32,
    /// With fewer receives than this, a batch is posted, whatever was promised.
    low_water: u32,
    /// Receives posted through it, less those that this connection's queue pairs took.
    posted: i64,
}

impl<S> Account<S> {
    /// The device.
    pub const fn device(&self) -> DeviceId {
        self.device
    }

    /// Receives that it may have posted.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Receives posted through it, less those that this connection's queue pairs took. Below 0 when these
    /// took more than were posted for them.
    pub const fn posted(&self) -> i64 {
        self.posted
    }

    /// So many receive completions of this connection's were taken, whatever their status.
    #[inline]
    pub(super) const fn lower(&mut self, count: u32) {
        self.posted -= count as i64;
    }

    /// Whether nothing is to be posted: there is what was promised, and no less than the low water mark. That
    /// much may be promised too: there are never more than the limit.
    #[inline]
    pub(super) fn has_enough(&self, promised: u32) -> bool {
        self.posted >= i64::from(self.low_water.max(promised))
    }

    /// Whether so many may be promised.
    #[inline]
    pub(super) const fn may_promise(&self, promised: u32) -> bool {
        promised <= self.limit
    }

    /// Whether what was promised is there.
    #[inline]
    pub(super) fn covers(&self, promised: u32) -> bool {
        self.posted >= i64::from(promised)
    }
}

impl<S: ReceiveQueue> Account<S> {
    /// Posts a batch, if there are fewer receives than were promised, or fewer than the low water mark.
    #[inline]
    pub(super) fn refill(&mut self, promised: u32) -> Result<(), Refusal> {
        if self.has_enough(promised) { Ok(()) } else { self.post_batch(promised) }
    }

    #[cold]
    fn post_batch(&mut self, promised: u32) -> Result<(), Refusal> {
        let high = HIGH_WATER.max(promised).min(self.limit);
        let missing = (i64::from(high) - self.posted).max(0);
        let taken = post(&mut self.queue, missing.min(i64::from(u32::MAX)) as u32);
        self.posted += i64::from(taken.count);
        taken.refusal.map_or(Ok(()), Err)
    }

    /// Receives that were taken beyond those posted are posted: of a connection that has ended.
    pub(super) fn pay_back(&mut self) -> Result<(), Refusal> {
        if self.posted >= 0 { Ok(()) } else { self.post_batch(0) }
    }
}

#[cfg(test)]
mod tests;
