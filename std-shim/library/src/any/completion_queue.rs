//! Completion queues.

use super::dispatch::{any, each};
use crate::backend::{DeviceError, Notify};
use crate::nic;
#[cfg(feature = "verbs")]
use crate::rdma;
#[cfg(feature = "tcp")]
use crate::tcp;
use polyrail_core::hardware::{CompletionQueue, CqError, CqId};
use polyrail_core::verbs::{Completion, DeviceId};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

any! {
    /// A completion queue.
    #[derive(Debug)]
    AnyCompletionQueue: nic::CompletionQueue, tcp::CompletionQueue, rdma::CompletionQueue
}

// SAFETY: every method is that of the queue inside, which keeps the contract and stays the same.
// Completions are of its backend's queue pairs, since no queue pair of another backend is created
// with it.
unsafe impl CompletionQueue for AnyCompletionQueue {
    #[inline]
    fn id(&self) -> CqId {
        each!(AnyCompletionQueue, self, cq => cq.id())
    }

    #[inline]
    fn device(&self) -> DeviceId {
        each!(AnyCompletionQueue, self, cq => cq.device())
    }

    #[inline]
    fn capacity(&self) -> u32 {
        each!(AnyCompletionQueue, self, cq => CompletionQueue::capacity(cq))
    }

    #[inline]
    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        each!(AnyCompletionQueue, self, cq => cq.poll(out))
    }
}

impl Notify for AnyCompletionQueue {
    fn req_notify(&mut self) -> Result<(), DeviceError> {
        each!(AnyCompletionQueue, self, cq => Notify::req_notify(cq))
    }

    fn forget_events(&mut self) -> Result<(), DeviceError> {
        each!(AnyCompletionQueue, self, cq => cq.forget_events())
    }

    fn channel_fd(&self) -> Option<BorrowedFd<'_>> {
        each!(AnyCompletionQueue, self, cq => cq.channel_fd())
    }
}
