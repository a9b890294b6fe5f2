//! A request that was handed over, to be waited for in one of three ways.

use super::outcome::{Outcome, RequestOutcome};
use super::replies::Replies;
use super::shared::lock;
use crate::sync::block_on;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Checks that a blocking wait makes before it puts its thread to sleep.
const SPINS: u32 = if cfg!(polyrail_loom) { 0 } else { 64 };

/// The outcome of a request that was handed over. It is a future for any runtime; threads without
/// one block in [`wait`](Self::wait), or call [`try_take`](Self::try_take) now and then.
///
/// The outcome of a request to a virtual queue pair is `Ok` with its completion if it was posted,
/// whether it succeeded or failed (see
/// [`VirtualWc::status`](polyrail_core::virtual_cq::VirtualWc::status)), and an error if it has no
/// completion.
///
/// # Cancel safety
///
/// Dropping a `Pending` cancels nothing. The request continues, its buffer stays in use until it
/// ends, and its outcome is discarded. [`Handle::cancel`](super::Handle::cancel) takes a WRITE or
/// READ back, and then the outcome shows when its buffer is free.
///
/// A future that owns the buffer drops it, too, when it is cancelled. If the request still needs
/// the buffer, it fails, and the connection ends, also with
/// [`RailFailure::Reroute`](polyrail_core::virtual_qp::RailFailure::Reroute).
/// Keep the buffer until the outcome: run the request in a task that is not cancelled and that
/// returns the buffer.
#[derive(Debug)]
#[must_use = "dropping it discards the outcome, which shows when the buffer is free"]
pub struct Pending<O: Outcome = RequestOutcome> {
    replies: Arc<Replies<O>>,
    /// `None` once the outcome was taken.
    slot: Option<u16>,
    /// The caller's name for the request.
    name: O::Name,
}

impl<O: Outcome> Pending<O> {
    pub(super) const fn new(replies: Arc<Replies<O>>, slot: u16, name: O::Name) -> Self {
        Self { replies, slot: Some(slot), name }
    }

    /// Returns the slot of its request, if that is among these; `None` once the outcome was taken.
    pub(super) fn slot_among(&self, replies: &Arc<Replies<O>>) -> Option<Option<u16>> {
        Arc::ptr_eq(&self.replies, replies).then_some(self.slot)
    }

    /// Takes the outcome, if the request has ended. In a fork of the process that started the
    /// progress thread, the outcome is an error.
    ///
    /// # Panics
    ///
    /// If the outcome was taken before.
    pub fn try_take(&mut self) -> Option<O> {
        let slot = self.slot.expect("the outcome was taken");
        if let Err(forked) = self.replies.driver.check_process() {
            self.slot = None;
            return Some(O::forked(forked));
        }
        let outcome = lock(&self.replies.inbox).take(slot)?;
        self.slot = None;
        Some(outcome.named(self.name))
    }

    /// Blocks the calling thread until the request has ended. In a waker that the progress thread
    /// runs, it returns an error at once instead, because the request cannot end meanwhile.
    ///
    /// # Errors
    ///
    /// As the outcome: see [`RequestError`](super::RequestError) and
    /// [`P2pError`](super::messages::P2pError).
    pub fn wait(mut self) -> O {
        for _ in 0..SPINS {
            if let Some(outcome) = self.try_take() {
                return outcome;
            }
            std::hint::spin_loop();
        }
        if self.replies.driver.is_current() {
            return O::OWN_THREAD;
        }
        block_on(self)
    }
}

impl<O: Outcome> Future for Pending<O> {
    type Output = O;

    /// # Panics
    ///
    /// If the outcome was taken before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<O> {
        if let Some(outcome) = self.try_take() {
            return Poll::Ready(outcome);
        }
        // Registers first, then checks again: the thread reports first, then wakes.
        if let Some(slot) = self.slot {
            self.replies.waiters[usize::from(slot)].register(context.waker());
        }
        self.try_take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<O: Outcome> Drop for Pending<O> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot
            && !self.replies.driver.is_forked()
        {
            self.replies.waiters[usize::from(slot)].forget();
            lock(&self.replies.inbox).abandon(slot);
        }
    }
}
