//! The receives that all connections of a device share.
//!
//! Immediates consume receives without a buffer from the device's shared receive queue. A
//! connection *reserves* the receives that it may need with each irecv: one receive for every
//! immediate that may arrive for a waiting slot. For each device, at any time:
//!
//! ```text
//! posted - taken >= sum over its connections of the reserved receives
//! ```
//!
//! Connections share no counter and no lock for this. Each has an [`Account`]: a handle of the
//! shared queue, the receives posted through it, and the receive completions of the connection's
//! queue pairs, whatever their status. Each account keeps its own difference at or above its
//! reservation, so the sum keeps the rule. A peer that sends unexpected immediates consumes
//! receives that others posted; they lower the account of its connection, which is filled up in the
//! same poll.
//!
//! Until then, senders of other connections may receive RNR NAKs. Nothing is lost if the senders'
//! queue pairs retry without limit (`rnr_retry` 7, `ibv_modify_qp`(3)) and the receivers' queue
//! pairs ask for an early retry (a small `min_rnr_timer`). Peers that must not delay one another
//! need separate pools.
//!
//! The [`Pool`] is the ledger. It grants accounts whose limits add up to at most the depth of the
//! queue, takes over the receives of closed accounts, and counts receives that unknown queue pairs
//! consumed. Queue pairs of a closed account may have consumed receives whose completions are not
//! polled yet, so no account gets the receives of a closed account until the completion queue has
//! been seen empty.

use crate::hardware::{ENGINE_WR_ID, ReceiveQueue, RecvBatch, Refusal, Taken};
use crate::verbs::{Completion, DeviceId, RecvRequest, Sge};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// The `wr_id` of every receive of a pool. All have the same, because a receive is not assigned to
/// a connection.
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
    // One doorbell for all of them.
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
    id: PoolId,
    device: DeviceId,
    capacity: u32,
    granted: u32,
    /// Receives in the queue that belong to no account. Negative: receives of open accounts that
    /// closed accounts or unknown queue pairs consumed.
    unowned: i64,
    /// Receives that closed accounts left: still in the queue, or consumed by completions that are
    /// not polled yet.
    unsettled: u32,
}

/// Identifies a pool within the process.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PoolId(u64);

impl PoolId {
    /// Returns an id that no other pool has.
    fn unused() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed, because only the uniqueness of the id matters.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Without the number, which depends on the pools that the process had before: the text of a pool is
/// a function of its state, so that a search recognizes a state that it has reached before.
impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolId(..)")
    }
}

/// An account could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The limits of all accounts together would exceed the capacity of the queue.
    #[error("cannot reserve {asked} receives: {left} of {capacity} are left")]
    Full {
        /// The requested limit.
        asked: u32,
        /// Receives that are left for new accounts.
        left: u32,
        /// Capacity of the queue.
        capacity: u32,
    },
    /// There is room only without the receives of closed accounts that may still be in the queue.
    /// Poll until the completion queue is empty, then call [`note_empty`](Pool::note_empty).
    #[error(
        "cannot reserve {asked} receives: {left} are left, and {unsettled} of closed accounts may still be in the shared receive queue"
    )]
    Unsettled {
        /// The requested limit.
        asked: u32,
        /// Receives that are left for new accounts.
        left: u32,
        /// Receives that closed accounts left.
        unsettled: u32,
    },
    /// The requested limit is 0.
    #[error("an account needs a limit of at least 1 receive")]
    Nothing,
}

/// The account belongs to another pool; nothing changed.
#[derive(Debug, thiserror::Error)]
#[error(
    "the pool of device {} opened the account, not this pool of device {}", account.device.0, pool.0
)]
pub struct ForeignAccount<S> {
    /// The device of the pool that refused the account.
    pub pool: DeviceId,
    /// The account.
    pub account: Account<S>,
}

