//! Messages and receives that are taken back.

use super::member::P2pMember;
use crate::backend::Domain;
use polyrail_core::p2p::{CancelError, ConnectionEnd, RecvHandle, SendHandle};
use polyrail_core::virtual_qp::RailState;
use std::time::Instant;

impl<D: Domain> P2pMember<D> {
    /// Takes a message back; [`test_send`](Self::test_send) returns what became of it. See
    /// [`Sender::cancel`](polyrail_core::p2p::Sender::cancel), and [the page about
    /// it](crate::cancel) for what the caller may do with the memory, and when.
    ///
    /// Polls fence the queue pairs that carry it once
    /// [`cancel_grace`](super::P2pBuilder::cancel_grace) has passed, and replace them. Poll on until
    /// the result: without polls nothing is fenced.
    ///
    /// ```
    /// use polyrail::memory::RegisteredBuffer;
    /// use polyrail::nic::{DeviceConfig, Fabric};
    /// use polyrail::p2p::{CallError, P2pBuilder, P2pEndpoint, RecvBuffer, connect_endpoints};
    /// use polyrail::verbs::AccessFlags;
    /// use polyrail::virtual_qp::RailFailure;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = Fabric::threaded();
    /// # let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
    /// # let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
    /// let builder = P2pBuilder::new().rail_failure(RailFailure::Reroute);
    /// let mut near: P2pEndpoint = builder.build(&[&here])?;
    /// let mut far: P2pEndpoint = builder.build(&[&there])?;
    /// connect_endpoints(&mut near, &mut far)?;
    /// # let from = RegisteredBuffer::new(1 << 20, AccessFlags::empty(), &[&here])?;
    /// # let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    /// # let to = RegisteredBuffer::new(1 << 20, writable, &[&there])?;
    /// # let keys = to.own_keys();
    /// # let offered = RecvBuffer { local: to.local(0, 1 << 20)?, tag: 7, keys: &keys };
    /// let receive = far.irecv(&[offered])?;
    /// let send = loop {
    ///     match near.isend(from.local(0, 1 << 20)?, 7, &from.own_keys()) {
    ///         Err(error) if error.is_not_now() => {
    ///             near.poll(16).check()?;
    ///             far.poll(16).check()?;
    ///         }
    ///         sent => break sent?,
    ///     }
    /// };
    /// near.cancel_send(send)?;
    /// let is_delivered = loop {
    ///     match near.test_send(send) {
    ///         Ok(true) => break true,
    ///         Ok(false) => {}
    ///         Err(CallError::TakenBack { .. }) => break false,
    ///         Err(error) => return Err(error.into()),
    ///     }
    ///     near.poll(16).check()?;
    ///     far.poll(16).check()?;
    /// };
    /// // The receiver has the same result.
    /// loop {
    ///     match far.test_recv(receive) {
    ///         Ok(None) => {}
    ///         Ok(Some(received)) => {
    ///             assert!(is_delivered);
    ///             assert_eq!(received.sizes(), [1 << 20]);
    ///             break;
    ///         }
    ///         Err(error) => {
    ///             assert!(!is_delivered && matches!(error, CallError::TakenBack { .. }));
    ///             break;
    ///         }
    ///     }
    ///     near.poll(16).check()?;
    ///     far.poll(16).check()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`CancelError`]; nothing changed.
    #[cold]
    pub fn cancel_send(&mut self, handle: SendHandle) -> Result<(), CancelError> {
        let sender = self.sender.as_mut().ok_or(CancelError::OneWay)?;
        sender.cancel(handle)?;
        self.begin_cancels();
        Ok(())
    }

    /// Takes a receive back; [`test_recv`](Self::test_recv) returns what became of it. The peer
    /// decides, so both ends must go on with polls; see
    /// [`Receiver::cancel`](polyrail_core::p2p::Receiver::cancel), and [the page about
    /// it](crate::cancel).
    ///
    /// # Errors
    ///
    /// See [`CancelError`]; nothing changed.
    #[cold]
    pub fn cancel_recv(&mut self, handle: RecvHandle) -> Result<(), CancelError> {
        let receiver = self.receiver.as_mut().ok_or(CancelError::OneWay)?;
        receiver.cancel(handle)?;
        self.cancels.is_busy = true;
        Ok(())
    }

    /// Begins the grace of messages that are being taken back, unless it has begun.
    fn begin_cancels(&mut self) {
        let Some(sender) = &mut self.sender else { return };
        if sender.being_taken_back() > 0 {
            self.cancels.begin();
            if self.cancels.grace.is_zero() {
                sender.fence_cancelled();
            }
        }
    }

    /// Whether messages or receives are being taken back, so that polls have something to do that no
    /// completion announces.
    pub(crate) fn is_taking_back(&self) -> bool {
        let owes = self.sender.as_ref().is_some_and(|sender| sender.owes_void_messages());
        self.cancels.is_busy || owes
    }

    /// Has the queue pairs fenced that carry messages whose grace is over.
    pub(super) fn fence_cancelled(&mut self, now: Instant) {
        // The peer may want receives back.
        if self.cancels.fence_at.is_none() {
            self.begin_cancels();
        }
        let Self { sender, receiver, cancels, places, .. } = self;
        if !cancels.is_busy {
            return;
        }
        let mut is_fencing = false;
        let sender = sender.as_mut().filter(|sender| sender.failure().is_none());
        if let Some(sender) = sender {
            let is_asked = (0..places.len()).any(|place| sender.asks_for_fence(place));
            let mut out = (0..places.len()).filter(|place| sender.is_out_on_purpose(*place));
            let is_any_out = is_asked || out.next().is_some();
            if sender.being_taken_back() == 0 {
                cancels.fence_at = None;
            }
            if cancels.is_due(now, is_any_out) {
                sender.fence_cancelled();
            }
            // Behind it, since a message of which nothing is in flight needs no fence.
            is_fencing = sender.being_taken_back() > 0 || is_asked;
        }
        let receiver = receiver.as_ref().filter(|receiver| receiver.failure().is_none());
        let is_asking = receiver.is_some_and(|receiver| receiver.being_taken_back() > 0);
        cancels.is_busy = is_fencing || is_asking;
    }

    /// Whether the peer's part of a fence on purpose of the sender's queue pair is awaited.
    pub(super) fn awaits_fence_on_purpose(&self, place: usize) -> bool {
        let Some(sender) = &self.sender else { return false };
        let state = sender.queue_pair_state(place).map(|(state, _)| state);
        let is_unfenced = matches!(state, Some(RailState::Draining | RailState::Fenced));
        sender.asks_for_fence(place) || is_unfenced && sender.is_out_on_purpose(place)
    }
}
