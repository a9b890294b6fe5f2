//! Repair messages between two endpoints.

use crate::endpoint::replacement::ReplacementAddress;
use crate::endpoint::replacement::{rail_name, rail_named};
use crate::json;
use polyrail_core::virtual_qp::{ControlMessage, RailId};
use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};
use std::fmt::Write;

/// Length limit in bytes of text that is parsed as a [`HealingMessage`]. Valid messages have about
/// 200.
pub const MAX_HEALING_BYTES: usize = 1024;

/// A repair message between two endpoints that [repair their rails](crate::endpoint::Healing) automatically,
/// as plain data:
///
/// ```json
/// {"control":"50520102010000000000002a00000000"}
/// {"offer":{"rail":"2","generation":1,"qpNum":291,"address":{...}}}
/// {"answer":{"to":291,"with":{"rail":"2","generation":1,"qpNum":17,"address":{...}}}}
/// {"refused":{"rail":"2","generation":1}}
/// {"wanted":{"rail":"2"}}
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum HealingMessage {
    /// A control message of the engine, in hexadecimal.
    #[serde(serialize_with = "hex", deserialize_with = "from_hex")]
    Control(ControlMessage),
    /// The sender created a queue pair for a rail that is Down. The receiver is to create a
    /// matching one.
    Offer(ReplacementAddress),
    /// The sender created a queue pair that matches an offered one, and put it in the rail's place.
    Answer {
        /// Number of the offered queue pair. It distinguishes offers of the same generation, since
        /// the channel may have lost an earlier one.
        to: u32,
        /// The matching queue pair.
        with: ReplacementAddress,
    },
    /// The sender has no queue pair that matches the receiver's, and will not create one, so the
    /// receiver's has no other end.
    Refused {
        /// The rail; `"0"` to `"7"`, or `"notify"`.
        #[serde(serialize_with = "rail_name", deserialize_with = "rail_named")]
        rail: RailId,
        /// Generation of the queue pair in the rail's place.
        generation: u16,
    },
    /// A port of the sender is up again, so the offering end should try now, instead of after its
    /// interval.
    Wanted {
        /// The rail; `"0"` to `"7"`, or `"notify"`.
        #[serde(serialize_with = "rail_name", deserialize_with = "rail_named")]
        rail: RailId,
    },
}

/// Text that is not a repair message of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a repair message of an endpoint: {reason}")]
pub struct HealingMessageError {
    /// The parser's message, with the position; printable and of limited length.
    reason: String,
}

impl HealingMessage {
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

fn hex<S: Serializer>(message: &ControlMessage, serializer: S) -> Result<S::Ok, S::Error> {
    let mut text = String::with_capacity(2 * ControlMessage::BYTES);
    for byte in message.encode() {
        // Into memory: nothing here can fail.
        _ = write!(text, "{byte:02x}");
    }
    serializer.serialize_str(&text)
}

fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ControlMessage, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = || de::Error::invalid_value(de::Unexpected::Str(&text), &"32 hexadecimal digits");
    let digits = text.as_bytes();
    let is_digit = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != 2 * ControlMessage::BYTES || !digits.iter().all(is_digit) {
        return Err(wrong());
    }
    let mut bytes = [0; ControlMessage::BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
    }
    ControlMessage::decode(&bytes).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::virtual_qp::{RailNews, ToldState};
    use quickcheck::QuickCheck;

    const ADDRESS: &str = concat!(
        r#"{"rail":"2","generation":1,"qpNum":291,"address":{"device":2,"gid":"::ffff:10.0.0.2","#,
        r#""lid":0,"mtu":4096,"psn":4711,"rdAtomic":16}}"#
    );
    const CONTROL: &str = r#"{"control":"50520102010000000000002a00000000"}"#;

    fn texts() -> [String; 5] {
        [
            CONTROL.to_owned(),
            format!(r#"{{"offer":{ADDRESS}}}"#),
            format!(r#"{{"answer":{{"to":17,"with":{ADDRESS}}}}}"#),
            r#"{"refused":{"rail":"notify","generation":65535}}"#.to_owned(),
            r#"{"wanted":{"rail":"0"}}"#.to_owned(),
        ]
    }

    #[test]
    fn each_is_read_and_written_as_documented() {
        let [control, offer, answer, refused, wanted] =
            texts().map(|text| HealingMessage::from_json(text.as_bytes()).unwrap());
        let rail = RailId::Data(1);
        let state = ToldState::Fenced;
        let news = RailNews { rail, generation: 0, state, arrived: 42, previous_arrived: 0 };
        assert_eq!(control, HealingMessage::Control(ControlMessage::Rail(news)));
        let address: ReplacementAddress = serde_json::from_str(ADDRESS).unwrap();
        assert_eq!(offer, HealingMessage::Offer(address));
        assert_eq!(answer, HealingMessage::Answer { to: 17, with: address });
        let generation = 65535;
        assert_eq!(refused, HealingMessage::Refused { rail: RailId::Notify, generation });
        assert_eq!(wanted, HealingMessage::Wanted { rail: RailId::Data(0) });
        for text in texts() {
            let message = HealingMessage::from_json(text.as_bytes()).unwrap();
            assert_eq!(message.to_json(), text);
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let [control, offer, answer, refused, wanted] = texts();
        for (text, good, bad) in [
            (&control, "2a00000000", "2a000000"),
            (&control, "2a00000000", "2A00000000"),
            (&control, "2a00000000", "2ä0000000"),
            (&control, "505201", "505202"),
            (&control, "control", "controls"),
            (&control, "{", "[{"),
            (&control, "}", r#","refused":{"rail":"1","generation":1}}"#),
            (&offer, r#""rail":"2""#, r#""rail":"9""#),
            (&offer, r#""rail":"2","#, ""),
            (&refused, "65535", "65536"),
            (&answer, r#""to":17,"#, ""),
            (&answer, r#""to":17"#, r#""to":4294967296"#),
            (&wanted, r#""0""#, "0"),
            (&refused, r#""generation""#, r#""x":0,"generation""#),
        ] {
            let text = text.replacen(good, bad, 1);
            let error = HealingMessage::from_json(text.as_bytes()).unwrap_err();
            assert!(error.to_string().len() < 300, "{error}");
        }
        let long = format!("{CONTROL}{}", " ".repeat(MAX_HEALING_BYTES));
        assert!(HealingMessage::from_json(long.as_bytes()).is_err());
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        fn mutated(which: usize, at: usize, byte: u8) -> bool {
            let mut text = texts()[which % 5].clone().into_bytes();
            let length = text.len();
            text[at % length] = byte;
            let read = HealingMessage::from_json(&text);
            read.is_ok() || read.unwrap_err().to_string().len() < 300
        }
        QuickCheck::new().tests(5000).quickcheck(mutated as fn(usize, usize, u8) -> bool);
    }
}
