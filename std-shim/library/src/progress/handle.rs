//! A producer's end: posts from any thread.

use super::HANDLE_DEPTH;
use super::endpoints::QpShared;
use super::error::{SubmitError, SubmitManyError};
use super::pending::{Pending, RequestOutcome};
use super::replies::Replies;
use super::request::{Lane, Request};
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
    /// Those of requests that are handed over together, on their way to the caller.
    pending: Vec<Pending>,
}

impl Handle {
    pub(super) fn new(
        qp: usize,
        requests: Submitter<Request>,
        replies: [Replies<RequestOutcome>; 2],
        shared: Arc<QpShared>,
    ) -> Self {
        let pending = Vec::with_capacity(HANDLE_DEPTH);
        Self { qp, requests, replies: replies.map(Arc::new), shared, pending }
    }

    /// Hands over a send request; see
    /// [`VirtualQp::post_send`](polyrail_core::virtual_qp::VirtualQp::post_send).
    ///
    /// # Errors
    ///
    /// The request was not taken and nothing changed. What only the engine can know, such as missing
    /// keys, comes out of the [`Pending`] instead.
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<Pending, SubmitError> {
        check(wr)?;
        let request = |slot, keys| Request::send(slot, keys, wr);
        self.submit(Lane::Send, wr.wr_id, wr.keys, request)
    }

    /// Hands over send requests in their order, all at once: the threads meet once and not for each of them, and the
    /// thread posts up to 32 [together](polyrail_core::virtual_qp::VirtualQp::post_many). `pending` gets a [`Pending`] for
    /// each, in the same order.
    ///
    /// ```
    /// use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
    /// use polyrail::nic::{DeviceConfig, Fabric, RegisteredBuffer};
    /// use polyrail::progress::ProgressThread;
    /// use polyrail::verbs::{AccessFlags, SendWr};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fabric = Fabric::threaded();
    /// let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
    /// let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
    /// let builder = EndpointBuilder::new();
    /// let (mut sender, mut receiver) = (builder.build(&[&here])?, builder.build(&[&there])?);
    /// connect_endpoints(&mut sender, &mut receiver)?;
    /// let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    /// let from = RegisteredBuffer::new(4096, AccessFlags::empty(), &[&here])?;
    /// let to = RegisteredBuffer::new(4096, writable, &[&there])?;
    /// let keys = from.toward(&to.remote())?;
    /// let quarters = [0, 1, 2, 3].map(|n| (n, n as usize * 1024));
    /// let wrs = quarters.map(|(n, at)| {
    ///     let local = from.local(at, 1024).unwrap();
    ///     SendWr::write(n, local, to.addr() + at as u64, &keys)
    /// });
    ///
    /// let thread = ProgressThread::spawn(sender)?;
    /// let mut handle = thread.handle(0).unwrap();
    /// let mut pending = Vec::new();
    /// handle.post_many(&wrs, &mut pending)?;
    /// for (n, pending) in pending.into_iter().enumerate() {
    ///     assert_eq!(pending.wait()?.wr_id, n as u64);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send), of the first that was not taken; the error tells how many were before it.
    pub fn post_many(
        &mut self,
        wrs: &[SendWr<'_>],
        pending: &mut impl Extend<Pending>,
    ) -> Result<(), SubmitManyError> {
        self.check_open().map_err(|error| SubmitManyError { submitted: 0, error })?;
        let Self { requests, replies: [replies, _], pending: made, .. } = self;
        let named = |wr| check(wr).map(|()| (wr.wr_id, wr.keys));
        let outcome = requests.submit_many(replies, wrs, named, Request::send, made);
        self.shared.wake();
        let submitted = made.len();
        // Those that it does not take are dropped, which their requests outlive.
        pending.extend(made.drain(..));
        outcome.map_err(|error| SubmitManyError { submitted, error })
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
        self.shared.mailbox.error(self.qp)
    }

    fn check_open(&self) -> Result<(), SubmitError> {
        match () {
            () if self.shared.is_closing() => Err(SubmitError::ThreadGone),
            () if self.endpoint_error().is_some() => Err(SubmitError::EndpointFailed),
            () => Ok(()),
        }
    }

    fn submit(
        &mut self,
        lane: Lane,
        wr_id: u64,
        keys: &[DeviceKeys],
        request: impl FnOnce(u16, u8) -> Request,
    ) -> Result<Pending, SubmitError> {
        self.check_open()?;
        let keys = self.requests.place_of(keys)?;
        let replies = &self.replies[lane as usize];
        let pending = self.requests.submit(replies, wr_id, |slot| request(slot, keys))?;
        self.shared.wake();
        Ok(pending)
    }
}

/// Whether a request can be handed over.
fn check(wr: &SendWr<'_>) -> Result<(), SubmitError> {
    match wr.flags {
        flags if !flags.contains(SendFlags::SIGNALED) => Err(SubmitError::Unsignaled),
        flags if flags.contains(SendFlags::INLINE) => Err(SubmitError::Inline),
        _ => Ok(()),
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // First the news, then the bell: the thread may sleep, and has to forget the handle.
        self.requests.close();
        self.shared.wake();
    }
}
