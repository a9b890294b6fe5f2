//! The producer's side: posts from any thread.

use super::HANDLE_DEPTH;
use super::endpoints::QpShared;
use super::outcome::{HandleCancelError, RequestOutcome, SubmitError, SubmitManyError};
use super::pending::Pending;
use super::replies::{Replies, Slots};
use super::request::{Lane, Request};
use super::submit::Submitter;
use crate::endpoint::EndpointError;
use polyrail_core::verbs::{DeviceKeys, RecvWr, SendFlags, SendWr};
use std::sync::Arc;

/// Posts to one virtual queue pair of a [`ProgressThread`](super::ProgressThread), from any thread.
/// Each producer has a handle for itself.
///
/// The sends of a handle are posted in the order in which they were handed over, and so are its
/// receives. There is no order between sends and receives, or between handles.
///
/// Posting waits neither for the thread nor for other handles. If another thread checks a
/// [`Pending`] of this handle, posting may wait for that check, because handle and `Pending` share
/// a lock.
///
/// # Buffer ownership
///
/// As with [`post_send`](crate::endpoint::EndpointQp::post_send) itself, the buffer belongs to the
/// device until the request is reported; that is, until its [`Pending`] has an outcome other than
/// [`Abandoned`](super::RequestError::Abandoned). The device keys are copied. The handle and the
/// thread store the latest 16 sets of keys, so that only new sets need an allocation.
///
/// # Dropping
///
/// Requests that were handed over are still carried out, and every [`Pending`] gets its outcome.
/// After the last one the thread frees its side of the handle.
#[derive(Debug)]
pub struct Handle {
    qp: usize,
    requests: Submitter<Request>,
    /// By lane.
    slots: [Slots<RequestOutcome>; 2],
    shared: Arc<QpShared>,
    /// Where [`post_many`](Self::post_many) collects what it gives to the caller, so that it need
    /// not allocate.
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
        Self { qp, requests, slots: replies.map(Slots::new), shared, pending }
    }

    /// Hands over a send request; see
    /// [`VirtualQp::post_send`](polyrail_core::virtual_qp::VirtualQp::post_send).
    ///
    /// # Errors
    ///
    /// The request was not taken and nothing changed. Errors that only the engine can find, such as
    /// missing keys, are outcomes of the [`Pending`].
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<Pending, SubmitError> {
        check(wr)?;
        let request = |slot, keys| Request::send(slot, keys, wr);
        self.submit(Lane::Send, wr.wr_id, wr.keys, request)
    }

    /// Hands over send requests in order, all at once: the threads synchronize once instead of once
    /// per request, and the thread posts up to 32
    /// [together](polyrail_core::virtual_qp::VirtualQp::post_many). `pending` gets a [`Pending`]
    /// for each, in the same order.
    ///
    /// ```
    /// use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
    /// use polyrail::memory::RegisteredBuffer;
    /// use polyrail::nic::{DeviceConfig, Fabric};
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
    /// As [`post_send`](Self::post_send), for the first request that was not taken. The error
    /// contains how many were taken before it.
    pub fn post_many(
        &mut self,
        wrs: &[SendWr<'_>],
        pending: &mut impl Extend<Pending>,
    ) -> Result<(), SubmitManyError> {
        self.check_open().map_err(|error| SubmitManyError { submitted: 0, error })?;
        let Self { requests, slots: [slots, _], pending: made, .. } = self;
        let post = |slot, keys, wr| Request::send(slot, keys, wr);
        let named = |wr| check(wr).map(|()| (wr.wr_id, wr.keys));
        let outcome = requests.submit_many(slots, wrs, named, post, made);
        self.shared.wake();
        let submitted = made.len();
        // If `pending` does not take all, the rest are dropped, and their requests go on.
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

    /// Takes a WRITE or READ back: the thread does what
    /// [`EndpointQp::cancel`](crate::endpoint::EndpointQp::cancel) does, and the outcome of
    /// `pending` is the report. [The page about it](crate::cancel) has what the caller may do with
    /// the memory, and when.
    ///
    /// A request that cannot be taken back any more, and a SEND or an atomic, goes on, and its
    /// outcome is as if nobody had wanted it back.
    ///
    /// ```
    /// use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
    /// use polyrail::memory::RegisteredBuffer;
    /// use polyrail::nic::{DeviceConfig, Fabric};
    /// use polyrail::progress::ProgressThread;
    /// use polyrail::verbs::{AccessFlags, SendWr, WcStatus};
    /// use polyrail::virtual_qp::RailFailure;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = Fabric::threaded();
    /// # let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
    /// # let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
    /// # let builder = EndpointBuilder::new().rail_failure(RailFailure::Reroute);
    /// # let (mut sender, mut receiver) = (builder.build(&[&here])?, builder.build(&[&there])?);
    /// # connect_endpoints(&mut sender, &mut receiver)?;
    /// # let from = RegisteredBuffer::new(1 << 20, AccessFlags::LOCAL_WRITE, &[&here])?;
    /// # let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    /// # let to = RegisteredBuffer::new(1 << 20, writable, &[&there])?;
    /// # let keys = from.toward(&to.remote())?;
    /// let (sender, receiver) = (ProgressThread::spawn(sender)?, ProgressThread::spawn(receiver)?);
    /// let mut handle = sender.handle(0).unwrap();
    /// let wr = SendWr::write(7, from.local(0, 1 << 20)?, to.addr(), &keys);
    /// let pending = handle.post_send(&wr)?;
    /// handle.cancel(&pending)?;
    /// let report = pending.wait()?;
    /// assert!([WcStatus::SUCCESS, WcStatus::CANCELLED].contains(&report.status));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`HandleCancelError`]; the request goes on.
    pub fn cancel(&mut self, pending: &Pending) -> Result<(), HandleCancelError> {
        let sends = &self.slots[Lane::Send as usize].replies;
        let slot = pending.slot_among(sends).ok_or(HandleCancelError::Foreign)?;
        let slot = slot.ok_or(HandleCancelError::Ended)?;
        self.check_open()?;
        if !self.shared.mailbox.reroutes(self.qp) {
            return Err(HandleCancelError::NotRerouting);
        }
        self.requests.cancel(slot)?;
        self.shared.wake();
        Ok(())
    }

    /// Returns why the virtual queue pair failed, if it did. The reason is the same for all its
    /// handles, and available before any completion shows the failure.
    pub fn endpoint_error(&self) -> Option<&EndpointError> {
        self.shared.mailbox.error(self.qp)
    }

    fn check_open(&self) -> Result<(), SubmitError> {
        self.shared.driver.check_process()?;
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
        let slots = &mut self.slots[lane as usize];
        let pending = self.requests.submit(slots, wr_id, |slot| request(slot, keys))?;
        self.shared.wake();
        Ok(pending)
    }
}

/// Checks whether a request can be handed over.
fn check(wr: &SendWr<'_>) -> Result<(), SubmitError> {
    match wr.flags {
        flags if !flags.contains(SendFlags::SIGNALED) => Err(SubmitError::Unsignaled),
        flags if flags.contains(SendFlags::INLINE) => Err(SubmitError::Inline),
        _ => Ok(()),
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Closed first, then the bell: a thread that sleeps has to see it, to free its port.
        self.requests.close();
        self.shared.wake();
    }
}
