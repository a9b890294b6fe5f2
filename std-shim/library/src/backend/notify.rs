//! What endpoints that wait ask of a completion queue.

use super::error::DeviceError;
use polyrail_core::hardware::CompletionQueue;
use std::os::fd::BorrowedFd;

/// A completion queue that can tell when it has something, if it was made
/// [to do so](super::Domain::create_cq_with_channel).
pub trait Notify: CompletionQueue {
    /// Makes it tell of the next completion (`ibv_req_notify_cq`), once.
    ///
    /// # Errors
    ///
    /// What the driver reports.
    fn req_notify(&mut self) -> Result<(), DeviceError>;

    /// Forgets what it told so far (`ibv_get_cq_event`, `ibv_ack_cq_events`). Never waits.
    ///
    /// # Errors
    ///
    /// What reading the file descriptor reports.
    fn forget_events(&mut self) -> Result<(), DeviceError>;

    /// Can be read when it has told something that was not forgotten; `None` if it was made to be polled only.
    fn channel_fd(&self) -> Option<BorrowedFd<'_>>;
}
