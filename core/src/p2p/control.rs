//! Queue pairs that fail and return: the messages between the two ends of a connection, and the
//! owner's part.

use crate::completion::sealed::Sealed;
use crate::hardware::{CompletionQueue, QueuePair};
use crate::rail::{
    ControlDecodeError, ControlError, ControlMessage, PhysicalRail, RailEvent, RailState, Rails,
    Rejected,
};
use crate::virtual_cq::VirtualCq;

/// A message from one end of a connection to the other.
///
/// A message carries a state and not an event, so a message that was not sent yet is replaced by
/// the present state. The engine does no I/O: the owners of both ends carry messages, in order,
/// each once.
///
/// ```
/// use polyrail_core::p2p::Control;
/// use polyrail_core::virtual_qp::{ControlMessage, RailId, RailReport, ReportedState};
///
/// let report = RailReport {
///     rail: RailId::Data(1),
///     generation: 0,
///     state: ReportedState::Fenced,
///     arrived: 1000,
///     previous_arrived: 0,
///     on_purpose: false,
/// };
/// let control = Control::Rail { queue_pair: 5, message: ControlMessage::Rail(report) };
/// assert_eq!(Control::decode(&control.encode()), Ok(control));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Control {
    /// A [`ControlMessage`](crate::virtual_qp::ControlMessage) about one queue pair of a rail, or
    /// about the whole end.
    Rail {
        /// The place of the queue pair; 0 in a message about the whole end.
        queue_pair: u8,
        /// The message about it.
        message: ControlMessage,
    },
    /// The receiver wants a receive back ([`Receiver::cancel`](crate::p2p::Receiver::cancel)).
    Withdraw {
        /// Number of the receive.
        number: u64,
    },
    /// The sender has written the last byte of a receive that the receiver wants back, if any.
    Withdrawn {
        /// Number of the receive.
        number: u64,
    },
}

impl Control {
    /// The number of bytes of every message.
    pub const BYTES: usize = ControlMessage::BYTES;

    /// The byte that is 0 in messages of virtual queue pairs.
    const QUEUE_PAIR: usize = 5;
    const WITHDRAW: u8 = 5;
    const WITHDRAWN: u8 = 6;

    /// Returns the message as bytes: those of [`ControlMessage::encode`], with the queue pair's
    /// place in byte 5. In the two others, byte 3 is 5 for Withdraw and 6 for Withdrawn, bytes 4 to
    /// 7 are 0, and bytes 8 to 15 are the number of the receive in network order.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (state, number) = match *self {
            Self::Rail { queue_pair, message } => {
                let mut bytes = message.encode();
                // `ControlMessage` requires a 0 there, so an end of another kind refuses a message
                // about any queue pair but the first.
                bytes[Self::QUEUE_PAIR] = queue_pair;
                return bytes;
            }
            Self::Withdraw { number } => (Self::WITHDRAW, number),
            Self::Withdrawn { number } => (Self::WITHDRAWN, number),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..3].copy_from_slice(&ControlMessage::MAGIC);
        bytes[3] = state;
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`encode`](Self::encode) does not produce these bytes.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, ControlDecodeError> {
        let is_about_a_receive = matches!(bytes[3], Self::WITHDRAW | Self::WITHDRAWN);
        if bytes.starts_with(&ControlMessage::MAGIC) && is_about_a_receive {
            return Self::decode_receive(bytes);
        }
        let mut bytes = *bytes;
        let at = Self::QUEUE_PAIR;
        let queue_pair = core::mem::take(&mut bytes[at]);
        let message = ControlMessage::decode(&bytes)?;
        // Each message has one form: an Error is about the whole end.
        if message == ControlMessage::Error && queue_pair != 0 {
            return Err(ControlDecodeError::Reserved { at, value: queue_pair });
        }
        Ok(Self::Rail { queue_pair, message })
    }

    /// Reads a message about a receive.
    fn decode_receive(bytes: &[u8; Self::BYTES]) -> Result<Self, ControlDecodeError> {
        let [_, _, _, state, pad0, pad1, pad2, pad3, number @ ..] = *bytes;
        let pads = (4..).zip([pad0, pad1, pad2, pad3]);
        if let Some((at, value)) = { pads }.find(|(_, value)| *value != 0) {
            return Err(ControlDecodeError::Reserved { at, value });
        }
        let number = u64::from_be_bytes(number);
        Ok(match state {
            Self::WITHDRAW => Self::Withdraw { number },
            _ => Self::Withdrawn { number },
        })
    }
}

/// What the sender and the receiver do differently when a queue pair fails or returns.
pub(crate) trait End: Rails<Place = usize> + Sealed {
    /// Prepares what the peer may use as soon as it has the next message. Returns whether it is
    /// there.
    fn prepare_message(&mut self) -> bool {
        true
    }

    /// Calls `each` with the place of each queue pair whose oldest request is still the same one.
    fn find_stalled(&mut self, each: impl FnMut(usize));

    /// The owner reports that the queue pair at this place has failed. Returns whether that is new.
    fn fail_place(&mut self, place: usize) -> bool {
        self.fail_rail(place)
    }

