//! Messages that are taken back, by this end or because the receiver wants its buffers back.
//!
//! From [`cancel`](Sender::cancel) on, nothing of a message is posted, the first time or again. What
//! is in flight is acknowledged, or lost with its queue pair; the owner decides how long it waits
//! before these are fenced on purpose ([`fence_cancelled`](Sender::fence_cancelled)). Then the
//! message has arrived whole, or it is void: the shares that did not arrive go out without payload,
//! by the steps of shares that were lost, and their record says that the message was taken back. So
//! the receiver's slot, its mask and the receives that its pools reserve end as those of any other
//! message.
//!
//! A receive that the receiver wants back, and whose turn is to come, gets a void message over one
//! rail in its turn, once its entries are there. Before that, an entry that is still on its way could
//! overwrite a newer entry of the slot.

use super::end::Sender;
use super::isend::SendHandle;
use super::slot::{Share, Slot, Stage, State};
use crate::hardware::QueuePair;
use crate::p2p::cancel::{self, CancelError};
use crate::p2p::control::Control;
use crate::p2p::error::{CallError, NotNow};
use crate::p2p::immediate::Told;
use crate::p2p::mask::Mask;
use crate::p2p::memory::Words;
use crate::rail::{ControlError, Rails};

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// Takes a message back. [`test`](Self::test) returns what became of it: it arrived after all,
    /// or [`TakenBack`](CallError::TakenBack). Then no device reads the buffer any more, the peer's
    /// buffers may have been written in part, and its `test` returns `TakenBack`, too.
    ///
    /// A message of several buffers is taken back whole, with all its sends, if it was posted. Before
    /// that, only this send is taken back, and its buffer waits for another one.
    ///
    /// The message may be delivered yet. The engine reads no clock: for as long as its owner likes,
    /// which is best twice as long as a message usually takes, it waits for acknowledgements. Then
    /// it calls [`fence_cancelled`](Self::fence_cancelled).
    ///
    /// Both ends need re-routing, and the same [version](crate::p2p::CANCEL_VERSION).
    ///
    /// ```
    /// use polyrail_core::hardware::{CompletionQueue, QueuePair};
    /// use polyrail_core::p2p::{CallError, CancelError, SendHandle, Sender, Words};
    /// use polyrail_core::virtual_cq::VirtualCq;
    ///
    /// /// Takes a message back, and returns whether it was delivered. `is_over` ends the time for
    /// /// acknowledgements; `carry` carries control messages and replaces queue pairs that are Down.
    /// fn take_back<Q: QueuePair, M: Words, C: CompletionQueue>(
    ///     sender: &mut Sender<Q, M, 4, 128, 64>,
    ///     cq: &mut VirtualCq<C, 4, 16>,
    ///     message: SendHandle,
    ///     is_over: impl Fn() -> bool,
    ///     carry: impl Fn(&mut Sender<Q, M, 4, 128, 64>, &mut VirtualCq<C, 4, 16>),
    /// ) -> Result<bool, CallError> {
    ///     match sender.cancel(message) {
    ///         // `test` has the result in any case.
    ///         Ok(()) | Err(CancelError::TooLate { .. } | CancelError::Failed(_)) => {}
    ///         Err(error) => panic!("{error}"),
    ///     }
    ///     loop {
    ///         match sender.test(message) {
    ///             Ok(true) => return Ok(true),
    ///             Err(CallError::TakenBack { .. }) => return Ok(false),
    ///             Err(error) => return Err(error),
    ///             Ok(false) => {}
    ///         }
    ///         if is_over() {
    ///             sender.fence_cancelled();
    ///         }
    ///         let polled = cq.poll(&mut *sender, usize::MAX, |_| {});
    ///         assert!(polled.error.is_none());
    ///         carry(sender, cq);
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`CancelError`]; nothing changed.
    #[cold]
    pub fn cancel(&mut self, handle: SendHandle) -> Result<(), CancelError> {
        cancel::check(self.lanes.failure, self.lanes.reroutes(), self.peer_cancel_version)?;
        let SendHandle { number, buffer } = handle;
        let (at, bit) = (Self::slot_at(number), 1 << buffer);
        let slot = &mut self.slots[at];
        if slot.number != number || slot.awaited & bit == 0 {
            return Err(CancelError::NoRequest { number });
        }
        match slot.state {
            State::Matching if slot.taken_back & bit == 0 => slot.taken_back |= bit,
            State::Sending => {
                self.take_back(at);
                self.recover();
            }
            State::Matching | State::TakingBack | State::Void | State::TakenBack => {
                return Err(CancelError::AlreadyCancelled { number });
            }
            State::Done => return Err(CancelError::TooLate { number }),
            State::Free => return Err(CancelError::NoRequest { number }),
        }
        Ok(())
    }

    /// Ends the time for acknowledgements of messages that are being [taken back](Self::cancel), by
    /// this end or for the receiver: the peer is asked to fence the queue pairs that carry parts of
    /// them. A fence that is under way is joined, and what other messages lose is sent again.
    ///
    /// The owner must call this in the end. Between two calls, it lets the queue pairs that returned
    /// work for a while: each fence loses what others have in flight. If the peer does not answer, it
    /// may [fail](crate::p2p::ConnectionEnd::fail_queue_pair) the queue pairs.
    ///
    /// Both owners see queue pairs that are [fenced on
    /// purpose](crate::virtual_qp::FailedBecause::is_on_purpose), and replace them as if they had
    /// failed. For [`min_rails`](super::SenderConfig::min_rails), they count as in service at both
    /// ends, until their replacements fail.
    #[cold]
    pub fn fence_cancelled(&mut self) {
        let being_taken_back = |slot: &&mut Slot| slot.state == State::TakingBack;
        self.slots.iter_mut().filter(being_taken_back).for_each(|slot| slot.is_hurried = true);
        if self.being_taken_back > 0 {
            self.recover();
        }
    }

    /// Returns the number of messages that are being taken back, by this end or for the receiver: it
    /// is not final yet what becomes of them.
    pub fn being_taken_back(&self) -> usize {
        if self.being_taken_back == 0 {
            return 0;
        }
        self.slots.iter().filter(|slot| slot.state == State::TakingBack).count()
    }

    /// Whether shares of a message may be posted: not while it is decided what becomes of it.
    pub(super) fn may_be_posted(&self, number: u64) -> bool {
        self.slots[Self::slot_at(number)].state != State::TakingBack
    }

    /// Whether the receiver wants receives back whose turn is to come: polls send void messages for
    /// them, once their entries have come, which no completion announces.
    pub const fn owes_void_messages(&self) -> bool {
        self.withdrawn > 0
    }

    /// Nothing of a message is posted from now on.
    fn take_back(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        slot.state = State::TakingBack;
        slot.is_hurried = false;
        self.being_taken_back += 1;
        self.lanes.needs_recovery = true;
    }

    /// Returns the error of a send that was taken back, and notes that its caller has it.
    #[cold]
    pub(super) fn note_taken_back(&mut self, number: u64, bit: u8) -> CallError {
        let slot = &mut self.slots[Self::slot_at(number)];
        slot.taken_back &= !bit;
        if slot.state == State::TakenBack {
            slot.note_tested(bit);
        } else {
            // The slot is in use until the receiver knows, or its buffer waits for another send.
            slot.awaited &= !bit;
        }
        CallError::TakenBack { number }
    }

    /// The receiver wants a receive back.
    pub(super) fn withdraw_receive(&mut self, number: u64) -> Result<(), ControlError> {
        // The receive after these has the slot of one that is not answered.
        if number == 0 || number >= self.next + SLOTS as u64 {
            return Err(ControlError::NoReceive { number });
        }
        let at = Self::slot_at(number);
        let slot = &mut self.slots[at];
        if number >= self.next {
            if slot.withdrawal.number != number {
                self.withdrawn += 1;
                self.may_send = false;
                self.lanes.needs_recovery = true;
            }
            if slot.number == number {
                slot.taken_back = slot.awaited;
            }
            // From here on it is certain that nothing is written.
            slot.owe_answer(number);
            self.owes_answers = true;
            return Ok(());
        }
        // After a newer receive of its slot, an older one is not wanted back.
        if slot.number == number && slot.withdrawal.number <= number {
            match slot.state {
                State::Sending => {
                    slot.withdrawal.number = number;
                    self.take_back(at);
                    return Ok(());
                }
                State::TakingBack => {
                    slot.withdrawal.number = number;
                    return Ok(());
                }
                State::Void => {
                    slot.owe_answer(number);
                    self.owes_answers = true;
                    return Ok(());
                }
                State::Free | State::Matching | State::Done | State::TakenBack => {}
            }
        }
        // The message has arrived, whole or void.
        self.lanes.reroute.ignore();
        Ok(())
    }

    /// Returns the next answer to a receiver that wants a receive back.
    pub(super) fn next_answer(&mut self) -> Option<Control> {
        if !self.owes_answers {
            return None;
        }
        let owing = self.slots.iter_mut().find(|slot| slot.withdrawal.owes_answer);
        self.owes_answers = owing.is_some();
        let withdrawal = &mut owing?.withdrawal;
        withdrawal.owes_answer = false;
        Some(Control::Withdrawn { number: withdrawal.number })
    }

    /// Does what completions and messages allow for messages that are being taken back.
    pub(super) fn take_back_further(&mut self) {
        if self.being_taken_back > 0 {
            for place in 0..self.lanes.len() {
                self.fence_on_purpose(place, self.must_fence(place));
            }
            for at in 0..SLOTS {
                self.settle_taken_back(at);
            }
            if self.owes {
                // Shares of which nothing was posted have waited for the decision.
                self.post_owed();
            }
        }
        if self.withdrawn > 0 {
            // A later poll tries again.
            _ = self.pass_withdrawn();
        }
    }

    /// Whether a queue pair has shares in flight of messages whose time is over.
    fn must_fence(&self, place: usize) -> bool {
        let lifecycle = &self.lanes[place].health.lifecycle;
        let (is_in_service, generation) = (lifecycle.is_in_service(), lifecycle.generation());
        let is_out = |slot: &Slot, rail: u8| {
            let is_with = slot.shares[usize::from(rail)].is_with(place, generation);
            is_with && self.may_be_executed(slot, rail)
        };
        let is_hurried = |slot: &&Slot| slot.state == State::TakingBack && slot.is_hurried;
        let mut hurried = self.slots.iter().filter(is_hurried);
        is_in_service && hurried.any(|slot| { slot.mask }.any(|rail| is_out(slot, rail)))
    }

    /// Whether requests of a share may be in flight.
    fn may_be_executed(&self, slot: &Slot, rail: u8) -> bool {
        let share = &slot.shares[usize::from(rail)];
        let lane = &self.lanes[usize::from(share.lane)];
        match share.stage {
            // Nothing is posted behind a share that is not posted whole. Of a queue pair that
            // failed, what ended may still be executed.
            Stage::Posting => share.next > 0 && (lane.is_stopped || !lane.queue.is_empty()),
            Stage::Posted => true,
            Stage::None | Stage::Arrived | Stage::Lost => false,
        }
    }

    /// Decides what became of a message that is being taken back, if that is final, and ends one
    /// that was taken back and whose receiver knows.
    fn settle_taken_back(&mut self, at: usize) {
        let slot = &self.slots[at];
        let is_out = |rail: u8| self.may_be_executed(slot, rail);
        let is_final = slot.state == State::TakingBack && !{ slot.mask }.any(is_out);
        let slot = &mut self.slots[at];
        match slot.state {
            State::TakingBack if slot.has_arrived() => slot.state = State::Done,
            State::TakingBack if is_final => return self.make_void(at),
            State::Void if slot.has_arrived() => {
                slot.state = if slot.awaited == 0 { State::Free } else { State::TakenBack };
            }
            _ => return,
        }
        self.being_taken_back -= 1;
    }

    /// A message that did not arrive whole is void: its other shares go out without payload.
    fn make_void(&mut self, at: usize) {
        let Self { slots, lanes, outstanding, .. } = self;
        let slot = &mut slots[at];
        slot.state = State::Void;
        slot.void = slot.number;
        slot.told = Told::Record;
        slot.is_fast = false;
        for rail in slot.mask {
            let share = &mut slot.shares[usize::from(rail)];
            if share.stage == Stage::Posting {
                // What was posted of it has arrived, and its signal goes out in place of the rest.
                let carrier = lanes[usize::from(share.lane)].rail;
                outstanding[usize::from(carrier)] -= core::mem::take(&mut share.payload);
                (share.next, share.is_bare) = (0, true);
            }
            self.has_lost |= share.stage == Stage::Lost;
        }
        if slot.is_withdrawn() {
            slot.owe_answer(slot.number);
            self.owes_answers = true;
        }
        self.stage_void(at);
    }

    /// Sends void messages for receives that the receiver wants back, as far as it is their turn.
    #[cold]
    pub(super) fn pass_withdrawn(&mut self) -> Result<(), CallError> {
        while self.slots[Self::slot_at(self.next)].withdrawal.number == self.next {
            self.send_void()?;
        }
        Ok(())
    }

    /// Sends a void message for the next receive.
    fn send_void(&mut self) -> Result<(), CallError> {
        let number = self.next;
        let at = Self::slot_at(number);
        self.open_front::<true>(number)?;
        let Some((rail, place)) = self.one_lane::<true>() else {
            return Err(self.refuse(NotNow::NoCredits).into());
        };
        let generation = self.lanes[place].health.lifecycle.generation();
        let slot = &mut self.slots[at];
        slot.send_over(Mask::of(rail));
        slot.state = State::Void;
        slot.void = number;
        slot.told = Told::Record;
        slot.is_fast = false;
        let (stage, lane, is_bare) = (Stage::Posting, place as u8, true);
        slot.shares[usize::from(rail)] =
            Share { stage, lane, generation, is_bare, ..Slot::NO_SHARE };
        self.stage_void(at);
        self.next = number + 1;
        self.withdrawn -= 1;
        self.may_send = self.withdrawn == 0;
        self.being_taken_back += 1;
        self.lanes.needs_recovery = true;
        let taken = self.post_share(number, rail);
        if let Some(errno) = taken.refusal.and_then(|refusal| refusal.errno()) {
            self.refused(place, errno);
        }
        self.note_turns(Mask::of(rail), |_| place as u8);
        Ok(())
    }
}

impl Slot {
    /// The receiver is to be sent that nothing more of this receive is written.
    const fn owe_answer(&mut self, number: u64) {
        self.withdrawal.number = number;
        self.withdrawal.owes_answer = true;
    }
}
