//! The three kinds of requests, which do not wait for each other, and how they end.

use crate::backend::Domain;
use crate::p2p::{CallError, FlushHandle, P2pMember, Received, RecvBuffer, RecvHandle, SendHandle};
use crate::progress::HANDLE_DEPTH;
use crate::progress::pending::Outcome;
use crate::progress::submit::{KeySet, KnownKeys};
use arrayvec::ArrayVec;
use polyrail_core::p2p::MAX_BUFFERS;
use polyrail_core::verbs::LocalBuffer;
use std::fmt::Debug;
use std::sync::Arc;

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

/// A buffer to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendRequest {
    pub(super) slot: u16,
    pub(super) buffer: KeyedBuffer,
}

/// Buffers to be offered.
#[derive(Debug)]
pub(super) struct RecvRequest {
    pub(super) slot: u16,
    pub(super) buffers: ArrayVec<KeyedBuffer, MAX_BUFFERS>,
}

/// What is to be made visible.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushRequest {
    pub(super) slot: u16,
    pub(super) received: Received,
}

/// A buffer of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyedBuffer {
    pub(super) local: LocalBuffer,
    pub(super) tag: u32,
    pub(super) keys: u8,
}

/// How a kind of request is made of a member.
pub(super) trait Kind {
    /// As it crosses.
    type Request: Debug;
    /// As it waits until it can be started.
    type Waiting: Debug;
    /// What the engine knows it by.
    type Handle: Debug;
    /// What its caller gets.
    type Value: Copy + Debug;

    /// Most that wait, apart from those in the ring. Where it is one, no key set is learnt while one waits.
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
}

/// Messages that leave. Those for which the peer offers no buffer yet let others pass, which have another tag: all of a
/// handle may wait.
#[derive(Debug)]
pub(super) enum Sends {}

impl Kind for Sends {
    type Request = SendRequest;
    /// The place of its keys may be taken by others.
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
}

/// Messages that come, in the order of their receives.
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
}

/// Flushes of what came.
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
}
