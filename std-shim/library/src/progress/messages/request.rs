//! The three kinds of requests, which do not wait for each other, and how they end.

use crate::backend::Domain;
use crate::p2p::{
    CallError, CancelError, FlushHandle, P2pMember, Received, RecvBuffer, RecvHandle, SendHandle,
};
use crate::progress::HANDLE_DEPTH;
use crate::progress::outcome::Outcome;
use crate::progress::submit::{KeySet, KnownKeys};
use arrayvec::ArrayVec;
use polyrail_core::p2p::MAX_BUFFERS;
use polyrail_core::verbs::LocalBuffer;
use polyrail_process::Forked;
use std::fmt::Debug;
use std::sync::Arc;

/// Why a request to a [`P2pThread`](super::P2pThread) did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum P2pError {
    /// The engine refused the request and never started it, or the member
    /// [failed](CallError::Failed). Either way, its buffers belong to the caller again. This is
    /// never [`NotNow`](CallError::NotNow), since the thread tries again. Its text names a device
    /// by its number, [`device_id`](Domain::device_id): devices of the software NIC count from 0,
    /// those over TCP from 2^30, and RDMA devices from 2^31, in the order in which they were
    /// opened.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It was [taken back](super::P2pHandle::cancel_send) before the engine had it: nothing of it was
    /// sent or offered. A request that the engine had ends with
    /// [`CallError::TakenBack`](CallError::TakenBack).
    #[error("the request was taken back before it was started")]
    TakenBack,
    /// The thread has ended, or a completion queue broke. Whether the request was carried out is
    /// unknown, and its buffers may be in use until the set is dropped.
    #[error("the progress thread abandoned the request")]
    Abandoned,
    /// A waker that the progress thread ran waited for the request. The thread carries the request
    /// out only after the waker has returned. The request goes on, and its buffers are in use until
    /// the thread has ended.
    #[error("a waker waits for a request on the progress thread that carries the request out")]
    OwnThread,
    /// This process is a fork of the process that started the thread, which goes on with the
    /// request.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// How a message, a receive or a flush ended.
impl<T: Copy + Debug> Outcome for Result<T, P2pError> {
    type Name = ();

    const ABANDONED: Self = Err(P2pError::Abandoned);

    const OWN_THREAD: Self = Err(P2pError::OwnThread);

    fn forked(forked: Forked) -> Self {
        Err(forked.into())
    }

    fn named(self, (): ()) -> Self {
        self
    }
}

/// Sends a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendRequest {
    pub(super) slot: u16,
    pub(super) buffer: KeyedBuffer,
}

/// Offers buffers to the peer.
#[derive(Debug)]
pub(super) struct RecvRequest {
    pub(super) slot: u16,
    pub(super) buffers: ArrayVec<KeyedBuffer, MAX_BUFFERS>,
}

/// Makes a received message visible.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushRequest {
    pub(super) slot: u16,
    pub(super) received: Received,
}

/// A buffer of a message, with the place of its keys among those that the thread has.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyedBuffer {
    pub(super) local: LocalBuffer,
    pub(super) tag: u32,
    pub(super) keys: u8,
}

/// A kind of request: how the engine starts it, and how it ends.
pub(super) trait Kind {
    /// The request as it crosses to the thread.
    type Request: Debug;
    /// The request while it waits to be started.
    type Waiting: Debug;
    /// The engine's handle of a started request.
    type Handle: Debug;
    /// What a request that succeeds returns.
    type Value: Copy + Debug;

    /// Limits the requests that wait outside the ring. If it is one, no key set is stored while a
    /// request waits, so the request need not keep its own.
    const AHEAD: usize;

    fn wait(request: Self::Request, keys: &KnownKeys) -> Self::Waiting;

    fn slot(waiting: &Self::Waiting) -> u16;

    fn start<D: Domain>(
        member: &mut P2pMember<D>,
        waiting: &Self::Waiting,
        keys: &KnownKeys,
    ) -> Result<Self::Handle, CallError>;

    fn test<D: Domain>(
        member: &mut P2pMember<D>,
        handle: &Self::Handle,
    ) -> Result<Option<Self::Value>, CallError>;