impl Pool {
    /// Creates the ledger of an empty shared receive queue of `device`.
    ///
    /// `capacity` is the depth of the queue, or the number of completion queue entries that are
    /// [set aside](crate::virtual_cq::VirtualCq::set_aside) for it if that is less, because each
    /// receive completes there.
    pub fn new(device: DeviceId, capacity: u32) -> Self {
        Self { id: PoolId::unused(), device, capacity, granted: 0, unowned: 0, unsettled: 0 }
    }

    /// The device.
    pub const fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the receives that all accounts together may have posted: the capacity given to
    /// [`new`](Self::new), less the receives that were [written off](Self::write_off).
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the receives that new accounts may have: the capacity, less the limits of open
    /// accounts, and less the receives of closed accounts that [may be in the
    /// queue](Self::note_empty).
    pub const fn left(&self) -> u32 {
        self.capacity.saturating_sub(self.granted).saturating_sub(self.unsettled)
    }

    /// Opens an account for one connection. `queue` is a handle of the shared receive queue for
    /// this connection alone. `limit` bounds the receives that it may have posted, and therefore
    /// may reserve; slots times rails is always enough.
    ///
    /// # Errors
    ///
    /// The limits of all accounts must not exceed the capacity, nor what is [left](Self::left) of
    /// it.
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
        // The new account takes over receives that are known to be in the queue. A negative balance
        // stays with the pool until `settle`.
        let posted = self.unowned.clamp(0, i64::from(limit));
        self.unowned -= posted;
        // A small account gets a lower mark, so that it posts batches and not single receives.
        let low_water = LOW_WATER.min(limit / 8);
        Ok(Account { pool: id, device, queue, limit, low_water, posted })
    }

    /// Closes the account of a connection that has ended, and returns the handle of the queue. None
    /// of its queue pairs may consume a receive any more, except with a
    /// [foreign](Self::note_foreign) completion.
    ///
    /// The receives that it leaves are not reserved again before [`note_empty`](Self::note_empty).
    /// Receives that it consumed beyond its own must be [settled](Self::settle).
    ///
    /// # Errors
    ///
    /// Another pool opened the account. Nothing changed, and the error contains the account.
    pub fn close<S>(&mut self, account: Account<S>) -> Result<S, ForeignAccount<S>> {
        // Its receives are in another queue, so this pool would count what it does not have.
        if account.pool != self.id {
            return Err(ForeignAccount { pool: self.device, account });
        }
        self.granted -= account.limit;
        match u32::try_from(account.posted) {
            Ok(posted) => self.unsettled += posted,
            // A negative balance: the account consumed receives that others had posted.
            Err(_) => self.unowned += account.posted,
        }
        Ok(account.queue)
    }

    /// Counts a [foreign](crate::virtual_cq::Event::Foreign) completion of this device. Returns
    /// whether it is a receive of the pool.
    pub const fn note_foreign(&mut self, completion: &Completion) -> bool {
        let is_ours = completion.wr_id == POOL_WR_ID;
        if is_ours {
            // Receives are interchangeable, so it counts as one that a closed account left, if any.
            match self.unsettled.checked_sub(1) {
                Some(rest) => self.unsettled = rest,
                None => self.unowned -= 1,
            }
        }
        is_ours
    }

    /// Notes that a poll found the completion queue of this device empty, and that every
    /// [foreign](Self::note_foreign) completion was counted. The poll must have begun after the
    /// queue pairs of closed accounts stopped consuming receives. The receives that those accounts
    /// left are then in the queue, and new accounts get them.
    ///
    /// Poll before these queue pairs are destroyed, because some drivers drop the completions of a
    /// destroyed queue pair. If that poll fails, [write these receives off](Self::write_off).
    pub fn note_empty(&mut self) {
        self.unowned += i64::from(core::mem::take(&mut self.unsettled));
    }

    /// Writes off the receives that closed accounts left. Their queue pairs were destroyed before
    /// the completion queue could be polled, so the number of these receives in the queue is
    /// unknown. They are never reserved again, and reduce the [`capacity`](Self::capacity) of the
    /// pool.
    pub const fn write_off(&mut self) {
        self.capacity -= self.unsettled;
        self.unsettled = 0;
    }

    /// Posts receives in place of those of open accounts that closed accounts or unknown queue
    /// pairs consumed, and returns their number.
    ///
    /// # Errors
    ///
    /// The driver refused some of them; call it again.
    pub fn settle<S: ReceiveQueue>(&mut self, queue: &mut S) -> Result<u32, Refusal> {
        // A positive balance is of receives in the queue, for which nothing has to be posted.
        let owed = self.unowned.min(0).unsigned_abs();
        let taken = post(queue, owed.min(u64::from(self.capacity)) as u32);
        self.unowned += i64::from(taken.count);
        taken.refusal.map_or(Ok(taken.count), Err)
    }

    /// Returns the receives that belong to no account: in the queue, or consumed by completions
    /// that are not polled yet.
    pub const fn unowned(&self) -> i64 {
        self.unowned + self.unsettled as i64
    }
}

