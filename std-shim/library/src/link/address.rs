//! The address of an endpoint as it travels.

use super::error::HandshakeError;
use super::field::Place;
use super::wire::MAX_MESSAGE_BYTES;
use crate::backend::Mtu;
use crate::card::ConnectionCard;
use crate::endpoint::{Address, MAX_DEVICES, RailAddress};
use crate::json;
use polyrail_core::virtual_qp::{MAX_RAILS, Scheme};

/// An endpoint's address as text, for programs that carry it themselves: what a hello has as `endpoint`.
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

/// Reads it, strictly.
///
/// # Errors
///
/// The text is something else, or is too long.
pub fn address_from_json(text: &[u8]) -> Result<Address, HandshakeError> {
    let value = json::read(text, MAX_MESSAGE_BYTES as usize)
        .map_err(|reason| HandshakeError::NotJson { reason })?;
    read_address(&Place::root(&value))
}

pub(super) fn read_address(place: &Place<'_>) -> Result<Address, HandshakeError> {
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
    let fields = place.object(&["device", "gid", "lid", "mtu", "psn", "rdAtomic"])?;
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
    })
}
