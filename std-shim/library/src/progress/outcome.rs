//! How requests end, and why a handle or the thread refuses them.

use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::PostError;
use polyrail_process::Forked;
use std::fmt::Debug;

/// How a request ended: the output of its [`Pending`](super::Pending), for each kind of request
/// that a thread takes. Implemented in this crate only.
pub trait Outcome: Copy + Debug {
    /// The caller's name for the request, which stays with the handle.
    type Name: Copy + Debug + Unpin;

    /// The outcome if the thread is gone: whether the request was carried out is unknown.
    const ABANDONED: Self;

    /// The outcome of a blocking wait on the progress thread itself.
    const OWN_THREAD: Self;

    /// Returns the outcome in a fork of the process that started the thread.
    fn forked(forked: Forked) -> Self;

    /// Returns this outcome under the caller's name.
    #[must_use]
    fn named(self, name: Self::Name) -> Self;
}

/// How a request to a virtual queue pair ended.
pub(super) type RequestOutcome = Result<VirtualWc, RequestError>;

impl Outcome for RequestOutcome {
    type Name = u64;

    const ABANDONED: Self = Err(RequestError::Abandoned);

    const OWN_THREAD: Self = Err(RequestError::OwnThread);

    fn forked(forked: Forked) -> Self {
        Err(forked.into())
    }

    fn named(self, wr_id: u64) -> Self {
        self.map(|wc| VirtualWc { wr_id, ..wc })
    }
}

/// Why a request was not handed over. It still belongs to the caller, and nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Back-pressure: the outcomes of [`HANDLE_DEPTH`](super::HANDLE_DEPTH) requests of this kind
    /// were not taken yet, or the ring to the thread is full.
    #[error("the handle has no room for another request")]
    Full,
    /// The request is not signaled, so it has no completion to wait for.
    #[error("requests to a progress thread must be signaled")]
    Unsignaled,
    /// The request is inline: its buffer would be free when the call returns, but the thread reads
    /// it later.
    #[error("requests to a progress thread cannot be inline")]
    Inline,
    /// A receive of messages takes 1 to 8 buffers.
    #[error("a receive takes 1 to 8 buffers, not {buffers}")]
    Buffers {
        /// The number of buffers in the request.
        buffers: usize,
    },
    /// The virtual queue pair failed: see
    /// [`Handle::endpoint_error`](super::Handle::endpoint_error).
    #[error("the endpoint failed")]
    EndpointFailed,
    /// The thread is shutting down, or has ended.
    #[error("the progress thread is shutting down or has ended")]
    ThreadGone,
    /// This process is a fork of the process that started the thread.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why one of several requests was not handed over. That request and the later ones still belong to
/// the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("after {submitted} requests: {error}")]
pub struct SubmitManyError {
    /// The number of requests before it, which were handed over and have a
    /// [`Pending`](super::Pending) each.
    pub submitted: usize,
    /// Why it was not handed over.
    #[source]
    pub error: SubmitError,
}

/// Why a handle does not [take a request back](super::Handle::cancel). The request goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandleCancelError {
    /// The request was handed over by another handle, or it is of a kind that cannot be taken back: a
    /// receive of a virtual queue pair, a flush.
    #[error("the request is of another handle, or of a kind that cannot be taken back")]
    Foreign,
    /// The outcome of the request was taken.
    #[error("the request has ended")]
    Ended,
    /// Failed rails of the virtual queue pair are not re-routed, so they cannot be fenced.
    #[error("a request can be taken back only with re-routing, which fences its rails")]
    NotRerouting,
    /// It cannot be handed over to the thread that the request is to be taken back.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

/// Why a request that was handed over has no completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The engine refused the request, which was never posted.
    #[error(transparent)]
    Refused(#[from] PostError),
    /// The thread has ended, or a completion queue of the virtual queue pair broke (see
    /// [`Handle::endpoint_error`](super::Handle::endpoint_error)). Whether the request was carried
    /// out is unknown, and its buffer may be in use until the set is dropped.
    #[error("the progress thread abandoned the request")]
    Abandoned,
    /// A waker that the progress thread ran waited for the request. The thread carries the request
    /// out only after the waker has returned. The request goes on, and its buffer is in use until
    /// the thread has ended.
    #[error("a waker waits for a request on the progress thread that carries the request out")]
    OwnThread,
    /// This process is a fork of the process that started the thread, which goes on with the
    /// request.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a shutdown returned no set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShutdownError {
    /// The progress thread panicked. Its queue pairs are lost, and its handles refuse requests.
    #[error("the progress thread panicked")]
    ThreadPanicked,
    /// The progress thread itself called, in a waker. It shuts down once the waker has returned,
    /// and drops its set.
    #[error("a waker shuts down the progress thread that runs it, and cannot get its set back")]
    OwnThread,
    /// This process is a fork of the process that started the thread, which goes on.
    #[error(transparent)]
    Forked(#[from] Forked),
}
