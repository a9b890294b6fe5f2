//! Queue pairs: `service` defines the kinds, `create` creates them, `transition` moves them between
//! states, `last_state` records the state, `query` queries attributes, `send` posts requests, and
//! `rail` implements the engine's trait, with `last_wqe` for the end of shared receives.

mod abandon;
mod create;
mod last_state;
mod last_wqe;
mod query;
mod rail;
mod send;
mod service;
mod transition;

pub use create::{PostMode, QpCap, QpInit};
pub use query::{QpAttributes, QpInitAttributes};
pub use send::{DatagramBatch, SendBatch};
pub use service::{Connected, Rc, Service, Uc, Ud};
pub use transition::{
    ChangeInit, ChangeRts, ChangeSqd, Connector, DatagramChangeInit, DatagramChangeRts,
    DatagramChangeSqd, DatagramToInit, DatagramToRtr, Recover, Resume, ToErr, ToInit, ToReset,
    ToRtr, ToRts, ToSqd, Transition, UnreliableChangeRts, UnreliableChangeSqd, UnreliableToRtr,
    UnreliableToRts,
};

use crate::chain::{Chain, refusal};
use crate::cq::CqHandle;
use crate::error::{Argument, REFUSED_FORKED, VerbsError};
use crate::owned::Owned;
use crate::pd::ProtectionDomain;
use crate::qp_state::QpState;
use crate::recv::{Queue, RecvBatch};
use crate::srq;
use abandon::Abandon;
use last_state::LastState;
use last_wqe::LastWqe;
use polyrail_core::hardware::{self, CommitError, QpLimits, Refusal};
use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_send_wr};
use send::Sender;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

/// A queue pair of service `S` (`struct ibv_qp`). Dropping it destroys it; outstanding requests
/// have no completions then. In a fork of the process, every call refuses it (EPERM), and dropping
/// it does nothing.
///
/// # Method families
///
/// *Set-up*: [`create_qp`](ProtectionDomain::create_qp), then [`modify`](Self::modify) from RESET
/// to RTS. Post receives before RTR, so that a peer always finds one.
///
/// *Posting*: [`start_send`](Self::start_send), [`start_datagrams`](QueuePair::start_datagrams),
/// [`ReceiveQueue::start_recv`](hardware::ReceiveQueue::start_recv). None of them allocates.
///
/// *Queries*: [`query`](Self::query), [`limits`](Self::limits), [`qp_num`](Self::qp_num).
///
/// *Asking*: [`query`](Self::query), [`limits`](Self::limits), [`qp_num`](Self::qp_num).
///
/// ```compile_fail,E0499
/// // One batch at a time, on one thread: concurrent posts to one queue are undefined in verbs.
/// use polyrail_ffi::{QueuePair, Rc};
/// fn post_twice_at_once(qp: &mut QueuePair<Rc>) {
///     let first = qp.start_send();
///     let second = qp.start_send();
/// }
/// ```
#[derive(Debug)]
pub struct QueuePair<S: Service = Rc> {
    // Before `raw`, since it uses the queue pair.
    _abandon: Abandon,
    // Before the objects that it was made from, so that it is destroyed before them. Shared with a
    // `Connector` only. `None` after it was destroyed to detect its last receive: see `last_wqe`.
    raw: Option<Arc<Owned<ibv_qp>>>,
    last_wqe: LastWqe,
    sender: Sender,
    receives: Chain<ibv_recv_wr>,
    state: Arc<LastState>,
    limits: QpLimits,
    qp_num: u32,
    // Declared in the order in which the last owners must be destroyed: receive queue, completion
    // queues, domain.
    srq: Option<Arc<srq::Shared>>,
    send_cq: CqHandle,
    recv_cq: CqHandle,
    pd: ProtectionDomain,
    service: PhantomData<S>,
}

impl<S: Service> QueuePair<S> {
    /// Returns the number of the queue pair, unique on its device.
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Returns the `user_context` that the queue pair was created with.
    pub fn user_context(&self) -> usize {
        self.last_wqe.user_context()
    }

    /// Returns the capacities that the driver granted.
    pub fn limits(&self) -> QpLimits {
        self.limits
    }

    /// Whether it posts by `ibv_wr_*`.
    pub fn is_extended(&self) -> bool {
        matches!(self.sender, Sender::Extended { .. })
    }

    /// Returns the state that the queue pair was last moved to. It is RESET after
    /// [`last_wqe_reached`](hardware::QueuePair::last_wqe_reached) destroyed the queue pair. A
    /// failure moves the queue pair to ERR without changing this value; [`query`](Self::query)
    /// returns the present state.
    pub fn last_state(&self) -> QpState {
        self.state.get()
    }

