//! The messages of a link, as plain data and as the bytes that travel.

use super::error::{HandshakeError, Reason};
use super::field::{HexBytes, Place};
use super::hello::{Hello, Session};
use super::offer::Offer;
use super::purpose::{NoPurpose, Purpose};
use super::token::{Nonce, Proof};
use super::wire::{
    HEADER_BYTES, MAGIC, MAX_MESSAGE_BYTES, MAX_NOTE_BYTES, MAX_REASON_BYTES, VERSION,
};
use crate::endpoint::HealingMessage;
use crate::hex::Hex;
use crate::json::Value;
use serde::Serialize;

/// How errors name a hello that is waited for.
pub const HELLO: &str = "\"hello\"";
/// How errors name an offer that is waited for.
pub(super) const OFFER: &str = "\"offer\"";
/// How errors name the message that a side is ready.
pub const READY: &str = "\"ready\"";
/// How errors name the message that a side is done.
pub const DONE: &str = "\"done\"";

/// A message from one side to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Message<P: Purpose = NoPurpose> {
    /// Asks for a proof of the token: the first message of a side that connects with a token.
    Knock {
        /// The nonce of the side that connects.
        nonce: Nonce,
    },
    /// Answers a knock, and asks for a proof, too.
    Challenge {
        /// The nonce of the side that listens.
        nonce: Nonce,
    },
    /// Proves that its sender has the token: first the side that connects, then the other one.
    Proof {
        /// The proof for both nonces.
        proof: Proof,
    },
    /// Asks the side that listens for its [`Offer`]: sent at most once, before the hello, by the
    /// side that connected.
    Ask {},
    /// Answers [`Ask`](Self::Ask).
    Offer(Offer),
    /// Describes a side: the first message of each side after the proofs, and after the offer if
    /// there is one.
    Hello(Hello<P>),
    /// The sender's receives are posted, and its queue pairs are connected.
    Ready {},
    /// The sender is still there, and has nothing else to send.
    Alive {},
    /// A repair message between the two endpoints, if both [repair](crate::heal::Healing)
    /// rails. Those of [message endpoints](crate::p2p::HealingMessage) have other names of rails:
    /// they travel as a [`Note`](Self::Note) with the text of
    /// [`to_json`](crate::heal::HealingMessage::to_json), which
    /// [`from_json`](crate::heal::HealingMessage::from_json) reads.
    Heal(HealingMessage),
    /// Bytes of the program for the program at the other side.
    Note {
        /// At most [`MAX_NOTE_BYTES`](super::MAX_NOTE_BYTES).
        bytes: HexBytes,
    },
    /// The sender's part of the work is done.
    Done(P::Outcome),
    /// Offers this stream for an earlier link whose stream broke: the first message of the side
    /// that connects.
    Resume {
        /// The session that both hellos named.
        session: Session,
    },
    /// Answers that the stream is the link's. Each side's [`Link`](super::Link) returns this
    /// message when it has a new stream. What went over the old one may be lost, except
    /// [`Ready`](Self::Ready), [`Done`](Self::Done) and [`Failed`](Self::Failed), which are sent
    /// again.
    Resumed {},
    /// The two sides do not have the same token. Nothing follows. A [`Link`](super::Link) that
    /// receives it returns [`LinkError::TokenRefused`](super::LinkError::TokenRefused).
    Refused {
        /// Why.
        reason: Reason,
    },
    /// The sender cannot go on.
    Failed {
        /// Why.
        reason: Reason,
    },
}

