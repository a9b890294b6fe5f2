//! The names of connections, by which their links are made anew.

use super::error::HandshakeError;
use super::field::Place;
use serde::{Serialize, Serializer};
use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// The name of a connection whose link is made anew when it breaks, chosen by the side that asks: 128 bits
/// that nobody guesses who does not see the link. As text, 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Session(u128);

impl Session {
    /// One that no other connection has.
    pub fn random() -> Self {
        // Keyed hashes of the standard library, whose keys are the system's random numbers.
        let half = |number: u64| u128::from(RandomState::new().hash_one(number));
        Self(half(0) << 64 | half(1))
    }

    pub(super) fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        const DIGITS: usize = 32;
        let text = place.text()?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let number = (text.len() == DIGITS && text.bytes().all(is_digit))
            .then(|| u128::from_str_radix(text, 16).ok())
            .flatten();
        number.map(Self).ok_or_else(|| place.wrong("32 hexadecimal digits, in lower case"))
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Session {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
