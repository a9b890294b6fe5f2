//! Completion queues: the parts that both kinds share.

mod classic;
mod extended;

pub use classic::CompletionQueue;
pub use extended::{ExtendedCompletion, ExtendedCompletionQueue, Timestamps};

use crate::channel::CompletionChannel;
use crate::context::Context;
use crate::error::{Argument, FORKED, Result, VerbsError};
use crate::named::Named;
use crate::owned::{CloseError, Kept, Owned};
use polyrail_core::hardware::{CqError, CqId};
use polyrail_core::verbs::DeviceId;
use rdma_sys::{ibv_cq, ibv_cq_attr_mask, ibv_moderate_cq, ibv_modify_cq_attr};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The first number of a completion queue. Numbers are unique in the process; the software NIC
/// numbers its queues from 0, below this.
const FIRST_CQ: u64 = 1 << 63;

/// Number of completion queues created so far.
static CQS: AtomicU64 = AtomicU64::new(0);

/// Attributes of a new completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqInit<'a> {
    /// Completions that the queue must hold; drivers round up. After an error every outstanding
    /// request of a queue pair completes, so size it for the sum of all requests that can be
    /// outstanding.
    pub cqe: u32,
    /// The channel to report to; `None` if the queue is only polled.
    pub channel: Option<&'a CompletionChannel>,
    /// The interrupt that reports completions, below [`Context::num_comp_vectors`].
    pub comp_vector: u32,
    /// A value that events of the queue return to the user. The crate does not interpret it.
    pub user_context: usize,
}

impl CqInit<'_> {
    /// A queue of `cqe` completions that is only polled.
    pub const fn new(cqe: u32) -> Self {
        Self { cqe, channel: None, comp_vector: 0, user_context: 0 }
    }

    /// Returns the channel's pointer, or null. Fails if the channel belongs to another device.
    fn channel_ptr(
        &self,
        context: &Context,
        call: &'static str,
    ) -> Result<*mut rdma_sys::ibv_comp_channel> {
        match self.channel {
            Some(channel) if channel.context().id() != context.id() => {
                let argument = Argument::Device(context.device_name());
                Err(VerbsError::new(call, libc::EINVAL, argument))
            }
            channel => Ok(channel.map_or(ptr::null_mut(), CompletionChannel::as_ptr)),
        }
    }
}

#[derive(Debug)]
struct Shared {
    raw: Owned<ibv_cq>,
    channel: Option<CompletionChannel>,
    context: Context,
    named: Arc<Named<CqId>>,
    /// Written only by the owner of the queue.
    capacity: AtomicU32,
}

/// A handle of a completion queue, for queue pairs and event loops. Cloning is cheap; handles keep
/// the queue alive.
#[derive(Clone, Debug)]
pub struct CqHandle(Arc<Shared>);

/// Creates the identity by which events name a new queue.
fn name(init: &CqInit<'_>) -> Arc<Named<CqId>> {
    let id = CqId(FIRST_CQ + CQS.fetch_add(1, Ordering::Relaxed));
    Arc::new(Named { id, user_context: init.user_context })
}

impl CqHandle {
    fn new(
        mut raw: Owned<ibv_cq>,
        context: &Context,
        init: &CqInit<'_>,
        named: Arc<Named<CqId>>,
    ) -> Self {
        raw.keep(Arc::clone(&named) as Kept);
        // SAFETY: the queue is alive, and only `ibv_resize_cq` changes the field.
        let capacity = u32::try_from(unsafe { (*raw.as_ptr()).cqe }).unwrap_or(0);
        let capacity = AtomicU32::new(capacity);
        let channel = init.channel.cloned();
        Self(Arc::new(Shared { raw, channel, context: context.clone(), named, capacity }))
    }

    /// Returns the number by which events and the engine identify the queue.
    pub fn id(&self) -> CqId {
        self.0.named.id
    }

    /// Returns the `user_context` that the queue was created with.
    pub fn user_context(&self) -> usize {
        self.0.named.user_context
    }

    /// Returns the number of completions that the queue can hold.
    pub fn capacity(&self) -> u32 {
        self.0.capacity.load(Ordering::Relaxed)
    }

    /// Returns the device of the queue.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Returns the channel that the queue reports to.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.0.channel.as_ref()
    }

    /// Arms the queue: the next completion is reported to its channel (`ibv_req_notify_cq`). If
    /// `solicited_only` is set, the next failed completion or message marked SOLICITED by its
    /// sender is reported. Arm before polling; see [`CompletionChannel`].
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        const CALL: &str = "ibv_req_notify_cq";
        let cq = self.0.raw.for_call(CALL)?;
        // SAFETY: the queue is alive.
        let returned = unsafe { rdma_sys::ibv_req_notify_cq(cq, solicited_only.into()) };
        let argument = Argument::Number("solicited_only", solicited_only.into());
        VerbsError::check(returned, CALL, argument)
    }

    /// Moderates events: the queue reports after `count` completions or `period_us` microseconds,
    /// whichever is first.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP: the device does not support moderation.
    pub fn moderate(&self, count: u16, period_us: u16) -> Result<()> {
        const CALL: &str = "ibv_modify_cq";
        let cq = self.0.raw.for_call(CALL)?;
        let mut attr = ibv_modify_cq_attr {
            attr_mask: ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
            moderate: ibv_moderate_cq { cq_count: count, cq_period: period_us },
        };
        // SAFETY: the queue is alive, and the attributes are only read.
        let returned = unsafe { crate::sys::modify_cq(cq, &raw mut attr) };
        VerbsError::check(returned, CALL, Argument::Number("cq_count", count.into()))
    }

    /// Resizes the queue to at least `cqe` completions; queued completions stay.
    fn resize(&self, cqe: u32) -> Result<()> {
        const CALL: &str = "ibv_resize_cq";
        let cq = self.0.raw.for_call(CALL)?;
        let entries = libc::c_int::try_from(cqe).unwrap_or(libc::c_int::MAX);
        // SAFETY: the queue is alive.
        let returned = unsafe { rdma_sys::ibv_resize_cq(cq, entries) };
        VerbsError::check(returned, CALL, Argument::Number("cqe", cqe.into()))?;
        // SAFETY: the queue is alive, and its only owner calls this, so the field does not change
        // concurrently.
        let capacity = u32::try_from(unsafe { (*cq).cqe }).unwrap_or(0);
        self.0.capacity.store(capacity, Ordering::Relaxed);
        Ok(())
    }

    /// Destroys the queue if this is the last handle.
    pub(crate) fn close(self) -> std::result::Result<(), CloseError> {
        let shared = Arc::into_inner(self.0).ok_or(CloseError::InUse)?;
        Ok(shared.raw.close()?)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.0.raw.as_ptr()
    }

    /// Refuses a poll of a queue of the process that this one is a fork of.
    #[inline]
    fn check_process(&self) -> std::result::Result<(), CqError> {
        if self.0.raw.is_ours() { Ok(()) } else { Err(self.error(FORKED)) }
    }

    fn device(&self) -> DeviceId {
        self.0.context.id()
    }

    /// Returns the error of a poll; a driver that returns no errno means a broken queue.
    fn error(&self, returned: libc::c_int) -> CqError {
        let errno = match crate::sys::errno_of(returned) {
            0 => libc::EIO,
            errno => errno,
        };
        CqError { cq: self.id(), device: self.device(), errno }
    }
}

impl AsRef<Self> for CqHandle {
    fn as_ref(&self) -> &Self {
        self
    }
}