impl<P: Purpose> Message<P> {
    /// Returns its name on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Knock { .. } => "knock",
            Self::Challenge { .. } => "challenge",
            Self::Proof { .. } => "proof",
            Self::Ask {} => "ask",
            Self::Offer(_) => "offer",
            Self::Hello(_) => "hello",
            Self::Ready {} => "ready",
            Self::Alive {} => "alive",
            Self::Heal(_) => "heal",
            Self::Note { .. } => "note",
            Self::Done(_) => "done",
            Self::Resume { .. } => "resume",
            Self::Resumed {} => "resumed",
            Self::Refused { .. } => "refused",
            Self::Failed { .. } => "failed",
        }
    }

    /// Returns whether its sender gives up, and sends nothing more.
    pub(super) const fn is_last(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Failed { .. })
    }

    /// Returns the error that it came in place of `expected`.
    pub fn out_of_turn(&self, expected: &'static str) -> HandshakeError {
        HandshakeError::OutOfTurn { message: self.name(), expected }
    }

    /// Returns the bytes that travel: header and JSON.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        // Numbers and strings into memory: nothing here can fail.
        _ = serde_json::to_writer(&mut bytes, self);
        let length = (bytes.len() - HEADER_BYTES) as u32;
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_be_bytes());
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    /// Reads the message at the beginning of `bytes`, and returns it with its length in bytes;
    /// `None` if it is not complete yet. Errors are returned as soon as they can be known.
    ///
    /// # Errors
    ///
    /// See [`HandshakeError`].
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, HandshakeError> {
        let start = &bytes[..bytes.len().min(MAGIC.len())];
        if !MAGIC.starts_with(start) {
            return Err(HandshakeError::not_polyrail(bytes));
        }
        let number = |at: usize| bytes.get(at..)?.first_chunk().map(|n| u32::from_be_bytes(*n));
        if let Some(peer) = number(4).filter(|version| *version != VERSION) {
            return Err(HandshakeError::Version { peer });
        }
        let Some(length) = number(8) else { return Ok(None) };
        if length > MAX_MESSAGE_BYTES {
            return Err(HandshakeError::TooLong { length });
        }
        let end = HEADER_BYTES + length as usize;
        match bytes.get(HEADER_BYTES..end) {
            Some(body) => Ok(Some((Self::from_json(body)?, end))),
            None => Ok(None),
        }
    }

    /// Reads the part of a message that follows its header.
    ///
    /// # Errors
    ///
    /// See [`HandshakeError`].
    pub fn from_json(body: &[u8]) -> Result<Self, HandshakeError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| HandshakeError::NotJson { reason: error.to_string() })?;
        let place = Place::root(&value);
        let (name, inner) = place.variant(&NAMES, "an object with one field, the message")?;
        match name {
            "knock" => Ok(Self::Knock { nonce: nonce(&inner)? }),
            "challenge" => Ok(Self::Challenge { nonce: nonce(&inner)? }),
            "proof" => Ok(Self::Proof { proof: proof(&inner)? }),
            "ask" => inner.object(&[]).map(|_| Self::Ask {}),
            "offer" => Ok(Self::Offer(Offer::read(&inner)?)),
            "hello" => Ok(Self::Hello(Hello::read(&inner)?)),
            "ready" => inner.object(&[]).map(|_| Self::Ready {}),
            "alive" => inner.object(&[]).map(|_| Self::Alive {}),
            "heal" => Ok(Self::Heal(heal(&inner)?)),
            "note" => Ok(Self::Note { bytes: note(&inner)? }),
            "done" => Ok(Self::Done(P::read_outcome(&inner)?)),
            "resume" => Ok(Self::Resume { session: session(&inner)? }),
            "resumed" => inner.object(&[]).map(|_| Self::Resumed {}),
            "refused" => Ok(Self::Refused { reason: reason(&inner)? }),
            _ => Ok(Self::Failed { reason: reason(&inner)? }),
        }
    }
}

const NAMES: [&str; 15] = [
    "knock",
    "challenge",
    "proof",
    "ask",
    "offer",
    "hello",
    "ready",
    "alive",
    "heal",
    "note",
    "done",
    "resume",
    "resumed",
    "refused",
    "failed",
];

fn nonce(place: &Place<'_>) -> Result<Nonce, HandshakeError> {
    let nonce = place.object(&["nonce"])?.field("nonce")?;
    Hex::read(&nonce, "32 hexadecimal digits, in lower case")
}

fn proof(place: &Place<'_>) -> Result<Proof, HandshakeError> {
    let proof = place.object(&["proof"])?.field("proof")?;
    Hex::read(&proof, "64 hexadecimal digits, in lower case")
}

fn note(place: &Place<'_>) -> Result<HexBytes, HandshakeError> {
    HexBytes::read(&place.object(&["bytes"])?.field("bytes")?, MAX_NOTE_BYTES)
}

fn heal(place: &Place<'_>) -> Result<HealingMessage, HandshakeError> {
    // What was read from text becomes text again: nothing here can fail.
    let text = serde_json::to_string(place.value()).unwrap_or_default();
    HealingMessage::from_json(text.as_bytes())
        .map_err(|source| HandshakeError::Heal { at: place.path(), source })
}

fn session(place: &Place<'_>) -> Result<Session, HandshakeError> {
    Session::read(&place.object(&["session"])?.field("session")?)
}

fn reason(place: &Place<'_>) -> Result<Reason, HandshakeError> {
    let place = place.object(&["reason"])?.field("reason")?;
    let text = place.text()?;
    place.check_length(text.len(), 0, MAX_REASON_BYTES)?;
    Ok(Reason::new(text))
}
