//! Bytes as hexadecimal text.

use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};
use std::fmt;

/// `N` bytes; as text twice as many digits, in lower case.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hex<const N: usize>(pub(crate) [u8; N]);

impl<const N: usize> Hex<N> {
    /// Reads exactly `2 * N` digits in lower case.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let mut bytes = [0; N];
        let mut pairs = text.as_bytes().chunks_exact(2);
        for (byte, pair) in bytes.iter_mut().zip(&mut pairs) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        (text.len() == 2 * N).then_some(Self(bytes))
    }
}

/// Returns the value of a digit.
pub(crate) fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_text(&text).ok_or_else(|| {
            let wrong = de::Unexpected::Str(&text);
            de::Error::invalid_value(wrong, &"hexadecimal digits, in lower case")
        })
    }
}
