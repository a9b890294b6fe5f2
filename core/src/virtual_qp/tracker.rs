//! One ring that tracks work requests from post to report.
//!
//! The design that polyrail replaces keeps a hash map of active requests and two queues of ids.
//! Both queues are FIFO in the same id order, so a ring indexed by `id & (N - 1)` and four cursors
//! hold the same information:
//!
//! ```text
//!   reported        notified        posted         added
//!      |               |               |              |
//!  ----+---------------+---------------+--------------+----> ids
//!      | waits to be   | in flight     | waits for    |
//!      | reported      |               | rails        |
//! ```
//!
//! Slots in `reported..added` are alive, and earlier ones for as long as they are kept. A full ring
//! refuses the next request.

use crate::debug::List;
use core::fmt;
use core::ops::Range;

/// The ring was full; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "all {capacity} slots hold requests that are unreported, or that follow an unreported request"
)]
pub struct TrackerFull {
    /// Slots of the ring.
    pub capacity: usize,
}

/// A ring of `N` requests in posting order. `N` is a power of two.
#[derive(Clone)]
pub struct WrTracker<T, const N: usize> {
    slots: [T; N],
    reported: u64,
    notified: u64,
    posted: u64,
    added: u64,
    /// No slot before this one is alive. It follows [`oldest_alive`](Self::oldest_alive) only when
    /// the ring looks full, so that a post need not compare the cursors for each request.
    freed: u64,
    /// Slots from here on stay alive although their requests are reported; `u64::MAX` if none.
    kept: u64,
}

impl<T: Copy, const N: usize> WrTracker<T, N> {
    /// An empty ring; `blank` fills the slots until requests do.
    pub const fn new(blank: T) -> Self {
        const { assert!(N.is_power_of_two(), "a ring's size is a power of two") };
        Self {
            slots: [blank; N],
            reported: 0,
            notified: 0,
            posted: 0,
            added: 0,
            freed: 0,
            kept: u64::MAX,
        }
    }

    #[inline]
    const fn index(id: u64) -> usize {
        id as usize & (N - 1)
    }

    /// Appends a request and gives it the next id. Ids count up from 0 and never repeat.
    ///
    /// # Errors
    ///
    /// [`TrackerFull`] while `N` slots are alive: their requests are unreported, or they are kept.
    #[inline]
    pub fn add(&mut self, request: T) -> Result<u64, TrackerFull> {
        self.add_with(|slot| {
            *slot = request;
            Ok(())
        })
    }

    /// Adds a request that `fill` writes directly into its slot, over the old contents, because a
    /// request has two cache lines and a copy would cost more.
    ///
    /// # Errors
    ///
    /// [`TrackerFull`], or the error of `fill`. Nothing is added.
    // Always inline: it is a part of each post, and the compiler knows there what `fill` writes.
    #[inline(always)]
    pub fn add_with<E: From<TrackerFull>>(
        &mut self,
        fill: impl FnOnce(&mut T) -> Result<(), E>,
    ) -> Result<u64, E> {
        if self.added - self.freed == N as u64 && self.has_no_room() {
            return Err(TrackerFull { capacity: N }.into());
        }
        let id = self.added;
        fill(&mut self.slots[Self::index(id)])?;
        self.added += 1;
        Ok(id)
    }

    /// Looks how far slots are free. Returns whether the ring is full.
    #[cold]
    fn has_no_room(&mut self) -> bool {
        self.freed = self.oldest_alive();
        self.is_full()
    }

    /// Takes the newest request back, as if it had never been added. It must wait for rails still.
    pub fn take_back(&mut self) -> Option<T> {
        // What a rail may have started cannot be taken back.
        if self.posted == self.added {
            return None;
        }
        self.added -= 1;
        Some(self.slots[Self::index(self.added)])
    }

    /// The request with this id, if it is alive.
    #[inline]
    pub fn find(&self, id: u64) -> Option<&T> {
        self.is_alive(id).then(|| &self.slots[Self::index(id)])
    }

    /// The request with this id, if it is alive.
    #[cfg(feature = "internals")]
    pub fn find_mut(&mut self, id: u64) -> Option<&mut T> {
        if self.is_alive(id) { Some(&mut self.slots[Self::index(id)]) } else { None }
    }

    /// The request with an id that the engine itself recorded while it was alive.
    #[inline]
    pub(crate) fn slot(&mut self, id: u64) -> &mut T {
        // A release build masks the id and does not check it: ids come from batches, and
        // `dispatch_invariants` checks that their requests are alive.
        debug_assert!(self.is_alive(id), "request {id} is not alive");
        &mut self.slots[Self::index(id)]
    }

