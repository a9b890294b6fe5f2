//! Errors of a link and of its messages.

use super::wire::{MAX_MESSAGE_BYTES, MAX_REASON_BYTES, VERSION};
use crate::card::CardError;
use crate::heal::HealingMessageError;
use crate::p2p::P2pAddressError;
use crate::printable;
use polyrail_process::Forked;
use rustix::io::Errno;
use serde::Serialize;
use std::fmt;
use std::io;
use std::time::Duration;

/// Bytes that are not a message, or not a message that may come now.
///
/// `at` is the place in the message, such as `hello.endpoint.rails[2].mtu`. What a peer sent is
/// shown cut off, so that messages stay short, and without what a terminal would obey.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer is another program.
    #[error("the peer does not run polyrail: its first bytes are \"{start}\"")]
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
    /// The message is too long.
    #[error("a message has {length} bytes, but the limit is {MAX_MESSAGE_BYTES}")]
    TooLong {
        /// The length that its header states.
        length: u32,
    },
    /// Not JSON.
    #[error("a message is not JSON: {reason}")]
    NotJson {
        /// The JSON reader's message, with the position.
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
    #[error("{at} is missing")]
    Missing {
        /// Where it should be.
        at: String,
    },
    /// A field is there twice.
    #[error("{at} occurs twice")]
    Duplicate {
        /// Which.
        at: String,
    },
    /// The value is something else than it should be.
    #[error("{} is {value}, but must be {expected}", whole(at))]
    Kind {
        /// Where.
        at: String,
        /// What should be there.
        expected: &'static str,
        /// What is there.
        value: String,
    },
    /// Not a whole number, or out of range.
    #[error("{at} is {value}, but must be a whole number from {min} to {max}")]
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
    #[error("{at} has length {length}, but its length must be from {min} to {max}")]
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
    /// The connection card is not valid.
    #[error("{at}")]
    Card {
        /// Where it stands.
        at: String,
        /// What is wrong with it.
        source: CardError,
    },
    /// Not the address of an endpoint for messages.
    #[error("{at}")]
    P2p {
        /// Where it stands.
        at: String,
        /// What is wrong with it.
        source: P2pAddressError,
    },
    /// The peer has an endpoint of the other kind.
    #[error("the peer has an endpoint for {theirs}, and this side one for {ours}")]
    Reach {
        /// What the peer's is for.
        theirs: &'static str,
        /// What this side's is for.
        ours: &'static str,
    },
    /// Not a repair message.
    #[error("{at}")]
    Heal {
        /// Where it stands.
        at: String,
        /// What is wrong with it.
        source: HealingMessageError,
    },
    /// A message came out of turn.
    #[error("the peer sent \"{message}\", but {expected} was expected")]
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

/// A link cannot be made, or does not carry messages any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The address cannot be reached.
    #[error("cannot connect to {address}")]
    Connect {
        /// The address as it was given; of more than three addresses, the first three and the
        /// number of the others.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The address cannot be listened at.
    #[error("cannot listen at {address}")]
    Listen {
        /// The address as it was given.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// No peer connected, or none that was accepted.
    #[error("no peer connected within {waited:?}{}", match refused { Some(_) => " and was accepted; the last one was refused", None => "" })]
    NoPeer {
        /// How long was waited.
        waited: Duration,
        /// Why the last peer was refused, if any did connect.
        #[source]
        refused: Option<Box<Self>>,
    },
    /// The peer broke the protocol.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The peer gave up, for this reason.
    #[error("the peer gave up: {reason}")]
    GaveUp {
        /// Why.
        reason: Reason,
    },
    /// The peer is gone.
    #[error("the peer closed the link{}", match pending { 0 => String::new(), bytes => format!(" after {bytes} bytes of a message") })]
    HungUp {
        /// Bytes of a message that was not finished.
        pending: usize,
    },
    /// This process is a fork of the process that made the link, or the listener. Nothing was sent,
    /// and no connection accepted.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The link broke, and was not resumed.
    #[error("the link broke and was not resumed within {waited:?}")]
    NotResumed {
        /// How long was waited.
        waited: Duration,
        /// How it broke.
        source: io::Error,
    },
    /// The peer wants to resume a link that does not exist.
    #[error("the link to resume does not exist, or has ended")]
    NoSession,
    /// The peer does not begin with a proof that it knows the token.
    #[error(
        "this side has a token, but the peer sent no proof of a token: start both sides with the same token"
    )]
    TokenWanted,
    /// The peer's proof is wrong.
    #[error("the peer has another token than this side")]
    WrongToken,
    /// The peer wants to prove that it knows a token.
    #[error("the peer has a token, but this side has none: start both sides with the same token")]
    NoToken,
    /// The peer refused this side, because the two sides do not have the same token.
    #[error("the peer refused this side: {reason}")]
    TokenRefused {
        /// Why, in the words of the peer.
        reason: Reason,
    },
    /// The peer sent nothing.
    #[error("the peer did not answer within {waited:?}: it should have sent {expected}")]
    NoAnswer {
        /// What was waited for.
        expected: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// The peer began a message and did not finish it.
    #[error("the peer sent {pending} bytes of a message, but not the rest within {waited:?}")]
    Stalled {
        /// Bytes that came.
        pending: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// The peer does not take what is sent to it.
    #[error("the peer did not read a message within {waited:?}")]
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

impl LinkError {
    /// Whether this side's system has no file descriptor, buffer or memory left for the link. That
    /// is temporary, and says nothing about the peer.
    ///
    /// ```
    /// use polyrail::link::LinkError;
    ///
    /// let source = std::io::Error::from_raw_os_error(libc::EMFILE);
    /// let error = LinkError::Connect { address: "10.0.0.2:7471".into(), source };
    /// assert!(error.lacks_resources() && !LinkError::WrongToken.lacks_resources());
    /// ```
    pub fn lacks_resources(&self) -> bool {
        let (Self::Connect { source, .. } | Self::Listen { source, .. } | Self::Io { source, .. }) =
            self
        else {
            return false;
        };
        is_lack(source)
    }

    /// Whether the peer closed the link between two messages, which is no fault: a side that
    /// connects to several addresses of one listener keeps one link and closes the others. The
    /// system closes the link of a peer that was killed in the same way; only a message, such as
    /// [`Message::Done`](super::Message::Done), shows that a peer ended on purpose.
    ///
    /// ```
    /// use polyrail::link::LinkError;
    ///
    /// assert!(LinkError::HungUp { pending: 0 }.is_just_an_end());
    /// assert!(!LinkError::HungUp { pending: 5 }.is_just_an_end());
    /// ```
    pub const fn is_just_an_end(&self) -> bool {
        matches!(self, Self::HungUp { pending: 0 })
    }

    /// Whether the two sides do not have the same token: a setting differs, and trying again does
    /// not help.
    ///
    /// ```
    /// use polyrail::link::LinkError;
    ///
    /// assert!(LinkError::NoToken.is_about_token() && !LinkError::NoSession.is_about_token());
    /// ```
    pub const fn is_about_token(&self) -> bool {
        matches!(
            self,
            Self::TokenWanted | Self::WrongToken | Self::NoToken | Self::TokenRefused { .. }
        )
    }
}

/// Returns whether the system has no file descriptor, buffer or memory left.
pub(super) fn is_lack(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::NOSR];
    Errno::from_io_error(error).is_some_and(|errno| lacks.contains(&errno))
}

/// Why a side gave up, for people. No longer than [`MAX_REASON_BYTES`], and safe to print.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason(String);

impl Reason {
    /// The text of `why`, cut off if it is long; characters that are not
    /// [printable](printable::is_printable) are replaced.
    pub fn new(why: impl fmt::Display) -> Self {
        let text = printable::replaced(&why.to_string());
        Self(printable::cut(&text, MAX_REASON_BYTES).to_owned())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
