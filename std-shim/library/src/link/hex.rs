//! Bytes as hexadecimal digits.

use super::error::HandshakeError;
use super::field::Place;
use serde::{Serialize, Serializer};
use std::fmt;

/// `N` bytes; as text twice as many digits, in lower case.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hex<const N: usize>(pub(super) [u8; N]);

impl<const N: usize> Hex<N> {
    pub(super) fn read(place: &Place<'_>, expected: &'static str) -> Result<Self, HandshakeError> {
        let text = place.text()?.as_bytes();
        let mut bytes = [0; N];
        let mut pairs = text.chunks_exact(2);
        for (byte, pair) in bytes.iter_mut().zip(&mut pairs) {
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(place.wrong(expected));
            };
            *byte = high << 4 | low;
        }
        if text.len() == 2 * N { Ok(Self(bytes)) } else { Err(place.wrong(expected)) }
    }
}

/// Bytes of any number; as text twice as many digits, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HexBytes(pub Vec<u8>);

impl HexBytes {
    /// Reads no more than `most` of them.
    ///
    /// # Errors
    ///
    /// They are more, or something else.
    pub fn read(place: &Place<'_>, most: usize) -> Result<Self, HandshakeError> {
        let text = place.text()?.as_bytes();
        place.check_length(text.len(), 0, 2 * most)?;
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.chunks(2).map(byte).collect();
        bytes.map(Self).ok_or_else(|| place.wrong("pairs of hexadecimal digits, in lower case"))
    }
}

impl Serialize for HexBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: [char; 16] =
            ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
        // There may be thousands of them, and formatting one by one takes a hundred times as long.
        let digits = |byte: &u8| [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
        let text: String = self.0.iter().flat_map(digits).collect();
        serializer.serialize_str(&text)
    }
}

fn digit(byte: u8) -> Option<u8> {
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
