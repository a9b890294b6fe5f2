//! The first message of each side: where the side can be reached, and the session of the link.

use super::error::{HandshakeError, LinkError};
use super::field::Place;
use super::purpose::{NoPurpose, Purpose};
use super::token::random;
use super::wire::MAX_MESSAGE_BYTES;
use crate::backend::{Meeting, MeetingKey, Mtu};
use crate::card::ConnectionCard;
use crate::endpoint::{Address, MAX_DEVICES, RailAddress};
use crate::hex::Hex;
use crate::json;
use crate::memory::RemoteBuffer;
use crate::p2p::{P2pAddress, QueuePairAddress};
use polyrail_core::virtual_qp::{MAX_RAILS, Scheme};
use polyrail_nic_parts::interface::is_link_local;
use serde::Serialize;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

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

    /// The addresses of its rails, in their order; of messages, those of the first queue pair of
    /// each rail in one direction.
    pub fn rails(&self) -> Vec<RailAddress> {
        match self {
            Self::Requests(endpoint) => endpoint.rails.clone(),
            Self::Messages(endpoint) => {
                let sending = endpoint.sender.map(|card| (card.ports.rails, &endpoint.sending));
                let receiving =
                    endpoint.receiver.map(|card| (card.ports.rails, &endpoint.receiving));
                let (rails, queue_pairs) = sending.or(receiving).unwrap_or((0, &endpoint.sending));
                let queue_pairs = queue_pairs.iter().take(rails.into());
                queue_pairs.map(|QueuePairAddress { address, .. }| *address).collect()
            }
        }
    }

    /// The addresses of its queue pairs.
    pub fn queue_pairs(&self) -> Vec<RailAddress> {
        match self {
            Self::Requests(endpoint) => {
                endpoint.rails.iter().chain(&endpoint.notify).copied().collect()
            }
            Self::Messages(endpoint) => {
                let queue_pairs = endpoint.sending.iter().chain(&endpoint.receiving);
                queue_pairs.map(|QueuePairAddress { address, .. }| *address).collect()
            }
        }
    }

    /// The IP addresses of its queue pairs, each once, except link-local ones: those need an
    /// interface. Over InfiniBand, a GID is no IP address, but has the form of one of IPv6.
    pub(super) fn ip_addresses(&self) -> Vec<IpAddr> {
        let mut found = Vec::new();
        for RailAddress { gid, meeting, .. } in self.queue_pairs() {
            let ip = Ipv6Addr::from(gid.0).to_canonical();
            let is_ip = ip.is_ipv4() || meeting.is_some();
            if is_ip && !is_link_local(ip) && !ip.is_unspecified() && !found.contains(&ip) {
                found.push(ip);
            }
        }
        found
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
    /// The session of the link, if it is to be resumed when it breaks: the same in both hellos,
    /// from [`Link::session`](super::Link::session).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
}

impl<P: Purpose> Hello<P> {
    /// A hello of sides that do not exchange memory in their hellos. It names a byte that no key
    /// opens.
    pub fn without_memory(reach: Reach, purpose: Option<P>, session: Option<Session>) -> Self {
        let buffer = RemoteBuffer { addr: 0, length: 1, rkeys: vec![0] };
        Self { reach, buffer, purpose, session }
    }

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

/// The name of a link that can be resumed, drawn by the side that connects: 128 bits that cannot be
/// guessed. As text, 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Session(Hex<16>);

impl Session {
    /// Draws a session that no other link has.
    ///
    /// # Errors
    ///
    /// The system has no random bytes.
    pub fn random() -> Result<Self, LinkError> {
        random().map(Self)
    }

    pub(super) fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        Hex::read(place, "32 hexadecimal digits, in lower case").map(Self)
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An endpoint's address as text, for programs that carry it themselves: what a hello has as
/// `endpoint`.
///
/// ```
/// use polyrail::endpoint::{Endpoint, EndpointBuilder};
/// use polyrail::link::{address_from_json, address_to_json};
/// # use polyrail::nic::{DeviceConfig, Fabric};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = Fabric::threaded().create_device(DeviceConfig::named("soft0")).alloc_pd()?;
/// let endpoint: Endpoint = EndpointBuilder::new().build(&[&domain])?;
/// let text = address_to_json(&endpoint.address());
/// assert_eq!(address_from_json(text.as_bytes())?, endpoint.address());
/// # Ok(())
/// # }
/// ```
pub fn address_to_json(address: &Address) -> String {
    // Numbers and strings: nothing here can fail.
    serde_json::to_string(address).unwrap_or_default()
}

/// Reads an address from the JSON of [`address_to_json`].
///
/// # Errors
///
/// The text is not such JSON, has an unknown field, lacks a field or has it twice, or is too long.
pub fn address_from_json(text: &[u8]) -> Result<Address, HandshakeError> {
    let value = json::read(text, MAX_MESSAGE_BYTES as usize)
        .map_err(|reason| HandshakeError::NotJson { reason })?;
    read_address(&Place::root(&value))
}

fn read_address(place: &Place<'_>) -> Result<Address, HandshakeError> {
    /// Bytes of the longest message of a reliable connection (InfiniBand, volume 1, 9.7.7).
    const MAX_MSG_SIZE: u64 = 1 << 31;
    let fields = place.object(&["card", "scheme", "maxMsgSize", "rails", "notify"])?;
    let card = fields.field("card")?;
    let rails = fields.field("rails")?.list(1, MAX_RAILS)?;
    let scheme = fields.field("scheme")?;
    Ok(Address {
        card: ConnectionCard::from_value(card.value())
            .map_err(|source| HandshakeError::Card { at: card.path(), source })?,
        scheme: match scheme.text()? {
            "spray" => Scheme::Spray,
            "dqplb" => Scheme::Dqplb,
            _ => return Err(scheme.wrong("\"spray\" or \"dqplb\"")),
        },
        max_msg_size: fields.field("maxMsgSize")?.number(1, MAX_MSG_SIZE)? as u32,
        rails: rails.iter().map(rail).collect::<Result<_, _>>()?,
        notify: fields.optional("notify").map(|place| rail(&place)).transpose()?,
    })
}

fn rail(place: &Place<'_>) -> Result<RailAddress, HandshakeError> {
    let fields = place.object(&["device", "gid", "lid", "mtu", "psn", "rdAtomic", "meeting"])?;
    let gid = fields.field("gid")?;
    let mtu = fields.field("mtu")?;
    let bytes = mtu.number(0, u32::MAX.into())? as u32;
    Ok(RailAddress {
        device: fields.field("device")?.number(0, MAX_DEVICES as u64 - 1)? as u8,
        gid: gid.text()?.parse().map_err(|_| gid.wrong("an IPv6 address"))?,
        lid: fields.field("lid")?.number(0, u16::MAX.into())? as u16,
        mtu: Mtu::from_bytes(bytes).ok_or_else(|| mtu.wrong("256, 512, 1024, 2048 or 4096"))?,
        psn: fields.field("psn")?.number(0, 0x00ff_ffff)? as u32,
        rd_atomic: fields.field("rdAtomic")?.number(0, u8::MAX.into())? as u8,
        meeting: fields.optional("meeting").map(|place| meeting(&place)).transpose()?,
    })
}

fn meeting(place: &Place<'_>) -> Result<Meeting, HandshakeError> {
    let fields = place.object(&["port", "key"])?;
    let key: Hex<16> = Hex::read(&fields.field("key")?, "32 hexadecimal digits, in lower case")?;
    let port = fields.field("port")?.number(1, u16::MAX.into())? as u16;
    Ok(Meeting { port, key: MeetingKey(key.0) })
}
