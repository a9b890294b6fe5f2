//! Completion queues: what both kinds share.

mod classic;
mod extended;

pub use classic::CompletionQueue;
pub use extended::{ExtendedCompletion, ExtendedCompletionQueue, Timestamps};

use crate::channel::CompletionChannel;
use crate::context::Context;
use crate::error::{Argument, Result, VerbsError};
use crate::named::Named;
use crate::owned::{CloseError, Kept, Owned};
use polyrail_core::hardware::{CqError, CqId};
use polyrail_core::verbs::DeviceId;
use rdma_sys::{ibv_cq, ibv_cq_attr_mask, ibv_moderate_cq, ibv_modify_cq_attr};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Numbers of completion queues are unique per process, and apart from those that the software NIC
/// gives, which count from 0.
const FIRST_CQ: u64 = 1 << 63;

/// Completion queues made so far.
static CQS: AtomicU64 = AtomicU64::new(0);

/// What a new completion queue is made of.
#[derive(Clone, Copy, Debug)]
pub struct CqInit<'a> {
    /// Completions that it must hold; drivers round up. On an error every outstanding request of a
    /// queue pair completes, so this is the sum of all that can be outstanding.
    pub cqe: u32,
    /// Where it tells that it has something; `None`: it is only polled.
    pub channel: Option<&'a CompletionChannel>,
    /// Which interrupt tells, below [`Context::num_comp_vectors`].
    pub comp_vector: u32,
    /// What its user knows it by: given back with its events, and never looked at.
    pub user_context: usize,
}

impl CqInit<'_> {
    /// A queue that is only polled.
    pub const fn new(cqe: u32) -> Self {
        Self { cqe, channel: None, comp_vector: 0, user_context: 0 }
    }

    /// The channel's pointer, or null; an error if the channel is another device's.
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
    /// Changed by the queue's only owner.
    capacity: AtomicU32,
}

/// A completion queue as queue pairs and event loops know it. A cheap handle, which keeps the queue
/// alive.
#[derive(Clone, Debug)]
pub struct CqHandle(Arc<Shared>);

/// What events will name a new queue by.
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
        // SAFETY: the queue is alive, and only `ibv_resize_cq` changes this.
        let capacity = u32::try_from(unsafe { (*raw.as_ptr()).cqe }).unwrap_or(0);
        let capacity = AtomicU32::new(capacity);
        let channel = init.channel.cloned();
        Self(Arc::new(Shared { raw, channel, context: context.clone(), named, capacity }))
    }

    /// Its number, by which events and the engine name it.
    pub fn id(&self) -> CqId {
        self.0.named.id
    }

    /// What its user knows it by.
    pub fn user_context(&self) -> usize {
        self.0.named.user_context
    }

    /// Completions that it holds.
    pub fn capacity(&self) -> u32 {
        self.0.capacity.load(Ordering::Relaxed)
    }

    /// The device it belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Where it tells that it has something.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.0.channel.as_ref()
    }

    /// Makes the queue tell its channel of the next completion (`ibv_req_notify_cq`); if
    /// `solicited_only`, of the next that failed or that its sender marked SOLICITED. Arm before you
    /// poll: [`CompletionChannel`].
    ///
    /// # Errors
    ///
    /// What the driver reports.
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: the queue is alive.
        let returned = unsafe { rdma_sys::ibv_req_notify_cq(self.as_ptr(), solicited_only.into()) };
        let argument = Argument::Number("solicited_only", solicited_only.into());
        VerbsError::check(returned, "ibv_req_notify_cq", argument)
    }

    /// Makes the queue wait for `count` completions or `period_us` microseconds, whichever is first,
    /// before it tells.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP: the device knows no moderation.
    pub fn moderate(&self, count: u16, period_us: u16) -> Result<()> {
        let mut attr = ibv_modify_cq_attr {
            attr_mask: ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
            moderate: ibv_moderate_cq { cq_count: count, cq_period: period_us },
        };
        // SAFETY: the queue is alive, and the attributes are only read.
        let returned = unsafe { crate::sys::modify_cq(self.as_ptr(), &raw mut attr) };
        VerbsError::check(returned, "ibv_modify_cq", Argument::Number("cq_count", count.into()))
    }

    /// Makes the queue hold at least `cqe` completions; what it holds stays.
    fn resize(&self, cqe: u32) -> Result<()> {
        let entries = libc::c_int::try_from(cqe).unwrap_or(libc::c_int::MAX);
        // SAFETY: the queue is alive.
        let returned = unsafe { rdma_sys::ibv_resize_cq(self.as_ptr(), entries) };
        VerbsError::check(returned, "ibv_resize_cq", Argument::Number("cqe", cqe.into()))?;
        // SAFETY: the queue is alive, and its only owner is here: nobody changes this meanwhile.
        let capacity = u32::try_from(unsafe { (*self.as_ptr()).cqe }).unwrap_or(0);
        self.0.capacity.store(capacity, Ordering::Relaxed);
        Ok(())
    }

    /// Destroys the queue, if this is the last handle.
    pub(crate) fn close(self) -> std::result::Result<(), CloseError> {
        let shared = Arc::into_inner(self.0).ok_or(CloseError::InUse)?;
        Ok(shared.raw.close()?)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.0.raw.as_ptr()
    }

    fn device(&self) -> DeviceId {
        self.0.context.id()
    }

    /// The error that a poll returned; drivers that say nothing mean a broken queue.
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
