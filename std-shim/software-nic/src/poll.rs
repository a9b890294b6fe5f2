//! The owner's side of completion queues: polling, which also executes requests of the queue pairs
//! that complete there, and notifications.

use crate::device::Device;
use crate::execute;
use crate::shared::{CqShared, QpShared};
use polyrail_core::hardware::{self, CqError, CqId};
use polyrail_core::verbs::{Completion, DeviceId};
use polyrail_nic_parts::channel::CompletionChannel;
use polyrail_nic_parts::completions::Notify;
use polyrail_nic_parts::error::{NicError, errno};
use polyrail_nic_parts::options::in_limits;
use polyrail_nic_parts::sync::lock;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Device {
    /// Creates a completion queue that holds exactly `capacity` completions.
    ///
    /// # Errors
    ///
    /// The capacity is 0 or over the device's limit; the device is gone.
    pub fn create_cq(&self, capacity: u32) -> Result<CompletionQueue, NicError> {
        self.create_cq_with(capacity, None)
    }

    /// Creates a completion queue that notifies a channel of completions when it is
    /// [armed](CompletionQueue::req_notify).
    ///
    /// # Errors
    ///
    /// As [`create_cq`](Self::create_cq).
    pub fn create_cq_with_channel(
        &self,
        capacity: u32,
        channel: &CompletionChannel,
    ) -> Result<CompletionQueue, NicError> {
        self.create_cq_with(capacity, Some(channel.clone()))
    }

    fn create_cq_with(
        &self,
        capacity: u32,
        channel: Option<CompletionChannel>,
    ) -> Result<CompletionQueue, NicError> {
        self.0.check_alive()?;
        in_limits("the completion queue's capacity", capacity, self.0.limits.max_cqe)?;
        let cq = CqShared::new(&self.0, capacity, channel);
        self.0.fabric.add_cq(&cq);
        Ok(CompletionQueue { shared: cq })
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// The device is gone, or the system has no file descriptor left.
    pub fn create_channel(&self) -> Result<CompletionChannel, NicError> {
        self.0.check_alive()?;
        CompletionChannel::new()
    }
}

impl CqShared {
    fn next_work(&self) -> Option<Weak<QpShared>> {
        let mut work = lock(&self.work);
        let next = work.pop_front();
        self.is_idle.store(work.is_empty(), Ordering::Release);
        next
    }

    /// Executes a share of the work of the listed queue pairs, in one round: a queue pair with more
    /// work goes to the end of the list and waits for the next poll.
    fn run_work(&self) {
        if self.is_idle.load(Ordering::Acquire) {
            return;
        }
        let listed = lock(&self.work).len();
        for _ in 0..listed {
            let Some(qp) = self.next_work() else { return };
            if let Some(qp) = qp.upgrade() {
                execute::service(&qp);
            }
        }
    }
}

/// A completion queue. It may be dropped at any time, because its queue pairs keep it alive.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) shared: Arc<CqShared>,
}

impl CompletionQueue {
    /// Requests a notification of the next visible completion (`ibv_req_notify_cq`): of any
    /// completion, or of the next solicited or failed one. A request for any completion takes
    /// precedence over one for solicited completions.
    pub fn req_notify(&mut self, solicited_only: bool) {
        if self.shared.device.is_forked() {
            return;
        }
        let mut inner = lock(&self.shared.inner);
        if !solicited_only {
            inner.armed = Some(Notify::Any);
        } else if inner.armed.is_none() {
            inner.armed = Some(Notify::Solicited);
        }
        self.shared.begin_to_tell_of_work(!inner.pending.is_empty());
    }

    /// Returns the channel that it notifies.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.shared.channel.as_ref()
    }

    /// Changes its capacity to exactly `capacity` completions (`ibv_resize_cq`). Its completions
    /// stay.
    ///
    /// # Errors
    ///
    /// The capacity is 0, over the device's limit, or less than the number of its completions; the
    /// device is gone.
    pub fn resize(&mut self, capacity: u32) -> Result<(), NicError> {
        let device = &self.shared.device;
        device.check_alive()?;
        let inner = lock(&self.shared.inner);
        let held = inner.held() as u32;
        in_limits("the completion queue's capacity", capacity, device.limits.max_cqe)?;
        if capacity < held {
            return Err(NicError::Holds { asked: capacity, held });
        }
        self.shared.capacity.store(capacity, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether the requested notification has occurred, once (`ibv_get_cq_event`, without
    /// waiting).
    pub fn take_event(&mut self) -> bool {
        !self.shared.device.is_forked() && std::mem::take(&mut lock(&self.shared.inner).notified)
    }

    /// Returns the number of completions so far that were solicited or failed.
    pub fn solicited_completions(&self) -> u64 {
        if self.shared.device.is_forked() { 0 } else { lock(&self.shared.inner).solicited }
    }

    fn error(&self, errno: i32) -> CqError {
        CqError { cq: self.shared.id, device: self.shared.device.id, errno }
    }
}

// SAFETY: a completion becomes visible after its request is executed, in the order of its queue,
// and is removed when it is polled.
unsafe impl hardware::CompletionQueue for CompletionQueue {
    fn id(&self) -> CqId {
        self.shared.id
    }

    fn device(&self) -> DeviceId {
        self.shared.device.id
    }

    fn capacity(&self) -> u32 {
        self.shared.capacity.load(Ordering::Relaxed)
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let device = &self.shared.device;
        device.refusal().map_err(|errno| self.error(errno))?;
        if device.fabric.threaded {
            self.shared.run_work();
        }
        if self.shared.is_empty.load(Ordering::Acquire) {
            return Ok(&[]);
        }
        let mut inner = lock(&self.shared.inner);
        if inner.overrun {
            return Err(self.error(errno::EIO));
        }
        if device.fabric.threaded && !inner.pending.is_empty() {
            let now = device.fabric.clock.now();
            if inner.show_due(now) {
                self.shared.ring();
            }
        }
        let taken = inner.take(out);
        self.shared.note_contents(&inner);
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceConfig, Fabric};
    use hardware::CompletionQueue as _;

    /// Otherwise, polling an empty queue would delay threads that complete requests there.
    #[test]
    fn a_poll_of_an_empty_queue_takes_no_lock() {
        let device = Fabric::threaded().create_device(DeviceConfig::named("nic"));
        let mut cq = device.create_cq(8).unwrap();
        let shared = Arc::clone(&cq.shared);
        let _held = (lock(&shared.inner), lock(&shared.work));
        // With a lock, this would wait forever.
        assert_eq!(cq.poll(&mut [MaybeUninit::uninit()]), Ok(&[][..]));
    }
}