    /// Takes a started request back.
    fn cancel<D: Domain>(
        member: &mut P2pMember<D>,
        handle: &Self::Handle,
    ) -> Result<(), CancelError>;
}

/// Sends. All of a handle may wait, because a send for which the peer offers no buffer yet lets
/// sends with other tags pass.
#[derive(Debug)]
pub(super) enum Sends {}

impl Kind for Sends {
    type Request = SendRequest;
    /// With the keys, whose place may be taken while the request waits.
    type Waiting = (SendRequest, KeySet);
    type Handle = SendHandle;
    type Value = ();

    const AHEAD: usize = HANDLE_DEPTH;

    fn wait(request: SendRequest, keys: &KnownKeys) -> Self::Waiting {
        (request, Arc::clone(keys.get(request.buffer.keys)))
    }

    fn slot((request, _): &Self::Waiting) -> u16 {
        request.slot
    }

    fn start<D: Domain>(
        member: &mut P2pMember<D>,
        (request, keys): &Self::Waiting,
        _: &KnownKeys,
    ) -> Result<SendHandle, CallError> {
        let KeyedBuffer { local, tag, .. } = request.buffer;
        member.isend(local, tag, keys)
    }

    fn test<D: Domain>(
        member: &mut P2pMember<D>,
        handle: &SendHandle,
    ) -> Result<Option<()>, CallError> {
        Ok(member.test_send(*handle)?.then_some(()))
    }

    fn cancel<D: Domain>(
        member: &mut P2pMember<D>,
        handle: &SendHandle,
    ) -> Result<(), CancelError> {
        member.cancel_send(*handle)
    }
}

/// Receives, which are offered in order.
#[derive(Debug)]
pub(super) enum Receives {}

impl Kind for Receives {
    type Request = RecvRequest;
    type Waiting = RecvRequest;
    type Handle = RecvHandle;
    type Value = Received;

    const AHEAD: usize = 1;

    fn wait(request: RecvRequest, _: &KnownKeys) -> RecvRequest {
        request
    }

    fn slot(request: &RecvRequest) -> u16 {
        request.slot
    }

    fn start<D: Domain>(
        member: &mut P2pMember<D>,
        request: &RecvRequest,
        keys: &KnownKeys,
    ) -> Result<RecvHandle, CallError> {
        let offered = request.buffers.iter().map(|buffer| {
            let KeyedBuffer { local, tag, keys: place } = *buffer;
            RecvBuffer { local, tag, keys: keys.get(place) }
        });
        member.irecv(&offered.collect::<ArrayVec<_, MAX_BUFFERS>>())
    }

    fn test<D: Domain>(
        member: &mut P2pMember<D>,
        handle: &RecvHandle,
    ) -> Result<Option<Received>, CallError> {
        member.test_recv(*handle)
    }

    fn cancel<D: Domain>(
        member: &mut P2pMember<D>,
        handle: &RecvHandle,
    ) -> Result<(), CancelError> {
        member.cancel_recv(*handle)
    }
}

/// Flushes of received messages.
#[derive(Debug)]
pub(super) enum Flushes {}

impl Kind for Flushes {
    type Request = FlushRequest;
    type Waiting = FlushRequest;
    type Handle = FlushHandle;
    type Value = ();

    const AHEAD: usize = 1;

    fn wait(request: FlushRequest, _: &KnownKeys) -> FlushRequest {
        request
    }

    fn slot(request: &FlushRequest) -> u16 {
        request.slot
    }

    fn start<D: Domain>(
        member: &mut P2pMember<D>,
        request: &FlushRequest,
        _: &KnownKeys,
    ) -> Result<FlushHandle, CallError> {
        member.flush(&request.received)
    }

    fn test<D: Domain>(
        member: &mut P2pMember<D>,
        handle: &FlushHandle,
    ) -> Result<Option<()>, CallError> {
        Ok(member.test_flush(handle)?.then_some(()))
    }

    /// No handle asks for this: flushes are short.
    fn cancel<D: Domain>(_: &mut P2pMember<D>, _: &FlushHandle) -> Result<(), CancelError> {
        Ok(())
    }
}