    /// Returns the completion queue of send requests.
    pub fn send_cq(&self) -> &CqHandle {
        &self.send_cq
    }

    /// Returns the completion queue of receives.
    pub fn recv_cq(&self) -> &CqHandle {
        &self.recv_cq
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Destroys the queue pair.
    ///
    /// # Errors
    ///
    /// Errors of the driver. EBUSY: a [`Connector`] uses it, and destroys it when it is dropped;
    /// the queue pair is in ERR.
    pub fn close(self) -> Result<(), VerbsError> {
        let Some(raw) = self.raw else { return self.last_wqe.wait() };
        let argument = Argument::Number("qp_num", self.qp_num.into());
        let in_use = VerbsError::new("ibv_destroy_qp", libc::EBUSY, argument);
        Arc::into_inner(raw).map_or(Err(in_use), Owned::close)
    }

    /// Posts a request that batches do not support.
    ///
    /// # Safety
    ///
    /// All objects that the request names are alive.
    pub(crate) unsafe fn post_one(&mut self, request: *mut ibv_send_wr) -> Result<(), CommitError> {
        self.check_sends().map_err(|refusal| CommitError { accepted: 0, refusal })?;
        self.sender.abort();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; the caller guarantees the request, which is the only one
        // of its list.
        match unsafe { rdma_sys::ibv_post_send(self.as_ptr(), request, &raw mut bad) } {
            0 => Ok(()),
            code => Err(CommitError { accepted: 0, refusal: refusal(crate::sys::errno_of(code)) }),
        }
    }

    /// Null once the queue pair is destroyed; [`last_state`](Self::last_state) is RESET then, so
    /// nothing is posted.
    fn as_ptr(&self) -> *mut ibv_qp {
        self.raw.as_ref().map_or(ptr::null_mut(), |raw| raw.as_ptr())
    }

    /// Whether the queue pair belongs to the process that this one is a fork of.
    #[inline]
    fn is_forked(&self) -> bool {
        self.raw.as_ref().is_some_and(|raw| !raw.is_ours())
    }

    /// Returns why no send request can be posted now.
    #[inline]
    fn check_sends(&self) -> Result<(), Refusal> {
        match () {
            () if self.is_forked() => Err(REFUSED_FORKED),
            () if self.last_state().takes_sends() => Ok(()),
            () => Err(Refusal::Driver(libc::EINVAL)),
        }
    }

    /// Refuses a call if the queue pair is destroyed, or belongs to another process.
    fn check_alive(&self, call: &'static str) -> Result<&Arc<Owned<ibv_qp>>, VerbsError> {
        let argument = Argument::Number("qp_num", self.qp_num.into());
        let destroyed = VerbsError::new(call, libc::EINVAL, argument);
        let raw = self.raw.as_ref().ok_or(destroyed)?;
        raw.for_call(call).map(|_| raw)
    }

    #[inline]
    fn start(&mut self) -> SendBatch<'_, S> {
        let qp = self.as_ptr();
        let ready = self.check_sends();
        // SAFETY: the queue pair lives as long as `self`, which is borrowed exclusively. A
        // destroyed queue pair is not ready, and has no batch in progress.
        unsafe { SendBatch::new(qp, &mut self.sender, self.limits.max_inline_data, ready) }
    }
}

impl<S: Connected> QueuePair<S> {
    /// Starts a batch of send requests.
    #[inline]
    pub fn start_send(&mut self) -> SendBatch<'_, S> {
        self.start()
    }
}

impl QueuePair<Ud> {
    /// Starts a batch of datagrams.
    pub fn start_datagrams(&mut self) -> DatagramBatch<'_> {
        let device = self.pd.context().id();
        DatagramBatch { batch: self.start(), device }
    }
}

impl<S: Service> hardware::ReceiveQueue for QueuePair<S> {
    type RecvBatch<'q> = RecvBatch<'q>;

    #[inline]
    fn start_recv(&mut self) -> RecvBatch<'_> {
        let takes_receives = self.last_state() != QpState::Reset && self.srq.is_none();
        let is_forked = self.is_forked();
        // SAFETY: the queue pair lives as long as `self`, which is borrowed exclusively. A
        // destroyed queue pair takes no receives.
        let batch = unsafe { RecvBatch::new(Queue::Own(self.as_ptr()), &mut self.receives) };
        match () {
            () if is_forked => batch.refusing(REFUSED_FORKED),
            () if takes_receives => batch,
            () => batch.refusing(Refusal::Driver(libc::EINVAL)),
        }
    }
}