    /// The queue pair at this place is destroyed. Returns whether there is one.
    fn lose(&mut self, place: usize) -> bool;

    /// A new queue pair is at this place, connected to the peer's device at `peer_device` of its
    /// list.
    fn replaced(&mut self, place: usize, peer_device: u8);

    /// Returns the next message about a receive that the receiver wants back.
    fn next_withdrawal(&mut self) -> Option<Control>;

    /// The receiver wants a receive back.
    fn withdraw(&mut self, number: u64) -> Result<(), ControlError> {
        Err(ControlError::NoReceive { number })
    }

    /// The sender writes nothing more of a receive.
    fn withdrawn(&mut self, number: u64) -> Result<(), ControlError> {
        Err(ControlError::NoReceive { number })
    }

    /// The link broke: the receiver asks again.
    fn repeat_withdrawals(&mut self) {}
}

/// What the owner of a [`Sender`](crate::p2p::Sender) or a [`Receiver`](crate::p2p::Receiver) does
/// when queue pairs fail and return, where `Q` is the type of the queue pairs; see [Rails that
/// fail](crate::p2p::Sender#rails-that-fail).
///
/// No other type can implement this trait.
pub trait ConnectionEnd<Q>: Sealed {
    /// Returns the next message for the peer. After every poll and every other call, the owner
    /// carries all messages, in order, to [`control`](Self::control) of the other end.
    fn next_control(&mut self) -> Option<Control>;

    /// Handles a message of the peer.
    ///
    /// # Errors
    ///
    /// No correct peer sends this message: the connection failed. Or it does not re-route: nothing
    /// changed.
    fn control(&mut self, control: Control) -> Result<(), ControlError>;

    /// The link that carried messages broke, and both owners have a new one: **both** ends send
    /// everything again that may have been lost.
    fn control_lost(&mut self);

    /// Returns the number of the peer's messages that changed nothing: they were repeated, or about
    /// queue pairs that are replaced.
    fn ignored_controls(&self) -> u64;

    /// Takes the oldest event of a queue pair, with the place of the queue pair.
    fn take_rail_event(&mut self) -> Option<(usize, RailEvent)>;

    /// Returns where a queue pair stands between failure and return, and its generation: 0 for the
    /// first one in its place.
    fn queue_pair_state(&self, queue_pair: usize) -> Option<(RailState, u16)>;

    /// Whether a queue pair is out of service on purpose, or perhaps: it failed after the peer was
    /// asked to fence it. See [`Sender::cancel`](crate::p2p::Sender::cancel).
    fn is_out_on_purpose(&self, queue_pair: usize) -> bool;

    /// Whether this end asks the peer to fence a queue pair on purpose, and has no answer.
    fn asks_for_fence(&self, queue_pair: usize) -> bool;

    /// The owner reports that a queue pair has failed: its port went down, it makes no progress.
    /// Returns whether that changed anything: not without
    /// [`reroutes`](crate::p2p::SenderConfig::reroutes), nor if it has failed already.
    ///
    /// A receiver counts its queue pairs for flushes behind the others. One of these is stopped, with
    /// or without re-routing: flushes that need it fail with
    /// [`CannotFlush`](crate::p2p::CallError::CannotFlush).
    fn fail_queue_pair(&mut self, queue_pair: usize) -> bool;

    /// Calls `each` with the place of each queue pair whose oldest request is still the same one as
    /// at the previous call: some drivers never end a request whose peer is gone. The engine reads
    /// no clock. Its owner calls this at its own period, and [fails](Self::fail_queue_pair) those
    /// that it takes for dead. A receiver counts its queue pairs for flushes behind the others.
    ///
    /// A receiver whose pool ran dry makes its sender wait, and that is not a dead rail: it answers
    /// "receiver not ready", and nothing is lost. With endless retries, as they should be, only the
    /// receiver's owner can distinguish the two.
    fn check_stalled(&mut self, each: impl FnMut(usize));

    /// Ends a queue pair that is destroyed: it has failed, what was in flight on it has ended, and
    /// what arrived is what was taken so far. For devices that are gone, and completion queues that
    /// broke. Returns whether there is such a queue pair. A receiver counts its queue pairs for
    /// flushes behind the others.
    ///
    /// Before that, poll until nothing comes, if the completion queue can still be polled. A sender
    /// sends again, without payload, what it knows to have arrived and the receiver does not.
    ///
    /// # Safety
    ///
    /// The device accesses no memory through this queue pair any more, neither for this end nor for
    /// the peer: it was destroyed, or the device was removed.
    #[allow(unsafe_code, reason = "a contract for the caller")]
    unsafe fn lose_queue_pair(&mut self, queue_pair: usize) -> bool;

