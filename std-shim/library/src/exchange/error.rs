//! What can go wrong between two processes before, and beside, the rails.

use super::reason::Reason;
use super::wire::{MAX_MESSAGE_BYTES, VERSION};
use crate::card::CardError;
use std::io;
use std::time::Duration;

/// Bytes that are no message, or not the one whose turn it is.
///
/// `at` says where in the message, such as `hello.endpoint.rails[2].mtu`. What a peer sent is shown
/// cut off, so that messages stay short, and without what a terminal would obey.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer is some other program.
    #[error("the peer is no polyrail: what it sends begins with \"{start}\"")]
    NotPolyrail {
        /// The first bytes, escaped.
        start: String,
    },
    /// The peer speaks another version.
    #[error("the peer speaks version {peer} of the protocol, this side version {VERSION}")]
    Version {
        /// The peer's.
        peer: u32,
    },
    /// No message is that long.
    #[error("a message of {length} bytes, where at most {MAX_MESSAGE_BYTES} are read")]
    TooLong {
        /// The length that its header states.
        length: u32,
    },
    /// Not JSON.
    #[error("a message is no JSON: {reason}")]
    NotJson {
        /// What the JSON reader says, and where.
        reason: String,
    },
    /// A field that this version does not know.
    #[error("unknown field {name} in {}", whole(at))]
    Unknown {
        /// The object that it is in.
        at: String,
        /// Its name.
        name: String,
    },
    /// A field is not there.
    #[error("there is no {at}")]
    Missing {
        /// Where it should be.
        at: String,
    },
    /// A field is there twice.
    #[error("{at} is there twice")]
    Duplicate {
        /// Which.
        at: String,
    },
    /// Something else stands there than should.
    #[error("{} is {value}, and should be {expected}", whole(at))]
    Kind {
        /// Where.
        at: String,
        /// What should be there.
        expected: &'static str,
        /// What is there.
        value: String,
    },
    /// Not a whole number, or out of range.
    #[error("{at} is {value}: a whole number from {min} to {max} can be")]
    Number {
        /// Which.
        at: String,
        /// What it is.
        value: String,
        /// The least that it can be.
        min: u64,
        /// The most that it can be.
        max: u64,
    },
    /// A list or a text that is too short or too long.
    #[error("{at} has a length of {length}: {min} to {max} can be")]
    Length {
        /// Which.
        at: String,
        /// Entries of the list, or bytes of the text.
        length: usize,
        /// The least that can be.
        min: usize,
        /// The most that can be.
        max: usize,
    },
    /// The connection card is none.
    #[error("{at}")]
    Card {
        /// Where it stands.
        at: String,
        /// What is wrong with it.
        source: CardError,
    },
    /// A message came that has no place there.
    #[error("the peer said \"{message}\" where {expected} should come")]
    OutOfTurn {
        /// The message's name.
        message: &'static str,
        /// What should have come.
        expected: &'static str,
    },
}

impl HandshakeError {
    pub(super) fn not_polyrail(bytes: &[u8]) -> Self {
        const SHOWN: usize = 16;
        Self::NotPolyrail { start: bytes[..bytes.len().min(SHOWN)].escape_ascii().to_string() }
    }
}

fn whole(at: &str) -> &str {
    if at.is_empty() { "the message" } else { at }
}

/// A control connection cannot be made, or does not carry messages any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Nobody could be reached there.
    #[error("cannot connect to {address}")]
    Connect {
        /// The address as it was given.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Nobody can be waited for there.
    #[error("cannot listen at {address}")]
    Listen {
        /// The address as it was given.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Nobody connected.
    #[error("nobody connected within {waited:?}")]
    Nobody {
        /// How long was waited.
        waited: Duration,
    },
    /// The peer broke the protocol.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The peer gave up, for this reason.
    #[error("the other side gave up: {reason}")]
    GaveUp {
        /// Why.
        reason: Reason,
    },
    /// The peer is gone.
    #[error("the other side hung up{}", match pending { 0 => String::new(), bytes => format!(" after {bytes} bytes of a message") })]
    HungUp {
        /// Bytes of a message that was not finished.
        pending: usize,
    },
    /// The peer said nothing.
    #[error("the other side did not answer within {waited:?}: it should have said {expected}")]
    NoAnswer {
        /// What was waited for.
        expected: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// The peer began a message and did not finish it.
    #[error("the other side stopped after {pending} bytes of a message: no end within {waited:?}")]
    Stalled {
        /// Bytes that came.
        pending: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// The peer does not take what is sent to it.
    #[error("the other side does not listen: a message was not taken within {waited:?}")]
    Deaf {
        /// How long was waited.
        waited: Duration,
    },
    /// The system refused.
    #[error("{doing}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}
