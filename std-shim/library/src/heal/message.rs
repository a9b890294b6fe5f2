//! Repair messages between two endpoints.

use crate::json;
use crate::queue_pair::{RailAddress, rail_address};
use polyrail_core::virtual_qp::{ControlMessage, MAX_RAILS, RailId};
use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};
use std::fmt::{Debug, Write};

/// Length limit in bytes of text that is parsed as a [`HealingMessage`]. Valid messages have about
/// 200.
pub const MAX_HEALING_BYTES: usize = 1024;

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// How the two ends of a connection name the queue pairs that they repair: a [`RailId`] if they
/// carry requests, a [`QueuePairId`](crate::p2p::QueuePairId) if they carry messages.
pub trait RailName: Copy + Debug + Eq + Send + Sync + sealed::Sealed + 'static {
    /// A control message of the engine.
    type Control: Copy + Debug + Eq + Send + Sync;

    /// The control message that reports that this end has failed. `None` if ends report that
    /// separately.
    const FAILED: Option<Self::Control>;

    /// Returns the name as text.
    fn to_text(self) -> String;

    /// Parses a name.
    fn from_text(text: &str) -> Option<Self>;

    /// Writes a control message as text.
    fn control_to_text(control: &Self::Control) -> String;

    /// Parses a control message.
    ///
    /// # Errors
    ///
    /// What was expected instead.
    fn control_from_text(text: &str) -> Result<Self::Control, String>;
}

/// A repair message between two endpoints that [repair their rails](super::Healing) automatically,
/// as plain data:
///
/// ```json
/// {"control":"50520102010000000000002a00000000"}
/// {"offer":{"rail":"2","generation":1,"qpNum":291,"address":{...}}}
/// {"answer":{"to":291,"with":{"rail":"2","generation":1,"qpNum":17,"address":{...}}}}
/// {"refused":{"rail":"2","generation":1}}
/// {"wanted":{"rail":"2"}}
/// ```
///
/// Rails of endpoints that carry requests are `"0"` to `"7"` and `"notify"`. Endpoints that carry
/// messages name a queue pair and the end that it belongs to at the sender of the message, such as
/// `"sender 3"`, and put the end before a control message: `"receiver 50520102..."`.
///
/// Parsing is strict, so both ends must use the same messages: every change of the messages also
/// changes the [version](crate::link::VERSION) of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[serde(bound = "R: RailName")]
pub enum HealingMessage<R: RailName> {
    /// A control message of the engine, in hexadecimal.
    #[serde(serialize_with = "control_text::<R, _>", deserialize_with = "control::<R, _>")]
    Control(R::Control),
    /// The sender created a queue pair for a rail that is Down. The receiver is to create a
    /// matching one.
    Offer(ReplacementAddress<R>),
    /// The sender created a queue pair that matches an offered one, and put it in the rail's place.
    Answer {
        /// Number of the offered queue pair. It distinguishes offers of the same generation, since
        /// the channel may have lost an earlier one.
        to: u32,
        /// The matching queue pair.
        with: ReplacementAddress<R>,
    },
    /// The sender has no queue pair that matches the receiver's, and will not create one, so the
    /// receiver's has no other end.
    Refused {
        /// The rail.
        #[serde(serialize_with = "rail_text", deserialize_with = "rail")]
        rail: R,
        /// Generation of the queue pair in the rail's place.
        generation: u16,
    },
    /// A port of the sender is up again, so the offering end should try now, instead of after its
    /// interval.
    Wanted {
        /// The rail.
        #[serde(serialize_with = "rail_text", deserialize_with = "rail")]
        rail: R,
    },
}

/// The data that a peer needs to connect to a queue pair that replaces a failed one, as it travels
/// in a [`HealingMessage`]:
///
/// ```json
/// {"rail":"2","generation":1,"qpNum":291,
///  "address":{"device":2,"gid":"::ffff:10.0.0.2","lid":0,"mtu":4096,"psn":4711,"rdAtomic":16}}
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[serde(bound = "R: RailName")]
pub struct ReplacementAddress<R: RailName> {
    /// The rail.
    #[serde(serialize_with = "rail_text", deserialize_with = "rail")]
    pub rail: R,
    /// Generation of the queue pair in the rail's place; the first was 0.
    pub generation: u16,
    /// The queue pair's number.
    pub qp_num: u32,
    /// Its address.
    #[serde(deserialize_with = "rail_address")]
    pub address: RailAddress,
}

/// Text that is not a repair message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a repair message of an endpoint: {reason}")]
pub struct HealingMessageError {
    /// The parser's message, with the position; printable and of limited length.
    reason: String,
}

impl<R: RailName> HealingMessage<R> {
    /// Parses a message, strictly.
    ///
    /// # Errors
    ///
    /// The text is not a message.
    pub fn from_json(text: &[u8]) -> Result<Self, HealingMessageError> {
        json::read(text, MAX_HEALING_BYTES).map_err(|reason| HealingMessageError { reason })
    }

    /// Writes the message as JSON.
    pub fn to_json(&self) -> String {
        // Numbers and strings: nothing here can fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn rail_text<R: RailName, S: Serializer>(rail: &R, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&rail.to_text())
}

fn rail<'de, R: RailName, D: Deserializer<'de>>(deserializer: D) -> Result<R, D::Error> {
    let text = String::deserialize(deserializer)?;
    R::from_text(&text)
        .ok_or_else(|| de::Error::invalid_value(de::Unexpected::Str(&text), &"a rail"))
}

fn control_text<R: RailName, S: Serializer>(
    control: &R::Control,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&R::control_to_text(control))
}

fn control<'de, R: RailName, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<R::Control, D::Error> {
    let text = String::deserialize(deserializer)?;
    R::control_from_text(&text).map_err(|expected| {
        de::Error::invalid_value(de::Unexpected::Str(&text), &expected.as_str())
    })
}

/// Writes bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Into a string: nothing here can fail.
        _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads bytes in hexadecimal, in lower case; `None` if the text has another length or other
/// characters.
pub(crate) fn bytes<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 2 * BYTES || !text.bytes().all(is_digit) {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

const NOTIFY: &str = "notify";

impl sealed::Sealed for RailId {}

impl RailName for RailId {
    type Control = ControlMessage;

    const FAILED: Option<ControlMessage> = Some(ControlMessage::Error);

    fn to_text(self) -> String {
        match self {
            Self::Data(number) => number.to_string(),
            Self::Notify => NOTIFY.to_owned(),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut rails = (0..MAX_RAILS as u8).map(Self::Data).chain([Self::Notify]);
        rails.find(|rail| rail.to_text() == text)
    }

    fn control_to_text(control: &ControlMessage) -> String {
        hex(&control.encode())
    }

    fn control_from_text(text: &str) -> Result<ControlMessage, String> {
        let bytes = bytes(text).ok_or("32 hexadecimal digits")?;
        ControlMessage::decode(&bytes).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests;
