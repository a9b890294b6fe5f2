//! The names and control messages by which two message endpoints repair their queue pairs.

use super::sizes::QUEUE_PAIRS;
use crate::heal::{RailName, bytes, hex, sealed};
use polyrail_core::p2p::Control;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An end of a pair. An endpoint has both, or [only](super::P2pBuilder::only) one; a sending end is
/// connected with the receiving end of the other endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// The sending end.
    Sender,
    /// The receiving end.
    Receiver,
}

impl End {
    const fn name(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }

    /// The end of the peer that this end is connected with.
    pub(super) const fn of_peer(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }

    /// Splits text that begins with the name of an end and a space.
    fn split(text: &str) -> Option<(Self, &str)> {
        let (name, rest) = text.split_once(' ')?;
        let end = [Self::Sender, Self::Receiver].into_iter().find(|end| end.name() == name)?;
        Some((end, rest))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A queue pair of a message endpoint, and its replacements. In a [repair
/// message](super::HealingMessage) it is a queue pair of the endpoint that sends the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueuePairId {
    /// The end that it belongs to.
    pub end: End,
    /// Its index there.
    pub index: u8,
}

impl QueuePairId {
    /// Returns its place among the queue pairs that an endpoint can have: those of the sending end
    /// come first.
    pub(super) fn place(self) -> Option<usize> {
        let index = Some(usize::from(self.index)).filter(|index| *index < QUEUE_PAIRS)?;
        Some(match self.end {
            End::Sender => index,
            End::Receiver => QUEUE_PAIRS + index,
        })
    }
}

/// A control message of one end of a message endpoint, for the end of the peer that it is connected
/// with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndControl {
    /// The end that sends it.
    pub from: End,
    /// The message.
    pub control: Control,
}

/// A [repair message](crate::heal::HealingMessage) of a message endpoint.
pub type HealingMessage = crate::heal::HealingMessage<QueuePairId>;
/// The [repair messages](crate::heal::HealingLink) of a message endpoint, and of its peer.
pub type HealingLink = crate::heal::HealingLink<QueuePairId>;
/// A queue pair that replaces a failed one, in a [repair
/// message](crate::heal::ReplacementAddress).
pub type ReplacementAddress = crate::heal::ReplacementAddress<QueuePairId>;
/// The message endpoint was not polled for long, or the peer sends too many messages: see
/// [`heal`](crate::heal::NotHandled).
pub type NotHandled = crate::heal::NotHandled<QueuePairId>;

impl sealed::Sealed for QueuePairId {}

impl RailName for QueuePairId {
    type Control = EndControl;

    /// An endpoint that is dropped while it is connected reports nothing: its owner fails it first.
    const FAILED: Option<EndControl> = None;

    fn to_text(self) -> String {
        format!("{} {}", self.end, self.index)
    }

    fn from_text(text: &str) -> Option<Self> {
        let (end, index) = End::split(text)?;
        let index: u8 = index.parse().ok()?;
        Some(Self { end, index }).filter(|rail| rail.to_text() == text)
    }

    fn control_to_text(EndControl { from, control }: &EndControl) -> String {
        format!("{from} {}", hex(&control.encode()))
    }

    fn control_from_text(text: &str) -> Result<EndControl, String> {
        let (from, digits) = End::split(text).ok_or("an end and a control message")?;
        let bytes = bytes(digits).ok_or("32 hexadecimal digits behind the end")?;
        let control = Control::decode(&bytes).map_err(|error| error.to_string())?;
        Ok(EndControl { from, control })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_a_queue_pair_is_read_and_written_as_documented() {
        let rail = QueuePairId { end: End::Receiver, index: 1 };
        let control = r#"{"control":"sender 50520102010000000000002a00000000"}"#;
        for (message, text) in [
            (
                HealingMessage::Refused { rail, generation: 1 },
                r#"{"refused":{"rail":"receiver 1","generation":1}}"#,
            ),
            (HealingMessage::Wanted { rail }, r#"{"wanted":{"rail":"receiver 1"}}"#),
            (HealingMessage::from_json(control.as_bytes()).unwrap(), control),
        ] {
            assert_eq!(message.to_json(), text);
            assert_eq!(HealingMessage::from_json(text.as_bytes()), Ok(message));
        }
        for text in [
            r#"{"wanted":{}}"#,
            r#"{"wanted":{"rail":"1"}}"#,
            r#"{"wanted":{"rail":"sender"}}"#,
            r#"{"wanted":{"rail":"sender 256"}}"#,
            r#"{"wanted":{"rail":"sender 01"}}"#,
            r#"{"wanted":{"rail":"sender +1"}}"#,
            r#"{"wanted":{"rail":"sender 1","x":0}}"#,
            r#"{"control":"50520102010000000000002a00000000"}"#,
            r#"{"control":"sender 50520102010000000000002A00000000"}"#,
            r#"{"control":"sender 505201020100000000"}"#,
        ] {
            assert!(HealingMessage::from_json(text.as_bytes()).is_err(), "{text}");
        }
    }
}
