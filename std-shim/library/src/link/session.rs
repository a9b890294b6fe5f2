//! The names of connections, by which their links are made anew.

use super::error::HandshakeError;
use super::field::Place;
use super::hex::Hex;
use super::token::random;
use serde::Serialize;
use std::fmt;

/// The name of a connection whose link is made anew when it breaks, chosen by the side that asks: 128 bits
/// that nobody guesses who does not see the link. As text, 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Session(Hex<16>);

impl Session {
    /// One that no other connection has.
    pub fn random() -> Self {
        Self(random())
    }

    pub(super) fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        Hex::read(place, "32 hexadecimal digits, in lower case").map(Self)
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
