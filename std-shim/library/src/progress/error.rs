//! What can go wrong between a handle and the thread.

use polyrail_core::virtual_qp::PostError;

/// A request was not handed over. It is still the caller's, and nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Back-pressure: [`HANDLE_DEPTH`](super::HANDLE_DEPTH) requests of the kind have no outcome yet, or one that was not
    /// taken; or the ring to the thread is full.
    #[error("the handle has no room for another request")]
    Full,
    /// A request without a completion cannot be waited for.
    #[error("a request that is handed over must be signaled")]
    Unsignaled,
    /// INLINE promises that the buffer is free when the call returns, and the thread reads it later.
    #[error("a request that is handed over cannot be inline")]
    Inline,
    /// A receive of messages has 1 to 8 buffers.
    #[error("a receive of {buffers} buffers, where 1 to 8 are possible")]
    Buffers {
        /// What was given.
        buffers: usize,
    },
    /// The virtual queue pair failed: see [`Handle::endpoint_error`](super::Handle::endpoint_error).
    #[error("the endpoint failed")]
    EndpointFailed,
    /// The thread shuts down, or is gone.
    #[error("the progress thread shuts down or is gone")]
    ThreadGone,
}

/// The first of several requests that was not handed over. It and those behind it are still the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("after {submitted} requests: {error}")]
pub struct SubmitManyError {
    /// Requests that were handed over before it, which is how many [`Pending`](super::Pending)s there are.
    pub submitted: usize,
    /// Why it was not.
    #[source]
    pub error: SubmitError,
}

/// A request that was handed over ended without a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The engine refused it: it was never posted.
    #[error(transparent)]
    Refused(#[from] PostError),
    /// The thread ended, or gave the virtual queue pair up because a completion queue broke (see
    /// [`Handle::endpoint_error`](super::Handle::endpoint_error)). Whether the request was carried
    /// out is unknown, and its buffer may be in use until the set is dropped.
    #[error("the progress thread gave the request up")]
    Abandoned,
}

/// The progress thread panicked. Its queue pairs are lost, and its handles know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the progress thread panicked")]
pub struct ThreadPanicked;
