//! The first message either way: where a side can be reached.

use super::address::read_address;
use super::error::HandshakeError;
use super::field::Place;
use super::purpose::{NoPurpose, Purpose};
use super::session::Session;
use crate::endpoint::{Address, MAX_DEVICES};
use crate::memory::RemoteBuffer;
use crate::p2p::P2pAddress;
use serde::Serialize;

/// A side's endpoint: one for requests, or one for messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Reach {
    /// For requests: `endpoint` on the wire.
    #[serde(rename = "endpoint")]
    Requests(Address),
    /// For messages: `p2p` on the wire.
    #[serde(rename = "p2p")]
    Messages(Box<P2pAddress>),
}

impl Reach {
    /// The endpoint, if it is for requests.
    pub const fn requests(&self) -> Option<&Address> {
        match self {
            Self::Requests(address) => Some(address),
            Self::Messages(_) => None,
        }
    }

    /// The endpoint, if it is for messages.
    pub fn messages(&self) -> Option<&P2pAddress> {
        match self {
            Self::Messages(address) => Some(address),
            Self::Requests(_) => None,
        }
    }
}

impl From<Address> for Reach {
    fn from(address: Address) -> Self {
        Self::Requests(address)
    }
}

impl From<P2pAddress> for Reach {
    fn from(address: P2pAddress) -> Self {
        Self::Messages(address.into())
    }
}

/// Where a side can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello<P = NoPurpose> {
    /// Its endpoint.
    #[serde(flatten)]
    pub reach: Reach,
    /// The buffer that the other side's requests go to, or where its messages land.
    pub buffer: RemoteBuffer,
    /// What the connection is for, if this side is the one that asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purpose: Option<P>,
    /// The name of the connection, if its link is to be made anew when it breaks: both sides' hellos have the
    /// same. [`Link::session`](super::Link::session) knows what to say here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
}

impl<P: Purpose> Hello<P> {
    pub(super) fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        let fields = place.object(&["endpoint", "p2p", "buffer", "purpose", "session"])?;
        let reach = match (fields.optional("endpoint"), fields.optional("p2p")) {
            (Some(_), Some(_)) => return Err(place.wrong("with one of endpoint and p2p")),
            (None, Some(place)) => p2p(&place)?.into(),
            _ => Reach::Requests(read_address(&fields.field("endpoint")?)?),
        };
        Ok(Self {
            reach,
            buffer: buffer(&fields.field("buffer")?)?,
            purpose: fields.optional("purpose").map(|place| P::read(&place)).transpose()?,
            session: fields.optional("session").map(|place| Session::read(&place)).transpose()?,
        })
    }
}

fn p2p(place: &Place<'_>) -> Result<P2pAddress, HandshakeError> {
    // What was read from text becomes text again: nothing here can fail.
    let text = serde_json::to_string(place.value()).unwrap_or_default();
    P2pAddress::from_json(text.as_bytes())
        .map_err(|source| HandshakeError::P2p { at: place.path(), source })
}

fn buffer(place: &Place<'_>) -> Result<RemoteBuffer, HandshakeError> {
    let fields = place.object(&["addr", "length", "rkeys"])?;
    let rkeys = fields.field("rkeys")?.list(1, MAX_DEVICES)?;
    let rkey = |place: &Place<'_>| Ok(place.number(0, u32::MAX.into())? as u32);
    let addr = fields.field("addr")?.number(0, u64::MAX - 1)?;
    Ok(RemoteBuffer {
        addr,
        // It does not wrap around the end of the address space.
        length: fields.field("length")?.number(1, u64::MAX - addr)?,
        rkeys: rkeys.iter().map(rkey).collect::<Result<_, HandshakeError>>()?,
    })
}
