//! Shared receive queues.

use crate::chain::Chain;
use crate::context::Context;
use crate::error::{Argument, Result, VerbsError};
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

/// What a new shared receive queue is made of (`struct ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Receives that it must hold; drivers round up.
    pub max_wr: u32,
    /// Buffers of one receive.
    pub max_sge: u32,
    /// See [`SrqAttributes::limit`]. Not every driver looks at it here:
    /// [`set_limit`](SharedReceiveQueue::set_limit) is certain.
    pub limit: u32,
    /// What its user knows it by: given back with its events, and never looked at.
    pub user_context: usize,
}

impl SrqInit {
    /// A queue of `max_wr` receives of one buffer each, whose limit is disarmed.
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1, limit: 0, user_context: 0 }
    }
}

/// What a shared receive queue is set to (`struct ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Receives that it holds.
    pub max_wr: u32,
    /// Buffers that a receive can have.
    pub max_sge: u32,
    /// Falling below this raises
    /// [`SrqLimitReached`](crate::AsyncEvent::SrqLimitReached); 0 is disarmed.
    pub limit: u32,
}

/// A shared receive queue: its receives serve all queue pairs created with it, whoever's message
/// comes first. Queue pairs keep it alive. It refuses (EINVAL) a `wr_id` with the bit that the engine's
/// tags are known by: see [`hardware::QueuePair`].
///
/// A clone is another handle of the same queue, with memory of its own for batches; it may post from another
/// thread, as verbs let all threads post to one queue.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    shared: Arc<Shared>,
    chain: Chain<ibv_recv_wr>,
    named: Arc<Named<SrqId>>,
    capacity: u32,
    max_sge: u32,
}

/// Another handle of the same queue.
impl Clone for SharedReceiveQueue {
    fn clone(&self) -> Self {
        let Self { capacity, max_sge, .. } = *self;
        let shared = Arc::clone(&self.shared);
        let named = Arc::clone(&self.named);
        Self { shared, chain: Chain::new(capacity, max_sge), named, capacity, max_sge }
    }
}

impl ProtectionDomain {
    /// A new shared receive queue.
    ///
    /// # Errors
    ///
    /// EINVAL: over `max_srq_wr`, or more buffers than the device takes; ENOMEM; EOPNOTSUPP: the device
    /// has none.
    pub fn create_srq(&self, init: &SrqInit) -> Result<SharedReceiveQueue> {
        let SrqInit { max_wr, max_sge, limit, user_context } = *init;
        let id = SrqId(NEXT_SRQ.fetch_add(1, Ordering::Relaxed));
        let named = Arc::new(Named { id, user_context });
        let mut raw_init = ibv_srq_init_attr {
            srq_context: Named::as_ptr(&named),
            attr: ibv_srq_attr { max_wr, max_sge, srq_limit: limit },
        };
        // SAFETY: the domain is alive; what the queue is named by is kept.
        let raw = unsafe { rdma_sys::ibv_create_srq(self.as_ptr(), &raw mut raw_init) };
        let argument = Argument::Number("max_wr", max_wr.into());
        // SAFETY: null, or a fresh queue that is handed over.
        let mut raw = unsafe { Owned::new(raw, "ibv_create_srq", argument) }?;
        raw.keep(Arc::clone(&named) as Kept);
        // The call told what it granted; a driver that did not granted what was asked for.
        let capacity = raw_init.attr.max_wr.max(max_wr);
        let max_sge = raw_init.attr.max_sge.max(max_sge);
        let chain = Chain::new(capacity, max_sge);
        let shared = Arc::new(Shared { raw, pd: self.clone() });
        Ok(SharedReceiveQueue { shared, chain, named, capacity, max_sge })
    }
}

impl SharedReceiveQueue {
    /// Its number, by which events name it.
    pub fn id(&self) -> SrqId {
        self.named.id
    }

    /// What its user knows it by.
    pub fn user_context(&self) -> usize {
        self.named.user_context
    }

    /// Receives that it was granted.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Arms the limit event (`ibv_modify_srq`): it is raised once, when fewer than `limit` receives
    /// are left. 0 disarms.
    ///
    /// # Errors
    ///
    /// EINVAL: the limit is over the capacity.
    pub fn set_limit(&mut self, limit: u32) -> Result<()> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as libc::c_int;
        // SAFETY: the queue is alive, and the attributes are only read.
        let returned =
            unsafe { rdma_sys::ibv_modify_srq(self.shared.as_ptr(), &raw mut attr, mask) };
        VerbsError::check(returned, "ibv_modify_srq", Argument::Number("srq_limit", limit.into()))
    }

    /// What it is set to now.
    ///
    /// # Errors
    ///
    /// What the driver reports.
    pub fn query(&self) -> Result<SrqAttributes> {
        let mut attr = MaybeUninit::<ibv_srq_attr>::zeroed();
        // SAFETY: the queue is alive; the struct is plain numbers, for which zeros do.
        let returned = unsafe { rdma_sys::ibv_query_srq(self.shared.as_ptr(), attr.as_mut_ptr()) };
        VerbsError::check(returned, "ibv_query_srq", Argument::None)?;
        // SAFETY: initialised, with zeros at least.
        let attr = unsafe { attr.assume_init() };
        Ok(SrqAttributes { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: attr.srq_limit })
    }

    /// Destroys it.
    ///
    /// # Errors
    ///
    /// A queue pair or another handle still uses it, or the driver reports an error.
    pub fn close(self) -> std::result::Result<(), CloseError> {
        let shared = Arc::into_inner(self.shared).ok_or(CloseError::InUse)?;
        Ok(shared.raw.close()?)
    }

    /// The device it belongs to.
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
        // SAFETY: the queue lives as long as `self`, which is borrowed; all threads may post to it.
        unsafe { RecvBatch::new(Queue::Shared(self.shared.as_ptr()), &mut self.chain) }
    }
}
