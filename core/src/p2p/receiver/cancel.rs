//! Receives that are taken back.
//!
//! The sender is asked for a receive as soon as its entries are written. If it has not begun to send,
//! it never will; otherwise it takes its message back. It answers when nothing more is written, unless
//! the message has arrived whole. The slot then waits for the void message of its number, as for any
//! other: only that proves that the sender has the entries, and frees the slot, its mask and what the
//! pools reserve for it.

use super::end::Receiver;
use super::irecv::RecvHandle;
use super::slot::{Slot, State, Withdrawal};
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::cancel::{self, CancelError};
use crate::p2p::control::Control;
use crate::p2p::error::CallError;
use crate::p2p::memory::Words;
use crate::rail::ControlError;

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// Takes a receive back. [`test`](Self::test) returns what became of it: a message arrived after
    /// all, or [`TakenBack`](CallError::TakenBack). Then the peer writes no byte of the buffers any
    /// more; they may have been written in part. What the sender has sent into them returns
    /// `TakenBack` there, too; its later messages go to the receives behind this one.
    ///
    /// The peer decides, so its owner must carry [control
    /// messages](crate::p2p::ConnectionEnd::next_control). If its message is under way, it may have
    /// to fence queue pairs: see [`Sender::cancel`](crate::p2p::Sender::cancel).
    ///
    /// The slot is free for another receive once the sender's turn has come to this receive, even if
    /// it sends nothing.
    ///
    /// ```
    /// use polyrail_core::hardware::{CompletionQueue, QueuePair, ReceiveQueue};
    /// use polyrail_core::p2p::{CallError, Received, Receiver, RecvHandle, Words};
    /// use polyrail_core::virtual_cq::VirtualCq;
    ///
    /// /// Takes a receive back, and returns the message if one arrived after all. `carry` carries
    /// /// control messages.
    /// fn take_back<Q: QueuePair, S: ReceiveQueue, M: Words, C: CompletionQueue>(
    ///     receiver: &mut Receiver<Q, S, M, 4, 128, 64>,
    ///     cq: &mut VirtualCq<C, 4, 16>,
    ///     receive: RecvHandle,
    ///     carry: impl Fn(&mut Receiver<Q, S, M, 4, 128, 64>),
    /// ) -> Result<Option<Received>, CallError> {
    ///     if let Err(error) = receiver.cancel(receive) {
    ///         println!("{error}");
    ///     }
    ///     loop {
    ///         match receiver.test(receive) {
    ///             Ok(None) => {}
    ///             Err(CallError::TakenBack { .. }) => return Ok(None),
    ///             result => return result,
    ///         }
    ///         let polled = cq.poll(&mut *receiver, usize::MAX, |_| {});
    ///         assert!(polled.error.is_none());
    ///         carry(receiver);
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`CancelError`]; nothing changed.
    #[cold]
    pub fn cancel(&mut self, handle: RecvHandle) -> Result<(), CancelError> {
        cancel::check(self.lanes.failure, self.lanes.reroutes(), self.peer_cancel_version)?;
        let RecvHandle { number } = handle;
        let slot = &mut self.slots[Self::slot_at(number)];
        if slot.number != number || slot.is_reported() {
            return Err(CancelError::NoRequest { number });
        }
        if matches!(slot.state, State::Done | State::Void) {
            return Err(CancelError::TooLate { number });
        }
        if slot.withdrawal().is_some() {
            return Err(CancelError::AlreadyCancelled { number });
        }
        slot.withdrawal = (number, Withdrawal::Wanted);
        self.wants_back = true;
        Ok(())
    }

    /// Returns the number of receives that are being [taken back](Self::cancel): the sender has not
    /// answered yet.
    pub fn being_taken_back(&self) -> usize {
        let is_open =
            |slot: &&Slot| slot.is_in(Withdrawal::Wanted) || slot.is_in(Withdrawal::Asked);
        self.slots.iter().filter(is_open).count()
    }

    /// Returns the next message that asks the sender for a receive.
    pub(super) fn ask_for_receive(&mut self) -> Option<Control> {
        if !self.wants_back {
            return None;
        }
        let wanted = |slot: &&mut Slot| slot.is_in(Withdrawal::Wanted);
        // To the sender, a receive that is held does not exist.
        let is_written = |slot: &&mut Slot| slot.state == State::Waiting;
        if let Some(slot) = self.slots.iter_mut().filter(wanted).find(is_written) {
            slot.withdrawal.1 = Withdrawal::Asked;
            return Some(Control::Withdraw { number: slot.number });
        }
        self.wants_back = self.slots.iter().any(|slot| slot.is_in(Withdrawal::Wanted));
        None
    }

    /// The sender writes nothing more of a receive.
    pub(super) fn given_back(&mut self, number: u64) -> Result<(), ControlError> {
        if number == 0 || number >= self.next {
            return Err(ControlError::NoReceive { number });
        }
        let slot = &mut self.slots[Self::slot_at(number)];
        if slot.number == number && slot.is_in(Withdrawal::Asked) {
            slot.withdrawal.1 = Withdrawal::Final;
            // A correct sender sends a void message, whose record says so.
            slot.needs_record = true;
        } else {
            // The void message came first, or the link broke and this end asked twice.
            self.lanes.reroute.ignore();
        }
        Ok(())
    }

    /// The link broke: the sender may not have been asked, or its answer was lost.
    pub(super) fn ask_again(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_in(Withdrawal::Asked)) {
            slot.withdrawal.1 = Withdrawal::Wanted;
            self.wants_back = true;
        }
    }
}

impl Slot {
    /// Whether the receive waits, and is this far in being taken back.
    fn is_in(&self, stage: Withdrawal) -> bool {
        let waits = matches!(self.state, State::Held | State::Waiting);
        waits && self.withdrawal() == Some(stage)
    }

    /// Whether there is no receive whose result `test` has not returned.
    pub(super) fn is_reported(&self) -> bool {
        self.state == State::Free || self.is_in(Withdrawal::Tested)
    }

    /// Whether `test` returns at once, though the message is not done.
    #[inline]
    pub(super) fn is_taken_back(&self) -> bool {
        let is_final = matches!(self.withdrawal(), Some(Withdrawal::Final | Withdrawal::Tested));
        self.state == State::Void || is_final
    }

    /// All immediates of a message that was taken back have arrived.
    pub(super) fn end_void(&mut self) {
        let is_reported = self.is_in(Withdrawal::Tested);
        self.state = if is_reported { State::Free } else { State::Void };
    }

    /// Returns the result of a receive that was taken back.
    #[cold]
    pub(super) fn note_taken_back(&mut self) -> CallError {
        let Self { number, .. } = *self;
        if self.is_in(Withdrawal::Tested) {
            return CallError::NoRequest { number };
        }
        if self.state == State::Void {
            self.state = State::Free;
        } else {
            self.withdrawal.1 = Withdrawal::Tested;
        }
        CallError::TakenBack { number }
    }
}
