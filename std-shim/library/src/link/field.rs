//! Walking through a message. Every step checks the value, and its errors name the place.

use super::error::HandshakeError;
use crate::hex::{Hex, digit};
use crate::json::Value;
use serde::{Serialize, Serializer};

/// A value of a message, and the way to it.
#[derive(Debug)]
pub struct Place<'v> {
    /// Such as `hello.endpoint.rails[2].mtu`; empty for the whole message.
    path: String,
    value: &'v Value,
}

/// An object whose fields have known names, each there at most once.
#[derive(Debug)]
pub struct Object<'v> {
    path: String,
    fields: &'v [(String, Value)],
}

impl<'v> Place<'v> {
    /// The whole message.
    pub(super) fn root(value: &'v Value) -> Self {
        Self { path: String::new(), value }
    }

    pub(super) fn path(&self) -> String {
        self.path.clone()
    }

    pub(super) fn value(&self) -> &'v Value {
        self.value
    }

    /// The object here, which has no other fields than these.
    ///
    /// # Errors
    ///
    /// It is something else, or has other fields, or one of them twice.
    pub fn object(&self, known: &[&str]) -> Result<Object<'v>, HandshakeError> {
        let Value::Object(fields) = self.value else { return Err(self.wrong("an object")) };
        for (index, (name, _)) in fields.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let name = Value::Text(name.clone()).shown();
                return Err(HandshakeError::Unknown { at: self.path(), name });
            }
            if fields[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(HandshakeError::Duplicate { at: below(&self.path, name) });
            }
        }
        Ok(Object { path: self.path(), fields })
    }

    /// The name and the value of the only field of the object here; the name is one of `known`.
    ///
    /// # Errors
    ///
    /// It is something else; the error names what is `expected`.
    pub fn variant(
        &self,
        known: &[&str],
        expected: &'static str,
    ) -> Result<(&'v str, Place<'v>), HandshakeError> {
        let object = self.object(known)?;
        let [(name, value)] = object.fields else { return Err(self.wrong(expected)) };
        Ok((name, Place { path: below(&self.path, name), value }))
    }

    /// The entries of the list here, `min` to `max` of them.
    ///
    /// # Errors
    ///
    /// It is something else, or there are more or fewer.
    pub fn list(&self, min: usize, max: usize) -> Result<Vec<Place<'v>>, HandshakeError> {
        let Value::List(entries) = self.value else { return Err(self.wrong("a list")) };
        self.check_length(entries.len(), min, max)?;
        let entry = |(index, value)| Place { path: format!("{}[{index}]", self.path), value };
        Ok(entries.iter().enumerate().map(entry).collect())
    }

    /// The whole number here, from `min` to `max`.
    ///
    /// # Errors
    ///
    /// It is something else, or out of range.
    pub fn number(&self, min: u64, max: u64) -> Result<u64, HandshakeError> {
        let Value::Number(number) = self.value else { return Err(self.wrong("a number")) };
        number.as_u64().filter(|number| (min..=max).contains(number)).ok_or_else(|| {
            HandshakeError::Number { at: self.path(), value: self.value.shown(), min, max }
        })
    }

    /// The string here.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn text(&self) -> Result<&'v str, HandshakeError> {
        match self.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong("a string")),
        }
    }

    /// The truth value here.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn flag(&self) -> Result<bool, HandshakeError> {
        match self.value {
            Value::Bool(flag) => Ok(*flag),
            _ => Err(self.wrong("true or false")),
        }
    }

    pub(super) fn check_length(
        &self,
        length: usize,
        min: usize,
        max: usize,
    ) -> Result<(), HandshakeError> {
        if (min..=max).contains(&length) {
            return Ok(());
        }
        Err(HandshakeError::Length { at: self.path(), length, min, max })
    }

    /// The error for something other than `expected` here.
    pub fn wrong(&self, expected: &'static str) -> HandshakeError {
        HandshakeError::Kind { at: self.path(), expected, value: self.value.shown() }
    }
}

impl<'v> Object<'v> {
    /// A field, if it is there.
    pub fn optional(&self, name: &str) -> Option<Place<'v>> {
        let (_, value) = self.fields.iter().find(|(found, _)| found == name)?;
        Some(Place { path: below(&self.path, name), value })
    }

    /// A field.
    ///
    /// # Errors
    ///
    /// It is not there.
    pub fn field(&self, name: &str) -> Result<Place<'v>, HandshakeError> {
        self.optional(name).ok_or_else(|| HandshakeError::Missing { at: below(&self.path, name) })
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

impl<const N: usize> Hex<N> {
    pub(super) fn read(place: &Place<'_>, expected: &'static str) -> Result<Self, HandshakeError> {
        Self::from_text(place.text()?).ok_or_else(|| place.wrong(expected))
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
