//! Incoming bytes become messages, in the order of the protocol. No I/O, no clock.

use super::error::HandshakeError;
use super::message::Message;
use super::purpose::{NoPurpose, Purpose};
use super::wire::{HEADER_BYTES, MAX_MESSAGE_BYTES};
use std::marker::PhantomData;
use std::mem;

/// Bytes of the longest message with its header.
const MAX_FRAME_BYTES: usize = HEADER_BYTES + MAX_MESSAGE_BYTES as usize;

/// The receiving half of a link: a bounded buffer, and which message may come next.
///
/// Put bytes into [`room`](Self::room), pass their number to [`filled`](Self::filled), and take
/// messages out with [`next_message`](Self::next_message) until there are none. After an error
/// nothing that follows can be understood.
///
/// ```
/// use polyrail::link::{HandshakeError, Incoming};
///
/// let mut incoming: Incoming = Incoming::new();
/// incoming.room()[..4].copy_from_slice(b"GET ");
/// incoming.filled(4);
/// let start = "GET ".into();
/// assert_eq!(incoming.next_message(), Err(HandshakeError::NotPolyrail { start }));
/// ```
#[derive(Debug)]
pub struct Incoming<P = NoPurpose> {
    buffer: Box<[u8]>,
    /// Bytes of the buffer that are not taken yet.
    pending: usize,
    turn: Turn,
    /// The peer may repeat "ready" and "done" over this stream. Each came over an earlier one, and
    /// is dropped once: a peer that could repeat it without a limit could keep
    /// [`next_message`](Self::next_message) busy without end.
    may_repeat_ready: bool,
    may_repeat_done: bool,
    purpose: PhantomData<fn() -> P>,
}

/// What comes next. A side may give up at any time, and then sends nothing more.
///
/// ```text
/// Hello --> Ready --> Done --> Nothing     (alive, note: still Done; heal: still Done, still Nothing)
///  |  ^ \-->Asked --> Ready   (ask or offer, and then the hello)
///  |  ^--Proof   (knock or challenge, and then the proof)
///    \--------\--------\---------\--> Over      (failed; in place of hello or proof also refused)
///     \--> Joining     (resume, resumed: a new stream for an earlier link, which takes over)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Hello,
    Proof,
    Asked,
    Ready,
    Done,
    Nothing,
    Over,
    Joining,
}

impl Turn {
    /// What may come besides "failed".
    const fn expected(self) -> &'static str {
        match self {
            Self::Hello | Self::Asked => "\"hello\"",
            Self::Proof => "\"proof\"",
            Self::Ready => "\"ready\"",
            Self::Done => "\"done\"",
            Self::Nothing | Self::Over | Self::Joining => "nothing more",
        }
    }

    /// The turn after a message.
    fn after<P: Purpose>(self, message: &Message<P>) -> Result<Self, HandshakeError> {
        match (self, message) {
            (Self::Hello, Message::Knock { .. } | Message::Challenge { .. }) => Ok(Self::Proof),
            (Self::Proof, Message::Proof { .. }) => Ok(Self::Hello),
            (Self::Hello | Self::Proof, Message::Refused { .. }) => Ok(Self::Over),
            (Self::Hello, Message::Ask {} | Message::Offer(_)) => Ok(Self::Asked),
            (Self::Hello | Self::Asked, Message::Hello(_)) => Ok(Self::Ready),
            (Self::Hello, Message::Resume { .. } | Message::Resumed {}) => Ok(Self::Joining),
            (Self::Joining | Self::Proof | Self::Asked, Message::Failed { .. }) => Ok(Self::Over),
            (Self::Ready, Message::Ready {}) => Ok(Self::Done),
            (Self::Done, Message::Alive {} | Message::Note { .. }) => Ok(Self::Done),
            // What the other side is not done with may depend on rails that this one has to heal.
            (Self::Done | Self::Nothing, Message::Heal(_)) => Ok(self),
            (Self::Done, Message::Done(_)) => Ok(Self::Nothing),
            (Self::Hello | Self::Ready | Self::Done | Self::Nothing, Message::Failed { .. }) => {
                Ok(Self::Over)
            }
            _ => Err(message.out_of_turn(self.expected())),
        }
    }
}

impl<P: Purpose> Default for Incoming<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Purpose> Incoming<P> {
    /// Nothing has come yet.
    pub fn new() -> Self {
        Self {
            buffer: vec![0; MAX_FRAME_BYTES].into(),
            pending: 0,
            turn: Turn::Hello,
            may_repeat_ready: false,
            may_repeat_done: false,
            purpose: PhantomData,
        }
    }

    /// Continues with the bytes of a new stream, which begin with these. The order of messages goes
    /// on, except that the peer may repeat once what may have been lost.
    pub(super) fn go_on(&mut self, unread: &[u8]) {
        let unread = &unread[..unread.len().min(self.buffer.len())];
        self.buffer[..unread.len()].copy_from_slice(unread);
        self.pending = unread.len();
        self.may_repeat_ready = matches!(self.turn, Turn::Done | Turn::Nothing);
        self.may_repeat_done = self.turn == Turn::Nothing;
    }

    /// Returns the bytes that came and were not taken.
    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[..self.pending]
    }

    /// Returns whether the peer gave up.
    pub(super) fn is_over(&self) -> bool {
        self.turn == Turn::Over
    }

    /// Takes note of a message that the peer may repeat. Returns whether the message is that: it
    /// came over an earlier stream.
    fn note_repeated(&mut self, message: &Message<P>) -> bool {
        match message {
            Message::Ready {} => mem::take(&mut self.may_repeat_ready),
            Message::Done(_) => mem::take(&mut self.may_repeat_done),
            _ => false,
        }
    }

    /// Returns the free space of the buffer, to be filled with the next received bytes. It is
    /// empty only while complete messages wait to be taken.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.pending..]
    }

    /// Takes note that the first `bytes` of [`room`](Self::room) were filled.
    pub fn filled(&mut self, bytes: usize) {
        self.pending = (self.pending + bytes).min(self.buffer.len());
    }

    /// Bytes that came and are not taken: the beginning of a message, unless some wait.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Takes the next message; `None` if there is none yet.
    ///
    /// # Errors
    ///
    /// The bytes are not a message, or not a message that may come now.
    pub fn next_message(&mut self) -> Result<Option<Message<P>>, HandshakeError> {
        while let Some((message, bytes)) = Message::decode(&self.buffer[..self.pending])? {
            let is_repeated = self.note_repeated(&message);
            if !is_repeated {
                self.turn = self.turn.after(&message)?;
            }
            self.buffer.copy_within(bytes..self.pending, 0);
            self.pending -= bytes;
            if !is_repeated {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }
}
