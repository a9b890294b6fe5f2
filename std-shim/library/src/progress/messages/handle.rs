//! The producer's side: messages from any thread.

use super::mailbox::P2pShared;
use super::port::{LaneOf, Lanes};
use super::request::{
    FlushRequest, Flushes, KeyedBuffer, P2pError, Receives, RecvRequest, SendRequest, Sends,
};
use crate::p2p::{Received, RecvBuffer};
use crate::progress::outcome::{HandleCancelError, SubmitError};
use crate::progress::pending::Pending;
use arrayvec::ArrayVec;
use polyrail_core::hardware::CqError;
use polyrail_core::p2p::MAX_BUFFERS;
use polyrail_core::verbs::{DeviceKeys, LocalBuffer};
use std::sync::Arc;

/// The outcome of a send or a flush.
pub type PendingDone = Pending<Result<(), P2pError>>;

/// The outcome of a receive: what arrived, or why nothing did.
pub type PendingRecv = Pending<Result<Received, P2pError>>;

/// Exchanges messages with the peer of one member of a [`P2pThread`](super::P2pThread), from any
/// thread. Each producer has a handle for itself.
///
/// The receives of a handle are offered to the peer in the order in which they were handed over,
/// and messages of the same tag are sent in that order. A message for which the peer offers no
/// buffer yet waits, and messages of other tags pass it. There is no order between handles.
///
/// A call waits neither for the thread nor for other handles. The thread repeats what the engine
/// refuses with "not now". 256 requests of each kind may be unreported
/// ([`HANDLE_DEPTH`](crate::progress::HANDLE_DEPTH)); further ones return [`SubmitError::Full`].
///
/// # Buffer ownership
///
/// A buffer belongs to the member until the request is reported; that is, until its [`Pending`] has
/// an outcome other than [`Abandoned`](P2pError::Abandoned). Dropping the `Pending` does not change
/// that. The device keys are copied. The handle and the thread store the latest 16 sets of keys for
/// each kind of request, so that only new sets need an allocation.
///
/// # Dropping
///
/// Requests that were handed over are still carried out, and every [`Pending`] gets its outcome.
/// After the last one the thread frees its side of the handle.
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

    /// Sends `buffer` to the next buffer with this tag that the peer offers. `keys` are the [own
    /// keys](crate::memory::Registration::own_keys) of `buffer`. See
    /// [`P2pMember::isend`](crate::p2p::P2pMember::isend).
    ///
    /// # Errors
    ///
    /// The request was not taken and nothing changed. Errors that only the engine can find, such as
    /// a message that is too long, are outcomes of the [`Pending`].
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
    /// As [`isend`](Self::isend), and [`SubmitError::Buffers`] for no buffer or more than 8.
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

    /// Takes a send back: the thread does what
    /// [`P2pMember::cancel_send`](crate::p2p::P2pMember::cancel_send) does, and the outcome of
    /// `pending` says what became of it. A send that waits for a buffer of the peer is dropped. [The
    /// page about it](crate::cancel) has what the caller may do with the memory, and when.
    ///
    /// A send that cannot be taken back any more goes on, and its outcome is as if nobody had wanted
    /// it back.
    ///
    /// # Errors
    ///
    /// See [`HandleCancelError`]; the send goes on.
    pub fn cancel_send(&mut self, pending: &PendingDone) -> Result<(), HandleCancelError> {
        let slot = self.cancellable(pending.slot_among(self.sends.replies()))?;
        self.sends.requests.cancel(slot)?;
        self.shared.wake();
        Ok(())
    }

    /// Takes a receive back: the thread does what
    /// [`P2pMember::cancel_recv`](crate::p2p::P2pMember::cancel_recv) does. Otherwise as
    /// [`cancel_send`](Self::cancel_send).
    ///
    /// # Errors
    ///
    /// See [`HandleCancelError`]; the receive goes on.
    pub fn cancel_recv(&mut self, pending: &PendingRecv) -> Result<(), HandleCancelError> {
        let slot = self.cancellable(pending.slot_among(self.receives.replies()))?;
        self.receives.requests.cancel(slot)?;
        self.shared.wake();
        Ok(())
    }

    /// Checks that a request can be taken back. `slot` is `None` if it is of another handle, or of
    /// another kind, and the slot in it is `None` if its outcome was taken.
    fn cancellable(&self, slot: Option<Option<u16>>) -> Result<u16, HandleCancelError> {
        let slot = slot.ok_or(HandleCancelError::Foreign)?.ok_or(HandleCancelError::Ended)?;
        self.working()?;
        if self.shared.mailbox.reroutes() { Ok(slot) } else { Err(HandleCancelError::NotRerouting) }
    }

    /// Makes every byte of a message visible to all readers of that memory. Its buffers are
    /// registered with [`REMOTE_READ`](polyrail_core::verbs::AccessFlags::REMOTE_READ), because
    /// devices read them back. See [`P2pMember::flush`](crate::p2p::P2pMember::flush).
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

    /// Returns the error of the first completion queue of the set that broke. Members that are not
    /// re-routed have [failed](crate::p2p::Failure::Owner) because of it.
    pub fn queue_error(&self) -> Option<&CqError> {
        self.shared.mailbox.queue_error()
    }

    fn working(&self) -> Result<(), SubmitError> {
        self.shared.driver.check_process()?;
        if self.shared.is_closing() { Err(SubmitError::ThreadGone) } else { Ok(()) }
    }

    /// Returns the buffers with the places of their keys, after announcing new keys to the thread.
    fn keyed(
        &mut self,
        buffers: &[RecvBuffer<'_>],
    ) -> Result<ArrayVec<KeyedBuffer, MAX_BUFFERS>, SubmitError> {
        let requests = &mut self.receives.requests;
        // A new set may take the place of one that another buffer needs, so this repeats until all
        // are there. It announces no set twice, since there are more places than buffers in a
        // request.
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
        // Closed first, then the bell: a thread that sleeps has to see it, to free its port.
        self.sends.requests.close();
        self.receives.requests.close();
        self.flushes.requests.close();
        self.shared.wake();
    }
}