/// One connection's part of a device's pool.
#[derive(Debug)]
pub struct Account<S> {
    /// The pool that opened it.
    pool: PoolId,
    device: DeviceId,
    queue: S,
    limit: u32,
    /// With fewer receives than this, a batch is posted, whatever is reserved.
    low_water: u32,
    /// Receives posted through it, less those that this connection's queue pairs consumed.
    posted: i64,
}

impl<S> Account<S> {
    /// The device.
    pub const fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the limit of the receives that it may have posted.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Receives posted through it, less those that this connection's queue pairs consumed. Below 0
    /// when these took more than were posted for them.
    pub const fn posted(&self) -> i64 {
        self.posted
    }

    /// Subtracts receive completions of this connection, whatever their status.
    #[inline]
    pub(super) const fn lower(&mut self, count: u32) {
        // May become negative: a peer can send immediates that nothing was reserved for.
        self.posted -= count as i64;
    }

    /// Returns whether nothing needs to be posted: the reserved receives are there, and at least
    /// the low water mark. The reservation is then within the limit, because an account never has
    /// more receives than its limit.
    #[inline]
    pub(super) fn has_enough(&self, promised: u32) -> bool {
        // A fixed mark alone is not enough: with 64 receives left and 256 slots, the 65th waiting
        // message would find none (messages.md, "Pools of receives").
        self.posted >= i64::from(self.low_water.max(promised))
    }

    /// Returns whether this many receives may be reserved.
    #[inline]
    pub(super) const fn may_promise(&self, promised: u32) -> bool {
        promised <= self.limit
    }

    /// Returns whether the reserved receives are there.
    #[inline]
    pub(super) fn covers(&self, promised: u32) -> bool {
        self.posted >= i64::from(promised)
    }
}

impl<S: ReceiveQueue> Account<S> {
    /// Posts a batch if there are fewer receives than are reserved, or fewer than the low water
    /// mark.
    #[inline]
    pub(super) fn refill(&mut self, promised: u32) -> Result<(), Refusal> {
        if self.has_enough(promised) { Ok(()) } else { self.post_batch(promised) }
    }

    #[cold]
    fn post_batch(&mut self, promised: u32) -> Result<(), Refusal> {
        // Within the limit, because the limits of all accounts together fit the queue.
        let high = HIGH_WATER.max(promised).min(self.limit);
        let missing = (i64::from(high) - self.posted).max(0);
        // `posted` is negative after unexpected immediates of the peer, so the difference needs 64
        // bits.
        let taken = post(&mut self.queue, missing.min(i64::from(u32::MAX)) as u32);
        self.posted += i64::from(taken.count);
        taken.refusal.map_or(Ok(()), Err)
    }

    /// Posts receives of a connection that has ended until its balance is not negative.
    pub(super) fn pay_back(&mut self) -> Result<(), Refusal> {
        if self.posted >= 0 { Ok(()) } else { self.post_batch(0) }
    }
}

#[cfg(test)]
mod tests;