    /// Puts a new queue pair in the place of one that failed, and routes its completions: `index`
    /// is where this end is attached to `cq`. The old queue pair is Down. The new one is connected
    /// to the peer's of the same `generation`, the one after
    /// [`queue_pair_state`](Self::queue_pair_state)'s, on the peer's device at place `peer_device`
    /// of its list.
    ///
    /// The old queue pair is returned, to be destroyed. The place carries messages once the peer's
    /// queue pair is there, too.
    ///
    /// # Errors
    ///
    /// Nothing changed, and the queue pair is given back: see
    /// [`ReplaceError`](crate::virtual_qp::ReplaceError).
    fn replace_queue_pair<C: CompletionQueue, const CQS: usize, const ROUTES: usize>(
        &mut self,
        cq: (&mut VirtualCq<C, CQS, ROUTES>, u16),
        place: usize,
        generation: u16,
        queue_pair: Q,
        peer_device: u8,
    ) -> Result<Q, Rejected<Q>>;
}

impl<Q: QueuePair, E: End> ConnectionEnd<Q> for E
where
    E::Rail: PhysicalRail<Qp = Q>,
{
    fn next_control(&mut self) -> Option<Control> {
        // The peer may act on a message at once. After a failure nothing is prepared: only the
        // failure is sent.
        if !self.has_failed() && !self.prepare_message() {
            return None;
        }
        if let Some((place, message)) = self.next_message() {
            // Places have 7 bits, which `new` checks.
            let queue_pair = place.unwrap_or_default() as u8;
            return Some(Control::Rail { queue_pair, message });
        }
        // Behind the fences, of which the last one made an answer possible.
        if self.has_failed() { None } else { self.next_withdrawal() }
    }

    fn control(&mut self, control: Control) -> Result<(), ControlError> {
        match control {
            // A rail has several queue pairs, so the message's rail alone does not name one.
            // `handle_report` checks that the two agree.
            Control::Rail { queue_pair, message } => {
                self.handle(message, |_| usize::from(queue_pair))
            }
            Control::Withdraw { number } | Control::Withdrawn { number } => {
                self.handle_with(|this| match control {
                    Control::Withdraw { .. } => this.withdraw(number),
                    _ => this.withdrawn(number),
                })
            }
        }
    }

    fn control_lost(&mut self) {
        self.repeat_messages();
        self.repeat_withdrawals();
    }

    fn ignored_controls(&self) -> u64 {
        self.reroute().ignored()
    }

    fn take_rail_event(&mut self) -> Option<(usize, RailEvent)> {
        self.take_event()
    }

    fn queue_pair_state(&self, queue_pair: usize) -> Option<(RailState, u16)> {
        let lifecycle = &self.rail_at(queue_pair)?.health().lifecycle;
        Some((lifecycle.state(), lifecycle.generation()))
    }

    fn is_out_on_purpose(&self, queue_pair: usize) -> bool {
        self.rail_at(queue_pair).is_some_and(|rail| rail.health().lifecycle.is_out_on_purpose())
    }

    fn asks_for_fence(&self, queue_pair: usize) -> bool {
        self.rail_at(queue_pair).is_some_and(|rail| rail.health().lifecycle.asks_for_fence())
    }

    fn fail_queue_pair(&mut self, queue_pair: usize) -> bool {
        self.fail_place(queue_pair)
    }

    fn check_stalled(&mut self, each: impl FnMut(usize)) {
        self.find_stalled(each);
    }

    #[allow(unsafe_code, reason = "a contract for the caller")]
    unsafe fn lose_queue_pair(&mut self, queue_pair: usize) -> bool {
        let is_there = self.lose(queue_pair);
        // What was awaited of the queue pair has ended, so the rail may be drained now.
        if is_there {
            self.go_on();
        }
        is_there
    }

    fn replace_queue_pair<C: CompletionQueue, const CQS: usize, const ROUTES: usize>(
        &mut self,
        cq: (&mut VirtualCq<C, CQS, ROUTES>, u16),
        place: usize,
        generation: u16,
        queue_pair: Q,
        peer_device: u8,
    ) -> Result<Q, Rejected<Q>> {
        let old = self.replace(cq, place, generation, queue_pair)?;
        // Before `go_on`, which may post: the peer's device decides the keys of requests.
        self.replaced(place, peer_device);
        self.go_on();
        Ok(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_about_no_queue_pair() {
        let error = Control::Rail { queue_pair: 0, message: ControlMessage::Error };
        let mut bytes = error.encode();
        assert_eq!(Control::decode(&bytes), Ok(error));
        bytes[5] = 3;
        assert_eq!(Control::decode(&bytes), Err(ControlDecodeError::Reserved { at: 5, value: 3 }));
        bytes[0] = 0;
        assert!(Control::decode(&bytes).is_err());
    }

    #[test]
    fn what_is_about_a_receive_has_one_form() {
        let number = 0x0102_0304_0506_0708;
        for (control, state) in
            [(Control::Withdraw { number }, 5), (Control::Withdrawn { number }, 6)]
        {
            let bytes = [b'P', b'R', 1, state, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
            assert_eq!(control.encode(), bytes);
            assert_eq!(Control::decode(&bytes), Ok(control));
            for at in 0..8 {
                let mut other = bytes;
                other[at] ^= 0x40;
                assert!(Control::decode(&other).is_err(), "byte {at}");
            }
        }
    }
}