    /// The requests that are not reported, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (self.reported..self.added).map(|id| &self.slots[Self::index(id)])
    }

    /// Keeps the slots from `id` on alive, reported or not; with `u64::MAX`, only those unreported.
    /// The slot at `id` must be alive.
    pub(crate) fn keep_from(&mut self, id: u64) {
        debug_assert!(id == u64::MAX || self.is_alive(id));
        self.kept = id;
    }

    /// Ids of the slots alive.
    pub(crate) fn alive(&self) -> Range<u64> {
        self.oldest_alive()..self.added
    }

    #[inline]
    const fn oldest_alive(&self) -> u64 {
        // A deferred request is passed by the cursors before it completes, and its slot must
        // outlive that.
        if self.kept < self.reported { self.kept } else { self.reported }
    }

    #[inline]
    fn is_alive(&self, id: u64) -> bool {
        id >= self.oldest_alive() && id < self.added
    }

    /// The oldest request that waits for rails.
    #[inline]
    pub fn front_pending(&self) -> Option<u64> {
        (self.posted < self.added).then_some(self.posted)
    }

    /// Notes that all of the front pending request is with the rails.
    #[inline]
    pub fn pop_pending(&mut self) {
        debug_assert!(self.posted < self.added);
        self.posted += 1;
    }

    /// The oldest request in flight: posted, and neither settled nor notified.
    #[inline]
    pub fn front_in_flight(&self) -> Option<u64> {
        (self.notified < self.posted).then_some(self.notified)
    }

    /// The requests in flight and their ids, oldest first.
    #[inline]
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = (u64, &T)> {
        (self.notified..self.posted).map(|id| (id, &self.slots[Self::index(id)]))
    }

    /// Ids of the requests that are not reported.
    pub(crate) const fn unreported_ids(&self) -> Range<u64> {
        self.reported..self.added
    }

    /// Ids of the requests that wait for rails.
    pub(crate) const fn pending_ids(&self) -> Range<u64> {
        self.posted..self.added
    }

    /// Makes all requests in flight wait for rails again.
    pub(crate) fn unpost(&mut self) {
        self.posted = self.notified;
    }

    /// Puts the requests from `id` on, which is not reported, back in flight.
    pub(crate) fn put_back_in_flight(&mut self, id: u64) {
        debug_assert!(self.reported <= id);
        self.notified = self.notified.min(id);
    }

    /// Ids of the requests in flight.
    pub(crate) const fn in_flight_ids(&self) -> Range<u64> {
        self.notified..self.posted
    }

    /// Ids of the requests that are with the rails or done, and have not had their turn.
    pub(crate) const fn posted_ids(&self) -> Range<u64> {
        self.reported..self.posted
    }

    /// Notes that the front request in flight is done, except for its report (and, with SPRAY, for
    /// the acknowledgement of its notify).
    #[inline]
    pub fn pop_in_flight(&mut self) {
        debug_assert!(self.notified < self.posted);
        self.notified += 1;
    }

    /// Notes the same for all requests before `end`.
    #[inline]
    pub(crate) fn pop_in_flight_until(&mut self, end: u64) {
        debug_assert!(self.notified <= end && end <= self.posted);
        self.notified = end;
    }

    /// Returns the oldest request that only waits to be reported, the only one that may be
    /// reported.
    #[inline]
    pub fn front_finished(&self) -> Option<u64> {
        (self.reported < self.notified).then_some(self.reported)
    }

    /// Frees the slot of the front finished request, which was reported.
    #[inline]
    pub fn pop_finished(&mut self) {
        debug_assert!(self.reported < self.notified);
        self.reported += 1;
    }

    /// Requests that can be added.
    #[inline]
    pub(crate) const fn room(&self) -> usize {
        N - (self.added - self.oldest_alive()) as usize
    }

    /// Whether the next [`add`](Self::add) will be refused.
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.added - self.oldest_alive() == N as u64
    }

    /// Requests that are not reported.
    #[inline]
    pub const fn unreported_count(&self) -> usize {
        (self.added - self.reported) as usize
    }

    /// Requests that wait for rails.
    #[inline]
    pub const fn pending_count(&self) -> usize {
        (self.added - self.posted) as usize
    }

    /// Requests alive that nothing may overtake: all but those only waiting to be reported.
    #[inline]
    pub const fn unacknowledged_count(&self) -> usize {
        (self.added - self.notified) as usize
    }

    /// Checks what must hold between any two calls.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, which is a bug of this crate.
    pub fn invariants(&self) {
        assert!(self.reported <= self.notified);
        assert!(self.notified <= self.posted);
        assert!(self.posted <= self.added);
        assert!(self.added - self.oldest_alive() <= N as u64);
        assert!(self.freed <= self.oldest_alive());
    }
}

/// Shows only the slots that are alive; others have no meaning.
impl<T: Copy + fmt::Debug, const N: usize> fmt::Debug for WrTracker<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alive = List(|| self.alive().map(|id| &self.slots[Self::index(id)]));
        let mut tracker = f.debug_struct("WrTracker");
        tracker.field("reported", &self.reported).field("notified", &self.notified);
        tracker.field("posted", &self.posted).field("added", &self.added);
        tracker.field("alive", &alive).finish()
    }
}
