//! Completion queues that report completions to a channel.

use super::error::DeviceError;
use polyrail_core::hardware::CompletionQueue;
use std::os::fd::BorrowedFd;

/// A completion queue that can report completions, if it was created [with a
/// channel](super::Domain::create_cq_with_channel).
pub trait Notify: CompletionQueue {
    /// Arms the queue: the next completion is reported, once (`ibv_req_notify_cq`).
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    fn req_notify(&mut self) -> Result<(), DeviceError>;

    /// Reads and acknowledges pending events (`ibv_get_cq_event`, `ibv_ack_cq_events`). Does not
    /// block.
    ///
    /// # Errors
    ///
    /// Errors of reading the file descriptor.
    fn forget_events(&mut self) -> Result<(), DeviceError>;

    /// Returns the channel's file descriptor, which is readable while an event is pending; `None`
    /// if the queue has no channel.
    fn channel_fd(&self) -> Option<BorrowedFd<'_>>;
}
