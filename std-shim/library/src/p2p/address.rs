//! The data that a peer needs to connect to a message endpoint.

use crate::json;
use crate::queue_pair::{RailAddress, rail_address};
use polyrail_core::p2p::{EntryForm, Ports, ReceiverCard, RemoteMemory, SenderCard};
use polyrail_core::virtual_qp::MAX_RAILS;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Length limit in bytes of text that is parsed as a [`P2pAddress`]. The longest valid ones have
/// about 6,000.
pub const MAX_ADDRESS_BYTES: usize = 16 << 10;

/// The data that a peer needs to connect: for each direction, the engine's card and the addresses
/// of the queue pairs. A parsed address has at least one end, and no queue pairs of an end that it
/// lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "Fields")]
pub struct P2pAddress {
    /// The sending end, for the peer's receiving end; `None` if the endpoint
    /// [only](super::P2pBuilder::only) receives.
    #[serde(with = "sender", skip_serializing_if = "Option::is_none")]
    pub sender: Option<SenderCard>,
    /// Queue pairs of the sending end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sending: Vec<QueuePairAddress>,
    /// The receiving end, for the peer's sending end; `None` if the endpoint only sends.
    #[serde(with = "receiver", skip_serializing_if = "Option::is_none")]
    pub receiver: Option<ReceiverCard>,
    /// Queue pairs of the receiving end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub receiving: Vec<QueuePairAddress>,
}

/// A [`P2pAddress`] as it was read, before anybody looked at what goes together.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    #[serde(default, deserialize_with = "sender::deserialize")]
    sender: Option<SenderCard>,
    #[serde(default)]
    sending: Vec<QueuePairAddress>,
    #[serde(default, deserialize_with = "receiver::deserialize")]
    receiver: Option<ReceiverCard>,
    #[serde(default)]
    receiving: Vec<QueuePairAddress>,
}

/// Fields that do not go together.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("neither a sender nor a receiver")]
    NoEnd,
    #[error("queue pairs of a {0}, but no {0}")]
    Stray(&'static str),
}

impl TryFrom<Fields> for P2pAddress {
    type Error = Unfit;

    fn try_from(fields: Fields) -> Result<Self, Unfit> {
        let Fields { sender, sending, receiver, receiving } = fields;
        if sender.is_none() && receiver.is_none() {
            return Err(Unfit::NoEnd);
        }
        if sender.is_none() && !sending.is_empty() {
            return Err(Unfit::Stray("sender"));
        }
        if receiver.is_none() && !receiving.is_empty() {
            return Err(Unfit::Stray("receiver"));
        }
        Ok(Self { sender, sending, receiver, receiving })
    }
}

/// Number and address of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueuePairAddress {
    /// Its number.
    pub qp_num: u32,
    /// Its address.
    #[serde(deserialize_with = "rail_address")]
    pub address: RailAddress,
}

/// Text that is not the address of a message endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the address of a message endpoint: {reason}")]
pub struct P2pAddressError {
    /// The parser's message, with the position; printable and of limited length.
    reason: String,
}

impl P2pAddress {
    /// Parses an address, strictly. The values are checked when endpoints
    /// [connect](super::P2pMember::connect).
    ///
    /// # Errors
    ///
    /// The text is not an address.
    pub fn from_json(text: &[u8]) -> Result<Self, P2pAddressError> {
        json::read(text, MAX_ADDRESS_BYTES).map_err(|reason| P2pAddressError { reason })
    }

    /// Writes the address as JSON.
    pub fn to_json(&self) -> String {
        // Numbers and strings: nothing here can fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A card that may not be there.
macro_rules! optional {
    ($name:ident, $card:ident, $fields:literal) => {
        mod $name {
            use super::*;

            #[derive(Serialize, Deserialize)]
            struct Card(#[serde(with = $fields)] $card);

            pub(super) fn serialize<S: Serializer>(
                card: &Option<$card>,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                card.map(Card).serialize(serializer)
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Option<$card>, D::Error> {
                Card::deserialize(deserializer).map(|Card(card)| Some(card))
            }
        }
    };
}

optional!(sender, SenderCard, "SenderFields");
optional!(receiver, ReceiverCard, "ReceiverFields");

/// Whether this is the version of an end that takes nothing back.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
const fn is_none(version: &u32) -> bool {
    *version == 0
}

/// A [`SenderCard`] as it travels.
#[derive(Serialize, Deserialize)]
#[serde(remote = "SenderCard", rename_all = "camelCase", deny_unknown_fields)]
struct SenderFields {
    #[serde(with = "PortsFields")]
    ports: Ports,
    #[serde(with = "MemoryFields")]
    ring: RemoteMemory,
    #[serde(with = "FormName")]
    form: EntryForm,
}

/// A [`ReceiverCard`] as it travels.
#[derive(Serialize, Deserialize)]
#[serde(remote = "ReceiverCard", rename_all = "camelCase", deny_unknown_fields)]
struct ReceiverFields {
    #[serde(with = "PortsFields")]
    ports: Ports,
    #[serde(with = "MemoryFields")]
    records: RemoteMemory,
    depth: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RemoteMemory", deny_unknown_fields)]
struct MemoryFields {
    addr: u64,
    rkeys: [u32; MAX_RAILS],
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "EntryForm", rename_all = "camelCase")]
enum FormName {
    Plain,
    Hashed,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Ports", rename_all = "camelCase", deny_unknown_fields)]
struct PortsFields {
    rails: u8,
    slots: u16,
    reroutes: bool,
    #[serde(default, skip_serializing_if = "is_none")]
    cancel_version: u32,
    devices: [u8; MAX_RAILS],
    max_message: [u32; MAX_RAILS],
}
