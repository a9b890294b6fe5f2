//! A producer's end: posts from any thread.

use super::error::SubmitError;
use super::lock::lock;
use super::message::{HandleMessage, KeySets, Lane, Request};
use super::pending::Pending;
use super::port::HandlePort;
use super::rings::MessageProducer;
use super::shared::Shared;
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
    messages: Option<MessageProducer>,
    keys: KeySets,
    port: Arc<HandlePort>,
    shared: Arc<Shared>,
}

impl Handle {
    pub(super) fn new(
        qp: usize,
        messages: MessageProducer,
        port: HandlePort,
        shared: Arc<Shared>,
    ) -> Self {
        let keys = KeySets::default();
        let port = Arc::new(port);
        Self { qp, messages: Some(messages), keys, port, shared }
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
        self.shared.error(self.qp)
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
        let keys = self.place_of(keys)?;
        let slot = lock(&self.port.inbox).reserve(lane, wr_id)?;
        if let Err(error) = self.push(HandleMessage::Post(request(slot, keys))) {
            lock(&self.port.inbox).release(slot);
            return Err(error);
        }
        self.shared.wake();
        Ok(Pending::new(Arc::clone(&self.port), slot))
    }

    /// The place of these keys with the thread; announces them to it if they are new.
    fn place_of(&mut self, keys: &[DeviceKeys]) -> Result<u8, SubmitError> {
        if let Some(place) = self.keys.find(keys) {
            return Ok(place);
        }
        let (place, keys) = self.keys.announce(keys);
        self.push(HandleMessage::Keys { place, keys: Arc::clone(&keys) })?;
        self.keys.add(keys);
        Ok(place)
    }

    fn push(&mut self, message: HandleMessage) -> Result<(), SubmitError> {
        use polyrail_core::spsc::PushError;
        let messages = self.messages.as_mut().ok_or(SubmitError::ThreadGone)?;
        messages.push(message).map_err(|refused| match refused {
            PushError::Full(_) => SubmitError::Full,
            PushError::Closed(_) => SubmitError::ThreadGone,
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // First the news, then the bell: the thread may sleep, and has to forget the handle.
        self.messages = None;
        self.shared.wake();
    }
}
