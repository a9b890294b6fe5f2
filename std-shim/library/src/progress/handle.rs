//! A producer's end: posts from any thread.

use super::error::SubmitError;
use super::message::{Lane, Request};
use super::news::QpShared;
use super::outcome::RequestOutcome;
use super::pending::Pending;
use super::replies::Replies;
use super::submit::Submitter;
use crate::endpoint::EndpointError;
use polyrail_core::verbs::{DeviceKeys, RecvWr, SendFlags, SendWr};
use std::sync::Arc;

/// Posts to one virtual queue pair of a [`ProgressThread`](super::ProgressThread), from any thread.
/// Each producer has its own.
///
/// Requests of a handle are posted in the order in which they were handed over, sends and receives
/// each in their own. Between handles there is no order.
///
/// Posting waits neither for the thread nor for other handles. It may wait for a [`Pending`] of its own
/// that another thread checks, as long as a check takes: they share what was reported.
///
/// # Buffer ownership
///
/// As with a post of one's own, the buffer is the device's from here until the request is reported;
/// that is, until its [`Pending`] has an outcome other than
/// [`Abandoned`](super::RequestError::Abandoned). The device keys are copied; the handle and the
/// thread remember the latest 16 sets of them, so that only new ones are allocated for.
///
/// # Dropping
///
/// What was handed over is still carried out, and every [`Pending`] gets its outcome. When the last
/// request ended, the thread forgets the handle.
#[derive(Debug)]
pub struct Handle {
    qp: usize,
    requests: Submitter<Request>,
    /// Of each lane.
    replies: [Arc<Replies<RequestOutcome>>; 2],
    shared: Arc<QpShared>,
}

impl Handle {
    pub(super) fn new(
        qp: usize,
        requests: Submitter<Request>,
        replies: [Replies<RequestOutcome>; 2],
        shared: Arc<QpShared>,
    ) -> Self {
        Self { qp, requests, replies: replies.map(Arc::new), shared }
    }

    /// Hands over a send request; see
    /// [`VirtualQp::post_send`](polyrail_core::virtual_qp::VirtualQp::post_send).
    ///
    /// # Errors
    ///
    /// The request was not taken and nothing changed. What only the engine can know, such as missing
    /// keys, comes out of the [`Pending`] instead.
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<Pending, SubmitError> {
        if !wr.flags.contains(SendFlags::SIGNALED) {
            return Err(SubmitError::Unsignaled);
        }
        if wr.flags.contains(SendFlags::INLINE) {
            return Err(SubmitError::Inline);
        }
        let request = |slot, keys| Request::send(slot, keys, wr);
        self.submit(Lane::Send, wr.wr_id, wr.keys, request)
    }

    /// Hands over a receive; see
    /// [`VirtualQp::post_recv`](polyrail_core::virtual_qp::VirtualQp::post_recv).
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<Pending, SubmitError> {
        let request = |slot, keys| Request::recv(slot, keys, wr);
        self.submit(Lane::Recv, wr.wr_id, wr.keys, request)
    }

    /// Why the virtual queue pair failed, if it did: the same for all its handles, and known before any
    /// completion shows it.
    pub fn endpoint_error(&self) -> Option<&EndpointError> {
        self.shared.news.error(self.qp)
    }

    fn submit(
        &mut self,
        lane: Lane,
        wr_id: u64,
        keys: &[DeviceKeys],
        request: impl FnOnce(u16, u8) -> Request,
    ) -> Result<Pending, SubmitError> {
        if self.shared.is_closing() {
            return Err(SubmitError::ThreadGone);
        }
        if self.endpoint_error().is_some() {
            return Err(SubmitError::EndpointFailed);
        }
        let keys = self.requests.place_of(keys)?;
        let replies = &self.replies[lane as usize];
        let pending = self.requests.submit(replies, wr_id, |slot| request(slot, keys))?;
        self.shared.wake();
        Ok(pending)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // First the news, then the bell: the thread may sleep, and has to forget the handle.
        self.requests.close();
        self.shared.wake();
    }
}
