//! How requests for messages end that do not succeed.

use crate::p2p::CallError;
use crate::progress::outcome::Outcome;
use std::fmt::Debug;

/// A request that was handed over to a [`P2pThread`](super::P2pThread) did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum P2pError {
    /// The engine refused it, and never started it; or the connection [failed](CallError::Failed). Either way its
    /// buffers are the caller's again. [Not now](CallError::NotNow) is never among these: the thread tries again.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The thread ended, or a completion queue broke so that nobody can say how the request ends. Its buffers may be
    /// in use until the set is dropped.
    #[error("the progress thread gave the request up")]
    Abandoned,
}

/// How a message, a receive or a flush ended.
impl<T: Copy + Debug> Outcome for Result<T, P2pError> {
    type Name = ();

    const ABANDONED: Self = Err(P2pError::Abandoned);

    fn named(self, (): ()) -> Self {
        self
    }
}
