//! A handle's side of its requests of one kind.

use crate::progress::error::SubmitError;
use crate::progress::outcome::Outcome;
use crate::progress::pending::Pending;
use crate::progress::replies::Replies;
use crate::progress::submit::Submitter;
use std::sync::Arc;

/// A handle's side of its requests of one kind: requests leave, and outcomes come back.
#[derive(Debug)]
pub(super) struct Lane<R, O: Outcome> {
    pub(super) requests: Submitter<R>,
    replies: Arc<Replies<O>>,
}

impl<R, O: Outcome<Name = ()>> Lane<R, O> {
    pub(super) fn new(requests: Submitter<R>, replies: Replies<O>) -> Self {
        Self { requests, replies: Arc::new(replies) }
    }

    /// Hands over a request, which is reported in the slot that it is made with.
    pub(super) fn submit(
        &mut self,
        request: impl FnOnce(u16) -> R,
    ) -> Result<Pending<O>, SubmitError> {
        self.requests.submit(&self.replies, (), request)
    }
}
