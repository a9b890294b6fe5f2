//! A producer's end: messages from any thread.

use super::mailbox::P2pShared;
use super::port::{LaneOf, Lanes};
use super::request::{
    FlushRequest, Flushes, KeyedBuffer, P2pError, Receives, RecvRequest, SendRequest, Sends,
};
use crate::p2p::{Received, RecvBuffer};
use crate::progress::error::SubmitError;
use crate::progress::pending::Pending;
use arrayvec::ArrayVec;
use polyrail_core::hardware::CqError;
use polyrail_core::p2p::MAX_BUFFERS;
use polyrail_core::verbs::{DeviceKeys, LocalBuffer};
use std::sync::Arc;

/// A message that leaves, or a flush: done, or why not.
pub type PendingDone = Pending<Result<(), P2pError>>;

/// A receive: what came, or why nothing will.
pub type PendingRecv = Pending<Result<Received, P2pError>>;

/// Messages with one peer of a [`P2pThread`](super::P2pThread), from any thread. Each producer has its own.
///
/// Receives of a handle are offered in the order in which they were handed over, and messages of the same tag leave in
/// theirs. A message for which the peer offers no buffer yet waits, and messages of other tags pass it. Between
/// handles there is no order.
///
/// Handing over waits neither for the thread nor for other handles, and "not now" of the engine is the thread's to deal
/// with. 256 requests of each kind may be unreported ([`HANDLE_DEPTH`](crate::progress::HANDLE_DEPTH)): then
/// [`SubmitError::Full`].
///
/// # Buffer ownership
///
/// A buffer is the connection's from here until the request is reported; that is, until its [`Pending`] has an outcome
/// other than [`Abandoned`](P2pError::Abandoned). To drop the `Pending` does not end that. The device keys are copied;
/// the handle and the thread remember the latest 16 sets of them for each kind of request, so that only new ones are
/// allocated for.
///
/// # Dropping
///
/// What was handed over is still carried out, and every [`Pending`] gets its outcome. When the last request ended, the
/// thread forgets the handle.
#[derive(Debug)]
pub struct P2pHandle {
    sends: LaneOf<Sends>,
    receives: LaneOf<Receives>,
    flushes: LaneOf<Flushes>,
    shared: Arc<P2pShared>,
}

impl P2pHandle {
    pub(super) fn new((sends, receives, flushes): Lanes, shared: Arc<P2pShared>) -> Self {
        Self { sends, receives, flushes, shared }
    }

    /// Sends `buffer` to the next buffer with this tag that the peer offers; `keys` are its
    /// [own](crate::memory::Registration::own_keys). See [`P2pMember::isend`](crate::p2p::P2pMember::isend).
    ///
    /// # Errors
    ///
    /// The request was not taken and nothing changed. What only the engine can know, such as a message that is too long,
    /// comes out of the [`Pending`] instead.
    pub fn isend(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<PendingDone, SubmitError> {
        self.working()?;
        let keys = self.sends.requests.place_of(keys)?;
        let buffer = KeyedBuffer { local: buffer, tag, keys };
        let pending = self.sends.submit(|slot| SendRequest { slot, buffer })?;
        self.shared.wake();
        Ok(pending)
    }

    /// Offers 1 to 8 buffers to the peer. See [`P2pMember::irecv`](crate::p2p::P2pMember::irecv).
    ///
    /// # Errors
    ///
    /// As [`isend`](Self::isend); or no buffer, or more than 8.
    pub fn irecv(&mut self, buffers: &[RecvBuffer<'_>]) -> Result<PendingRecv, SubmitError> {
        self.working()?;
        if buffers.is_empty() || buffers.len() > MAX_BUFFERS {
            return Err(SubmitError::Buffers { buffers: buffers.len() });
        }
        let keyed = self.keyed(buffers)?;
        let pending = self.receives.submit(|slot| RecvRequest { slot, buffers: keyed })?;
        self.shared.wake();
        Ok(pending)
    }

    /// Makes every byte of a message visible to whoever reads that memory. Its buffers are registered with
    /// [`REMOTE_READ`](polyrail_core::verbs::AccessFlags::REMOTE_READ): devices read them back. See
    /// [`P2pMember::flush`](crate::p2p::P2pMember::flush).
    ///
    /// # Errors
    ///
    /// As [`isend`](Self::isend).
    pub fn flush(&mut self, received: &Received) -> Result<PendingDone, SubmitError> {
        self.working()?;
        let received = *received;
        let pending = self.flushes.submit(|slot| FlushRequest { slot, received })?;
        self.shared.wake();
        Ok(pending)
    }

    /// The first completion queue of the set that broke, if one did. Members that are not re-routed were
    /// [given up](crate::p2p::Failure::Owner) because of it.
    pub fn queue_error(&self) -> Option<&CqError> {
        self.shared.mailbox.queue_error()
    }

    fn working(&self) -> Result<(), SubmitError> {
        if self.shared.is_closing() { Err(SubmitError::ThreadGone) } else { Ok(()) }
    }

    /// The buffers with the places of their keys, all of which the thread knows.
    fn keyed(
        &mut self,
        buffers: &[RecvBuffer<'_>],
    ) -> Result<ArrayVec<KeyedBuffer, MAX_BUFFERS>, SubmitError> {
        let requests = &mut self.receives.requests;
        // A new set may take the place of one that another buffer needs; but no buffer's set is announced twice, since
        // more sets are kept than a request has.
        while let Some(new) = buffers.iter().find(|buffer| !requests.knows(buffer.keys)) {
            requests.place_of(new.keys)?;
        }
        let mut keyed = |RecvBuffer { local, tag, keys }: &RecvBuffer<'_>| {
            let keys = requests.place_of(keys)?;
            Ok(KeyedBuffer { local: *local, tag: *tag, keys })
        };
        buffers.iter().map(&mut keyed).collect()
    }
}

impl Drop for P2pHandle {
    fn drop(&mut self) {
        // First the news, then the bell: the thread may sleep, and has to forget the handle.
        self.sends.requests.close();
        self.receives.requests.close();
        self.flushes.requests.close();
        self.shared.wake();
    }
}
