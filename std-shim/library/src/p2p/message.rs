//! Messages between two endpoints that re-route rails.

use super::address::QueuePairAddress;
use crate::json;
use polyrail_core::p2p::Control;
use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};
use std::fmt::{self, Write};

/// Length limit in bytes of text that is parsed as a [`P2pMessage`]. Valid messages have about 250.
pub const MAX_P2P_MESSAGE_BYTES: usize = 1024;

/// An end of a pair. An endpoint has both, or [only](super::P2pBuilder::only) one; a sending end is
/// connected with the receiving end of the other endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// The sending end.
    Sender,
    /// The receiving end.
    Receiver,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        })
    }
}

/// A message between two endpoints that [re-route rails](super::P2pBuilder::rail_failure), as plain
/// data:
///
/// ```json
/// {"control":{"from":"sender","bytes":"50520102010000000000002a00000000"}}
/// {"offer":{"place":1,"generation":1,"with":{"qpNum":291,"address":{...}}}}
/// {"answer":{"to":291,"place":1,"generation":1,"with":{"qpNum":17,"address":{...}}}}
/// {"refused":{"from":"receiver","place":1,"generation":1}}
/// {"wanted":{"place":1}}
/// ```
///
/// Parsing is strict, so both ends must use the same messages: every change of the messages also
/// changes the [version](crate::link::VERSION) of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum P2pMessage {
    /// A control message of the engine.
    #[serde(rename_all = "camelCase")]
    Control {
        /// The end that sends it.
        from: End,
        /// The message, in hexadecimal.
        #[serde(rename = "bytes", serialize_with = "hex", deserialize_with = "from_hex")]
        control: Control,
    },
    /// A new queue pair of a sender, for a place whose queue pair is Down. The receiver is to
    /// create the other end.
    #[serde(rename_all = "camelCase")]
    Offer {
        /// Index of the place.
        place: u8,
        /// Generation of the queue pair in that place.
        generation: u16,
        /// The queue pair.
        with: QueuePairAddress,
    },
    /// A receiver's queue pair that matches an offered one, and is in its place.
    #[serde(rename_all = "camelCase")]
    Answer {
        /// Number of the offered queue pair.
        to: u32,
        /// Index of the place.
        place: u8,
        /// Generation of the queue pair in that place.
        generation: u16,
        /// The queue pair.
        with: QueuePairAddress,
    },
    /// This endpoint has no queue pair that matches the peer's, and will not create one, so the
    /// peer's has no other end.
    #[serde(rename_all = "camelCase")]
    Refused {
        /// The end that refuses.
        from: End,
        /// Index of the place.
        place: u8,
        /// Generation of the queue pair in that place.
        generation: u16,
    },
    /// A port of the receiver is up again, so the sender should offer a queue pair now, instead of
    /// after its interval.
    #[serde(rename_all = "camelCase")]
    Wanted {
        /// Index of the place.
        place: u8,
    },
}

/// Text that is not a message of an endpoint that re-routes rails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message of an endpoint that re-routes rails: {reason}")]
pub struct P2pMessageError {
    /// The parser's message, with the position; printable and of limited length.
    reason: String,
}

impl P2pMessage {
    /// Parses a message, strictly.
    ///
    /// # Errors
    ///
    /// The text is not a message.
    pub fn from_json(text: &[u8]) -> Result<Self, P2pMessageError> {
        json::read(text, MAX_P2P_MESSAGE_BYTES).map_err(|reason| P2pMessageError { reason })
    }

    /// Writes the message as JSON.
    pub fn to_json(&self) -> String {
        // Numbers and strings: nothing here can fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn hex<S: Serializer>(control: &Control, serializer: S) -> Result<S::Ok, S::Error> {
    let digits = control.encode().iter().fold(String::new(), |mut text, byte| {
        // Into a string: nothing here can fail.
        _ = write!(text, "{byte:02x}");
        text
    });
    serializer.serialize_str(&digits)
}

fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Control, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = || {
        let expected = &"32 hexadecimal digits, in lower case";
        de::Error::invalid_value(de::Unexpected::Str(&text), expected)
    };
    let mut bytes = [0; Control::BYTES];
    if text.len() != 2 * bytes.len()
        || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    {
        return Err(wrong());
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
    }
    Control::decode(&bytes).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_a_place_is_read_and_written_as_documented() {
        let refused = P2pMessage::Refused { from: End::Receiver, place: 1, generation: 1 };
        let wanted = P2pMessage::Wanted { place: 1 };
        for (message, text) in [
            (refused, r#"{"refused":{"from":"receiver","place":1,"generation":1}}"#),
            (wanted, r#"{"wanted":{"place":1}}"#),
        ] {
            assert_eq!(message.to_json(), text);
            assert_eq!(P2pMessage::from_json(text.as_bytes()), Ok(message));
        }
        for text in
            [r#"{"wanted":{}}"#, r#"{"wanted":{"place":256}}"#, r#"{"wanted":{"place":1,"x":0}}"#]
        {
            assert!(P2pMessage::from_json(text.as_bytes()).is_err(), "{text}");
        }
    }
}
