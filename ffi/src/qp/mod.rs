//! Queue pairs: `service` is what kinds there are, `create` makes them, `transition` moves them,
//! `last_state` keeps where to, `query` asks them, `send` posts to them, `rail` is what the engine uses, with
//! `last_wqe` for how it ends.

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
    ChangeInit, ChangeRts, ChangeSqd, DatagramChangeInit, DatagramChangeRts, DatagramChangeSqd,
    DatagramToInit, DatagramToRtr, Recover, Resume, ToErr, ToInit, ToReset, ToRtr, ToRts, ToSqd,
    Transition, UnreliableChangeRts, UnreliableChangeSqd, UnreliableToRtr, UnreliableToRts,
};

use crate::chain::{Chain, refusal};
use crate::cq::CqHandle;
use crate::error::{Argument, VerbsError};
use crate::owned::Owned;
use crate::pd::ProtectionDomain;
use crate::qp_state::QpState;
use crate::recv::{Queue, RecvBatch};
use crate::srq;
use last_state::LastState;
use last_wqe::LastWqe;
use polyrail_core::hardware::{self, CommitError, QpLimits, Refusal};
use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_send_wr};
use send::Sender;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

/// A queue pair of service `S` (`struct ibv_qp`). Dropping it destroys it: what is outstanding is
/// forgotten.
///
/// # Method families
///
/// *Set-up*: [`create_qp`](ProtectionDomain::create_qp), then [`modify`](Self::modify) from RESET to
/// RTS. Post receives before RTR, so that a peer never meets an empty queue.
///
/// *Posting*: [`start_send`](Self::start_send), [`start_datagrams`](QueuePair::start_datagrams),
/// [`ReceiveQueue::start_recv`](hardware::ReceiveQueue::start_recv). Nothing allocates.
///
/// *Asking*: [`query`](Self::query), [`limits`](Self::limits), [`qp_num`](Self::qp_num).
///
/// ```compile_fail,E0499
/// // One batch at a time, on one thread: verbs leaves posting to one queue twice at once undefined.
/// use polyrail_ffi::{QueuePair, Rc};
/// fn post_twice_at_once(qp: &mut QueuePair<Rc>) {
///     let first = qp.start_send();
///     let second = qp.start_send();
/// }
/// ```
#[derive(Debug)]
pub struct QueuePair<S: Service = Rc> {
    // First, so that it is destroyed before what it was made of. `None` once it was destroyed to know
    // that its last receive was taken.
    raw: Option<Owned<ibv_qp>>,
    last_wqe: LastWqe,
    sender: Sender,
    receives: Chain<ibv_recv_wr>,
    state: LastState,
    limits: QpLimits,
    qp_num: u32,
    // If nobody else has them, they are destroyed in the order of the manual's section 11.3.
    srq: Option<Arc<srq::Shared>>,
    send_cq: CqHandle,
    recv_cq: CqHandle,
    pd: ProtectionDomain,
    service: PhantomData<S>,
}

impl<S: Service> QueuePair<S> {
    /// Its number, unique on its device.
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// What its user knows it by.
    pub fn user_context(&self) -> usize {
        self.last_wqe.user_context()
    }

    /// What it was granted.
    pub fn limits(&self) -> QpLimits {
        self.limits
    }

    /// Whether it posts by `ibv_wr_*`.
    pub fn is_extended(&self) -> bool {
        matches!(self.sender, Sender::Extended { .. })
    }

    /// The state that it was last moved to; RESET once it is destroyed although it was not dropped: see
    /// [`last_wqe_reached`](hardware::QueuePair::last_wqe_reached). A failure moves it to ERR without this showing it; see
    /// [`query`](Self::query).
    pub fn last_state(&self) -> QpState {
        self.state.get()
    }

    /// Where its send requests complete.
    pub fn send_cq(&self) -> &CqHandle {
        &self.send_cq
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &CqHandle {
        &self.recv_cq
    }

    /// Its protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Destroys it.
    ///
    /// # Errors
    ///
    /// What the driver reports.
    pub fn close(self) -> Result<(), VerbsError> {
        self.raw.map_or_else(|| self.last_wqe.wait(), Owned::close)
    }

    /// Posts one request that the batches do not know.
    ///
    /// # Safety
    ///
    /// Everything that the request names is alive.
    pub(crate) unsafe fn post_one(&mut self, request: *mut ibv_send_wr) -> Result<(), CommitError> {
        if !self.last_state().takes_sends() {
            return Err(CommitError { accepted: 0, refusal: Refusal::Driver(libc::EINVAL) });
        }
        self.sender.abort();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; the caller vouches for the request, which is the only one
        // of its list.
        match unsafe { rdma_sys::ibv_post_send(self.as_ptr(), request, &raw mut bad) } {
            0 => Ok(()),
            code => Err(CommitError { accepted: 0, refusal: refusal(crate::sys::errno_of(code)) }),
        }
    }

    /// Null once it is destroyed; then [`last_state`](Self::last_state) is RESET, in which nothing is posted.
    fn as_ptr(&self) -> *mut ibv_qp {
        self.raw.as_ref().map_or(ptr::null_mut(), Owned::as_ptr)
    }

    /// Refuses a call if it is destroyed.
    fn check_alive(&self, call: &'static str) -> Result<(), VerbsError> {
        let argument = Argument::Number("qp_num", self.qp_num.into());
        let destroyed = VerbsError::new(call, libc::EINVAL, argument);
        self.raw.as_ref().map(|_| ()).ok_or(destroyed)
    }

    #[inline]
    fn start(&mut self) -> SendBatch<'_, S> {
        let qp = self.as_ptr();
        let is_ready = self.last_state().takes_sends();
        // SAFETY: the queue pair lives as long as `self`, which is borrowed, and is the only poster; one that
        // is destroyed is not ready, and has no batch under way.
        unsafe { SendBatch::new(qp, &mut self.sender, self.limits.max_inline_data, is_ready) }
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
        // SAFETY: the queue pair lives as long as `self`, which is borrowed, and is the only poster; one that
        // is destroyed takes no receives.
        let batch = unsafe { RecvBatch::new(Queue::Own(self.as_ptr()), &mut self.receives) };
        if takes_receives { batch } else { batch.refusing(Refusal::Driver(libc::EINVAL)) }
    }
}
