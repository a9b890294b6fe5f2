//! What one side tells the other, as plain data and as the bytes that travel.

use super::error::{HandshakeError, Reason};
use super::field::{Hex, HexBytes, Place};
use super::hello::{Hello, Session};
use super::purpose::{NoPurpose, Purpose};
use super::token::{Nonce, Proof};
use super::wire::{
    HEADER_BYTES, MAGIC, MAX_MESSAGE_BYTES, MAX_NOTE_BYTES, MAX_REASON_BYTES, VERSION,
};
use crate::endpoint::HealingMessage;
use crate::json::Value;
use serde::Serialize;

/// How errors name a hello that is waited for.
pub const HELLO: &str = "\"hello\"";
/// How errors name the message that a side is ready.
pub const READY: &str = "\"ready\"";
/// How errors name the message that a side is done.
pub const DONE: &str = "\"done\"";

/// What one side tells the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Message<P: Purpose = NoPurpose> {
    /// I know a token; ask me. Where sides have one, the first message of the side that connects.
    Knock {
        /// Of the side that connects.
        nonce: Nonce,
    },
    /// The answer: prove it.
    Challenge {
        /// Of the side that listens.
        nonce: Nonce,
    },
    /// I do; first from the side that connects, and then from the other one.
    Proof {
        /// For both nonces.
        proof: Proof,
    },
    /// Who I am; the first message either way, but for those about tokens.
    Hello(Hello<P>),
    /// My receives are posted and my queue pairs are connected.
    Ready {},
    /// I have nothing to say, but I am still there.
    Alive {},
    /// What my endpoint tells the peer's, if both [heal](crate::endpoint::Healing) by themselves.
    Heal(HealingMessage),
    /// What the program here tells the other one, whatever it means to them.
    Note {
        /// No more than [`MAX_NOTE_BYTES`](super::MAX_NOTE_BYTES).
        bytes: HexBytes,
    },
    /// All of it moved, as far as I am concerned.
    Done(P::Outcome),
    /// The link of an earlier connection broke, and this is to be its new one: the first message of the side that
    /// connects.
    Resume {
        /// The connection, as both hellos named it.
        session: Session,
    },
    /// It is; the answer. To either side its own [`Link`](super::Link) says so: what went over the old link may be
    /// lost, but for [`Ready`](Self::Ready), [`Done`](Self::Done) and [`Failed`](Self::Failed), which are said again.
    Resumed {},
    /// I cannot go on.
    Failed {
        /// Why.
        reason: Reason,
    },
}

impl<P: Purpose> Message<P> {
    /// Its name on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Knock { .. } => "knock",
            Self::Challenge { .. } => "challenge",
            Self::Proof { .. } => "proof",
            Self::Hello(_) => "hello",
            Self::Ready {} => "ready",
            Self::Alive {} => "alive",
            Self::Heal(_) => "heal",
            Self::Note { .. } => "note",
            Self::Done(_) => "done",
            Self::Resume { .. } => "resume",
            Self::Resumed {} => "resumed",
            Self::Failed { .. } => "failed",
        }
    }

    /// The error that it came instead of `expected`.
    pub fn out_of_turn(&self, expected: &'static str) -> HandshakeError {
        HandshakeError::OutOfTurn { message: self.name(), expected }
    }

    /// The bytes that travel: header and JSON.
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

    /// Reads the message at the beginning of `bytes`, and returns it with its length in bytes; `None`
    /// if it is not complete yet. Errors are returned as soon as they can be known.
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
            "hello" => Ok(Self::Hello(Hello::read(&inner)?)),
            "ready" => inner.object(&[]).map(|_| Self::Ready {}),
            "alive" => inner.object(&[]).map(|_| Self::Alive {}),
            "heal" => Ok(Self::Heal(heal(&inner)?)),
            "note" => Ok(Self::Note { bytes: note(&inner)? }),
            "done" => Ok(Self::Done(P::read_outcome(&inner)?)),
            "resume" => Ok(Self::Resume { session: session(&inner)? }),
            "resumed" => inner.object(&[]).map(|_| Self::Resumed {}),
            _ => Ok(Self::Failed { reason: reason(&inner)? }),
        }
    }
}

const NAMES: [&str; 12] = [
    "knock",
    "challenge",
    "proof",
    "hello",
    "ready",
    "alive",
    "heal",
    "note",
    "done",
    "resume",
    "resumed",
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
