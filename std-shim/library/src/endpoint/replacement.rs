//! Queue pairs that replace failed ones, and their addresses.

use super::address::RailAddress;
use super::place::Place;
use super::sizes::MAX_DEVICES;
use crate::backend::Mtu;
use polyrail_core::virtual_qp::{MAX_RAILS, RailId};
use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};

/// A queue pair in INIT for one generation of one rail, which no peer can reach yet. Dropping it
/// destroys it without other effects.
#[derive(Debug)]
#[must_use = "a replacement does nothing until it is in the rail's place"]
pub(super) struct Replacement<Q> {
    pub(super) queue_pair: Q,
    pub(super) place: Place,
    pub(super) address: ReplacementAddress,
}

impl<Q> Replacement<Q> {
    /// Returns the address for the peer.
    pub(super) const fn address(&self) -> &ReplacementAddress {
        &self.address
    }
}

/// The data that a peer needs to connect to a queue pair that replaces a failed one, as it travels
/// in a [`HealingMessage`](super::HealingMessage):
///
/// ```json
/// {"rail":"2","generation":1,"qpNum":291,
///  "address":{"device":2,"gid":"::ffff:10.0.0.2","lid":0,"mtu":4096,"psn":4711,"rdAtomic":16}}
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplacementAddress {
    /// The rail; `"0"` to `"7"`, or `"notify"`.
    #[serde(serialize_with = "rail_name", deserialize_with = "rail_named")]
    pub rail: RailId,
    /// Generation of the queue pair in the rail's place; the first was 0.
    pub generation: u16,
    /// The queue pair's number.
    pub qp_num: u32,
    /// Its address.
    #[serde(deserialize_with = "rail_address")]
    pub address: RailAddress,
}

const NOTIFY: &str = "notify";

pub(super) fn rail_name<S: Serializer>(rail: &RailId, serializer: S) -> Result<S::Ok, S::Error> {
    match rail {
        RailId::Data(number) => serializer.collect_str(number),
        RailId::Notify => serializer.serialize_str(NOTIFY),
    }
}

pub(super) fn rail_named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RailId, D::Error> {
    let name = String::deserialize(deserializer)?;
    let numbers = (0..MAX_RAILS as u8).map(RailId::Data);
    let number = |rail: &RailId| matches!(rail, RailId::Data(number) if number.to_string() == name);
    match name.as_str() {
        NOTIFY => Some(RailId::Notify),
        _ => numbers.into_iter().find(number),
    }
    .ok_or_else(|| de::Error::invalid_value(de::Unexpected::Str(&name), &"a rail"))
}

/// A [`RailAddress`] as it travels.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    device: u8,
    gid: String,
    lid: u16,
    mtu: u32,
    psn: u32,
    rd_atomic: u8,
}

/// Reads a [`RailAddress`], strictly.
pub(crate) fn rail_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<RailAddress, D::Error> {
    let Fields { device, gid, lid, mtu, psn, rd_atomic } = Fields::deserialize(deserializer)?;
    let number = |value: u32, expected: &'static str| {
        de::Error::invalid_value(de::Unexpected::Unsigned(value.into()), &expected)
    };
    if usize::from(device) >= MAX_DEVICES {
        return Err(number(device.into(), "the place of a device"));
    }
    if psn > 0x00ff_ffff {
        return Err(number(psn, "24 bits"));
    }
    let address = gid.parse();
    Ok(RailAddress {
        device,
        gid: address
            .map_err(|_| de::Error::invalid_value(de::Unexpected::Str(&gid), &"an IPv6 address"))?,
        lid,
        mtu: Mtu::from_bytes(mtu).ok_or_else(|| number(mtu, "256, 512, 1024, 2048 or 4096"))?,
        psn,
        rd_atomic,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use quickcheck::QuickCheck;

    const TEXT: &str = concat!(
        r#"{"rail":"2","generation":1,"qpNum":291,"address":{"device":2,"gid":"::ffff:10.0.0.2","#,
        r#""lid":0,"mtu":4096,"psn":4711,"rdAtomic":16}}"#
    );

    const MAX_BYTES: usize = 1024;

    fn read(text: &[u8]) -> Result<ReplacementAddress, String> {
        json::read(text, MAX_BYTES)
    }

    fn written(address: &ReplacementAddress) -> String {
        serde_json::to_string(address).unwrap()
    }

    fn address() -> ReplacementAddress {
        read(TEXT.as_bytes()).unwrap()
    }

    #[test]
    fn it_is_read_and_written_as_documented() {
        let address = address();
        assert_eq!((address.rail, address.generation), (RailId::Data(2), 1));
        assert_eq!((address.qp_num, address.address.psn), (291, 4711));
        assert_eq!(written(&address), TEXT);
    }

    #[test]
    fn every_rail_has_a_name() {
        for rail in (0..MAX_RAILS as u8).map(RailId::Data).chain([RailId::Notify]) {
            let named = ReplacementAddress { rail, ..address() };
            assert_eq!(read(written(&named).as_bytes()), Ok(named));
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for (good, bad) in [
            (r#""rail":"2""#, r#""rail":"8""#),
            (r#""rail":"2""#, r#""rail":"02""#),
            (r#""rail":"2""#, r#""rail":2"#),
            (r#""rail":"2""#, r#""rail":"2","rail":"2""#),
            (r#""generation":1"#, r#""generation":65536"#),
            (r#""generation":1"#, r#""generation":-1"#),
            (r#""qpNum":291,"#, ""),
            (r#""device":2"#, r#""device":8"#),
            (r#""device":2"#, r#""device":2,"x":0"#),
            (r#""mtu":4096"#, r#""mtu":4097"#),
            (r#""psn":4711"#, r#""psn":16777216"#),
            ("::ffff:10.0.0.2", "10.0.0"),
            ("{", "[{"),
        ] {
            let text = TEXT.replacen(good, bad, 1);
            let error = read(text.as_bytes()).unwrap_err();
            assert!(error.len() < 300, "{error}");
        }
        let long = format!("{TEXT}{}", " ".repeat(MAX_BYTES));
        assert!(read(long.as_bytes()).is_err());
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        fn mutated(at: usize, byte: u8) -> bool {
            let mut text = TEXT.as_bytes().to_vec();
            let length = text.len();
            text[at % length] = byte;
            let read = read(&text);
            read.is_ok() || read.unwrap_err().len() < 300
        }
        QuickCheck::new().tests(5000).quickcheck(mutated as fn(usize, u8) -> bool);
    }
}
