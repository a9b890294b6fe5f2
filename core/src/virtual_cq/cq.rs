//! The state of the virtual completion queue.

use super::registry::Registry;
use super::routing::{Reserved, RoutingTable};
use crate::completion::{Event, POLL_BATCH};
use crate::hardware::CompletionQueue;
use crate::verbs::{Completion, DeviceId};
use arrayvec::ArrayVec;

/// More physical completion queues than the type holds; those given are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many completion queues: the limit is {max}")]
pub struct TooManyCqs {
    /// The const parameter `CQS`.
    pub max: usize,
}

/// Up to `CQS`, at most 256, physical completion queues as one, for virtual queue pairs of any
/// sizes.
///
/// It does not own the virtual queue pairs: [`poll`](Self::poll) takes the set of them, and routes
/// contain indices in that set. `ROUTES`, a power of two, is the size of the routing table, of
/// which three quarters can be used: one route for each physical queue pair. Virtual queue pairs
/// have indices below `ROUTES`.
///
/// It has no number. A completion is returned by the [`poll`](Self::poll) of the queue that it
/// completed on, so its owner knows the queue, and [`qp_num`](super::VirtualWc::qp_num) identifies
/// the virtual queue pair. Its physical completion queues have numbers that are unique within the
/// process: the [ids](CompletionQueue::id) of [`cqs`](Self::cqs).
///
/// # Example
///
/// Virtual queue pairs of several sizes, each at the index under which it was attached:
///
/// ```
/// use polyrail_core::hardware::{CompletionQueue, QueuePair};
/// use polyrail_core::virtual_cq::{AttachError, CompletionTarget, VirtualCq};
/// use polyrail_core::virtual_qp::VirtualQp;
///
/// fn drain<Q: QueuePair, C: CompletionQueue>(
///     cq: &mut VirtualCq<C, 4, 64>,
///     wide: &mut VirtualQp<Q, 8, 128, 256>,
///     narrow: &mut VirtualQp<Q, 2, 64, 64>,
/// ) -> Result<usize, AttachError> {
///     cq.attach(0, wide)?;
///     cq.attach(1, narrow)?;
///     let mut qps: [&mut dyn CompletionTarget; 2] = [wide, narrow];
///     let polled = cq.poll(&mut qps[..], usize::MAX, |event| println!("{event:?}"));
///     Ok(polled.events)
/// }
/// ```
///
/// # Method families
///
/// *Set-up*: [`new`](Self::new), [`add_cq`](Self::add_cq), [`attach`](Self::attach),
/// [`detach`](Self::detach).
///
/// *Polling*: [`poll`](Self::poll) all queues, [`poll_cq`](Self::poll_cq) one of them,
/// [`poll_one`](Self::poll_one) completion, or [`feed`](Self::feed) completions that a runtime has
/// polled itself.
#[derive(Debug)]
pub struct VirtualCq<C, const CQS: usize, const ROUTES: usize> {
    pub(super) cqs: ArrayVec<C, CQS>,
    /// Entries of each completion queue that attached queue pairs may need.
    pub(super) reserved: [u32; CQS],
    pub(super) routes: RoutingTable<ROUTES>,
    pub(super) registry: Registry<ROUTES>,
    /// Completions that each completion queue has returned.
    pub(super) taken: [u64; CQS],
    /// The completion queue that the next poll begins with.
    pub(super) next_cq: usize,
    /// Events that cannot wait in a ring, but exceeded the budget of a poll.
    pub(super) backlog: Backlog,
    /// Completions that were polled but not handled, because a sink panicked.
    pub(super) unrouted: Saved,
    /// Whether a poll is running. If it is set outside a poll, a sink panicked.
    pub(super) polling: bool,
    /// Whether rings come before the backlog: they take turns.
    pub(super) rings_first: bool,
}

/// Holds the events of one batch of completions.
pub(super) type Backlog = heapless::Deque<Event, POLL_BATCH>;

/// Completions of one device, at most one batch.
pub(super) type Saved = Option<(DeviceId, ArrayVec<Completion, POLL_BATCH>)>;

impl<C: CompletionQueue, const CQS: usize, const ROUTES: usize> VirtualCq<C, CQS, ROUTES> {
    /// Physical queue pairs whose completions can be routed at the same time.
    pub const CAPACITY: usize = RoutingTable::<ROUTES>::CAPACITY;

    /// Makes one completion queue out of `cqs`. With none, completions come by
    /// [`feed`](Self::feed) only.
    ///
    /// # Errors
    ///
    /// More than `CQS` queues.
    pub fn new(cqs: impl IntoIterator<Item = C>) -> Result<Self, TooManyCqs> {
        let mut cq = Self::EMPTY;
        cqs.into_iter().try_for_each(|own| cq.add_cq(own))?;
        Ok(cq)
    }

    /// A virtual completion queue without physical ones: completions come by [`feed`](Self::feed)
    /// only, until queues are [added](Self::add_cq). The value can be large; copying this constant
    /// directly to its final place uses the least stack.
    pub const EMPTY: Self = {
        assert!(CQS <= 1 << 8, "places of completion queues have 8 bits");
        assert!(ROUTES <= 1 << 16, "indices have 16 bits");
        Self {
            cqs: ArrayVec::new_const(),
            reserved: [0; CQS],
            routes: RoutingTable::new(),
            registry: Registry::new(),
            taken: [0; CQS],
            next_cq: 0,
            backlog: Backlog::new(),
            unrouted: None,
            polling: false,
            rings_first: false,
        }
    };

    /// Adds a completion queue, behind the others. Virtual queue pairs that were attached while
    /// there was none have nothing reserved in it: if they complete there, detach and attach them
    /// again.
    ///
    /// # Errors
    ///
    /// There are already `CQS` queues.
    pub fn add_cq(&mut self, cq: C) -> Result<(), TooManyCqs> {
        self.cqs.try_push(cq).map_err(|_| TooManyCqs { max: CQS })
    }

    /// Returns the physical completion queues.
    pub fn cqs(&self) -> &[C] {
        &self.cqs
    }

    /// Returns the physical completion queues, to arm or to resize them. Completions that are
    /// polled from them directly must be [`fed`](Self::feed) back.
    pub fn cqs_mut(&mut self) -> &mut [C] {
        &mut self.cqs
    }

    /// Checks the invariants that hold between any two calls.
    ///
    /// # Panics
    ///
    /// An invariant does not hold, which is a bug of this crate.
    pub fn invariants(&self) {
        self.routes.invariants();
        self.registry.invariants();
        let mut reserved = [0u64; CQS];
        for (_, Reserved { queue, entries }) in self.routes.iter() {
            if let Some(at) = queue.map(usize::from) {
                reserved[at] += u64::from(entries);
            }
        }
        // Entries may also be set aside.
        let are_there = reserved.iter().zip(self.reserved).all(|(sum, all)| *sum <= u64::from(all));
        assert!(are_there, "what routes reserved is reserved: {reserved:?} of {:?}", self.reserved);
        let added = self.reserved.iter().skip(self.cqs.len()).all(|entries| *entries == 0);
        assert!(added, "nothing is reserved where there is no queue");
    }
}
