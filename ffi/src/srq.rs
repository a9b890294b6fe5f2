//! Shared receive queues.

use crate::chain::Chain;
use crate::context::Context;
use crate::error::{Argument, REFUSED_FORKED, Result, VerbsError};
use crate::event::SrqId;
use crate::named::Named;
use crate::owned::{CloseError, Kept, Owned};
use crate::pd::ProtectionDomain;
use crate::recv::{Queue, RecvBatch};
use polyrail_core::hardware;
use rdma_sys::{ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT_SRQ: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(crate) struct Shared {
    raw: Owned<ibv_srq>,
    pd: ProtectionDomain,
}

impl Shared {
    pub(crate) fn as_ptr(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }
}

/// Attributes of a new shared receive queue (`struct ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Receives that the queue must hold; drivers round up.
    pub max_wr: u32,
    /// Maximum scatter/gather entries per receive.
    pub max_sge: u32,
    /// See [`SrqAttributes::limit`]. Not every driver evaluates it at creation;
    /// [`set_limit`](SharedReceiveQueue::set_limit) always takes effect.
    pub limit: u32,
    /// A value that events of the queue return to the user. The crate does not interpret it.
    pub user_context: usize,
}

impl SrqInit {
    /// A queue of `max_wr` receives with one scatter/gather entry each and no limit.
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1, limit: 0, user_context: 0 }
    }
}

/// Attributes of a shared receive queue (`struct ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Receives that the queue can hold.
    pub max_wr: u32,
    /// Maximum scatter/gather entries per receive.
    pub max_sge: u32,
    /// [`SrqLimitReached`](crate::AsyncEvent::SrqLimitReached) is raised when fewer receives are
    /// left; 0 disarms the event.
    pub limit: u32,
}

/// A shared receive queue: its receives serve all queue pairs created with it, in the order in
/// which messages arrive. Queue pairs keep it alive. It refuses (EINVAL) a `wr_id` with the bit
/// that marks the engine's own requests: see [`hardware::QueuePair`].
///
/// A clone is another handle of the same queue, with separate memory for batches. It may post from
/// another thread, since verbs allows concurrent posts to a shared receive queue.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    shared: Arc<Shared>,
    chain: Chain<ibv_recv_wr>,
    named: Arc<Named<SrqId>>,
    capacity: u32,
    max_sge: u32,
}

/// Makes another handle of the same queue.
impl Clone for SharedReceiveQueue {
    fn clone(&self) -> Self {
        let Self { capacity, max_sge, .. } = *self;
        let shared = Arc::clone(&self.shared);
        let named = Arc::clone(&self.named);
        Self { shared, chain: Chain::new(capacity, max_sge), named, capacity, max_sge }
    }
}

impl ProtectionDomain {
    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// EINVAL: `max_wr` is over `max_srq_wr`, or `max_sge` is over the device's limit; ENOMEM;
    /// EOPNOTSUPP: the device does not support shared receive queues.
    pub fn create_srq(&self, init: &SrqInit) -> Result<SharedReceiveQueue> {
        let SrqInit { max_wr, max_sge, limit, user_context } = *init;
        const CALL: &str = "ibv_create_srq";
        let pd = self.for_call(CALL)?;
        let id = SrqId(NEXT_SRQ.fetch_add(1, Ordering::Relaxed));
        let named = Arc::new(Named { id, user_context });
        let mut raw_init = ibv_srq_init_attr {
            srq_context: Named::as_ptr(&named),
            attr: ibv_srq_attr { max_wr, max_sge, srq_limit: limit },
        };
        // SAFETY: the domain is alive, and `raw` keeps `srq_context`.
        let raw = unsafe { rdma_sys::ibv_create_srq(pd, &raw mut raw_init) };
        let argument = Argument::Number("max_wr", max_wr.into());
        // SAFETY: null, or a new queue that nothing else owns.
        let mut raw = unsafe { Owned::new(raw, CALL, argument) }?;
        raw.keep(Arc::clone(&named) as Kept);
        // The call returned the granted sizes. A driver that did not granted the requested ones.
        let capacity = raw_init.attr.max_wr.max(max_wr);
        let max_sge = raw_init.attr.max_sge.max(max_sge);
        let chain = Chain::new(capacity, max_sge);
        let shared = Arc::new(Shared { raw, pd: self.clone() });
        Ok(SharedReceiveQueue { shared, chain, named, capacity, max_sge })
    }
}

impl SharedReceiveQueue {
    /// Returns the number by which events identify the queue.
    pub fn id(&self) -> SrqId {
        self.named.id
    }

    /// Returns the `user_context` that the queue was created with.
    pub fn user_context(&self) -> usize {
        self.named.user_context
    }

    /// Returns the number of receives that the driver granted.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Arms the limit event (`ibv_modify_srq`), which is raised once, when fewer than `limit`
    /// receives are left. 0 disarms it.
    ///
    /// # Errors
    ///
    /// EINVAL: `limit` is over the capacity.
    pub fn set_limit(&mut self, limit: u32) -> Result<()> {
        const CALL: &str = "ibv_modify_srq";
        let srq = self.shared.raw.for_call(CALL)?;
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as libc::c_int;
        // SAFETY: the queue is alive, and the attributes are only read.
        let returned = unsafe { rdma_sys::ibv_modify_srq(srq, &raw mut attr, mask) };
        VerbsError::check(returned, CALL, Argument::Number("srq_limit", limit.into()))
    }

    /// Queries the present attributes.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn query(&self) -> Result<SrqAttributes> {
        const CALL: &str = "ibv_query_srq";
        let srq = self.shared.raw.for_call(CALL)?;
        let mut attr = MaybeUninit::<ibv_srq_attr>::zeroed();
        // SAFETY: the queue is alive; the struct is plain numbers, so zeros are valid.
        let returned = unsafe { rdma_sys::ibv_query_srq(srq, attr.as_mut_ptr()) };
        VerbsError::check(returned, CALL, Argument::None)?;
        // SAFETY: at least zeroed.
        let attr = unsafe { attr.assume_init() };
        Ok(SrqAttributes { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: attr.srq_limit })
    }

    /// Destroys the queue.
    ///
    /// # Errors
    ///
    /// A queue pair or another handle still uses the queue, or the driver reports an error.
    pub fn close(self) -> std::result::Result<(), CloseError> {
        let shared = Arc::into_inner(self.shared).ok_or(CloseError::InUse)?;
        Ok(shared.raw.close()?)
    }

    /// Returns the device of the queue.
    pub fn context(&self) -> &Context {
        self.shared.pd.context()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl hardware::ReceiveQueue for SharedReceiveQueue {
    type RecvBatch<'q> = RecvBatch<'q>;

    fn start_recv(&mut self) -> RecvBatch<'_> {
        let is_ours = self.shared.raw.is_ours();
        // SAFETY: the queue lives as long as `self`, which is borrowed; verbs allows concurrent
        // posts to it.
        let batch = unsafe { RecvBatch::new(Queue::Shared(self.shared.as_ptr()), &mut self.chain) };
        if is_ours { batch } else { batch.refusing(REFUSED_FORKED) }
    }
}
