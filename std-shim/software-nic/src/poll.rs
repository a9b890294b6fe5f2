//! Completion queues as their owners see them: polling, which also drives the queue pairs that complete
//! here, and notifications.

use crate::channel::CompletionChannel;
use crate::completions::Notify;
use crate::device::{Device, in_limits};
use crate::error::{NicError, errno};
use crate::execute;
use crate::shared::{CqShared, QpShared};
use crate::sync::lock;
use polyrail_core::hardware::{self, CqError, CqId};
use polyrail_core::verbs::{Completion, DeviceId};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Device {
    /// A new completion queue that holds exactly `capacity` completions.
    ///
    /// # Errors
    ///
    /// A capacity of 0 or over the device's limit; a device that is gone.
    pub fn create_cq(&self, capacity: u32) -> Result<CompletionQueue, NicError> {
        self.create_cq_with(capacity, None)
    }

    /// A new completion queue that tells a channel when it has something, once it is
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

    /// A new completion channel.
    ///
    /// # Errors
    ///
    /// The device is gone, or the system gives no file descriptor.
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

    /// Executes a share of what the listed queue pairs have to do. One round: a queue pair that has
    /// more to do goes to the end of the list and waits for the next poll.
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

/// A completion queue. Dropping it is fine at any time: its queue pairs keep it alive.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) shared: Arc<CqShared>,
}

impl CompletionQueue {
    /// Asks for a notification of the next completion that shows (`ibv_req_notify_cq`): of any, or
    /// of the next that is solicited or failed. Asking for any outlasts asking for solicited ones.
    pub fn req_notify(&mut self, solicited_only: bool) {
        let mut inner = lock(&self.shared.inner);
        if !solicited_only {
            inner.armed = Some(Notify::Any);
        } else if inner.armed.is_none() {
            inner.armed = Some(Notify::Solicited);
        }
        self.shared.begin_to_tell_of_work(!inner.pending.is_empty());
    }

    /// Where it tells that it has something.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.shared.channel.as_ref()
    }

    /// Makes it hold exactly `capacity` completions (`ibv_resize_cq`), more or fewer than before. What it holds
    /// stays.
    ///
    /// # Errors
    ///
    /// A capacity of 0, over the device's limit, or less than it holds now; a device that is gone.
    pub fn resize(&mut self, capacity: u32) -> Result<(), NicError> {
        let device = &self.shared.device;
        device.check_alive()?;
        let mut inner = lock(&self.shared.inner);
        let held = inner.held() as u32;
        in_limits("the completion queue's capacity", capacity, device.limits.max_cqe)?;
        if capacity < held {
            return Err(NicError::Holds { asked: capacity, held });
        }
        inner.make_room(capacity as usize);
        self.shared.capacity.store(capacity, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the notification asked for has come; reports it once (`ibv_get_cq_event`, without
    /// waiting).
    pub fn take_event(&mut self) -> bool {
        std::mem::take(&mut lock(&self.shared.inner).notified)
    }

    /// Completions so far that were solicited by the sender, or failed.
    pub fn solicited_completions(&self) -> u64 {
        lock(&self.shared.inner).solicited
    }

    fn error(&self, errno: i32) -> CqError {
        CqError { cq: self.shared.id, device: self.shared.device.id, errno }
    }
}

// SAFETY: a completion is shown once its request is executed, in the order of its queue, and is taken
// out when it is polled.
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
        if device.is_gone() {
            return Err(self.error(errno::ENODEV));
        }
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

    /// Who polls an empty queue would otherwise hold up those who complete requests there.
    #[test]
    fn a_poll_of_an_empty_queue_takes_no_lock() {
        let device = Fabric::threaded().create_device(DeviceConfig::named("nic"));
        let mut cq = device.create_cq(8).unwrap();
        let shared = Arc::clone(&cq.shared);
        let _held = (lock(&shared.inner), lock(&shared.work));
        // It would wait for ever.
        assert_eq!(cq.poll(&mut [MaybeUninit::uninit()]), Ok(&[][..]));
    }
}
