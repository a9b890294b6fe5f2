//! Addresses of ports and queue pairs, and sizes of packets.

use std::fmt;
use std::net::{AddrParseError, Ipv6Addr};
use std::str::FromStr;

/// The address of a port (`union ibv_gid`): link-local prefix, then the port's GUID.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the default GID of the port with this GUID.
    pub const fn link_local(guid: u64) -> Self {
        Self(((0xfe80_u128 << 112) | guid as u128).to_be_bytes())
    }

    /// Returns the kind of address that it contains.
    pub fn kind(self) -> GidKind {
        let address = Ipv6Addr::from(self.0);
        if address.to_ipv4_mapped().is_some() {
            GidKind::Ipv4
        } else if address.is_unicast_link_local() {
            GidKind::Ipv6LinkLocal
        } else {
            GidKind::Ipv6
        }
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Parses the notation of tools: an IPv6 address.
impl FromStr for Gid {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        Ok(Self(text.parse::<Ipv6Addr>()?.octets()))
    }
}

/// The kind of a RoCE port's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// An IPv4 address, `::ffff:a.b.c.d`.
    Ipv4,
    /// An IPv6 address that is valid only on its own link, `fe80::/10`.
    Ipv6LinkLocal,
    /// Any other IPv6 address.
    Ipv6,
}

impl GidKind {
    /// Returns whether packets can travel between addresses of the two kinds. IPv4 and IPv6 cannot
    /// reach each other; among IPv6 addresses, routes decide.
    pub fn meets(self, other: Self) -> bool {
        (self == Self::Ipv4) == (other == Self::Ipv4)
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6LinkLocal => "IPv6 link-local",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// Payload bytes of a packet (`enum ibv_mtu`), which determines the number of packets and sequence
/// numbers of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    #[default]
    Mtu4096,
}

impl Mtu {
    /// All values, the smallest first.
    pub const ALL: [Self; 5] =
        [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// Size in bytes.
    #[inline]
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// Returns the MTU of `bytes` bytes, if it exists.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// Returns the number of packets of a message of `length` bytes. An empty message has one
    /// packet.
    #[inline]
    pub const fn packets(self, length: u32) -> u32 {
        let shift = 8 + self as u32;
        let full = length >> shift;
        let rest = (length & ((1 << shift) - 1) != 0) as u32;
        if length == 0 { 1 } else { full + rest }
    }
}

/// The address of a remote queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteQp {
    /// Address of its port.
    pub gid: Gid,
    /// Local identifier of its port; 0 on RoCE.
    pub lid: u16,
    /// Its number.
    pub qp_num: u32,
    /// Its first packet sequence number.
    pub psn: u32,
    /// Where and with which secret a queue pair of a TCP NIC accepts its connection; `None` on
    /// other devices, which ignore it.
    pub meeting: Option<Meeting>,
}

/// Where and with which secret a queue pair of a TCP NIC accepts its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The TCP port, at the IP address of the [GID](RemoteQp::gid).
    pub port: u16,
    /// The secret that the peer must present.
    pub key: MeetingKey,
}

/// The secret of a [`Meeting`]. It is not part of `Debug` output, so that logs do not contain it.
#[derive(Clone, Copy, Eq)]
pub struct MeetingKey(pub [u8; 16]);

/// Compares all bytes in any case, so that the time that it takes reveals nothing about the key.
impl PartialEq for MeetingKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).fold(0, |different, (a, b)| different | (a ^ b)) == 0
    }
}

impl fmt::Debug for MeetingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeetingKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_know_what_they_stand_for() {
        for (gid, kind) in [
            ("::ffff:10.0.0.2", GidKind::Ipv4),
            ("fe80::1", GidKind::Ipv6LinkLocal),
            ("2001:db8::1", GidKind::Ipv6),
            // RoCE uses only the IPv4-mapped notation.
            ("::10.0.0.2", GidKind::Ipv6),
        ] {
            assert_eq!(gid.parse::<Gid>().unwrap().kind(), kind, "{gid}");
        }
        assert_eq!(Gid::link_local(7).kind(), GidKind::Ipv6LinkLocal);
    }

    #[test]
    fn keys_are_equal_only_if_every_byte_is_and_are_not_shown() {
        let key = MeetingKey([0xab; 16]);
        assert_eq!(key, MeetingKey([0xab; 16]));
        for at in 0..16 {
            let mut other = key;
            other.0[at] ^= 0x10;
            assert_ne!(key, other, "byte {at}");
        }
        let meeting = Some(Meeting { port: 7001, key });
        let remote = RemoteQp { gid: Gid::default(), lid: 0, qp_num: 17, psn: 5, meeting };
        let shown = format!("{remote:?}");
        assert!(shown.ends_with("Meeting { port: 7001, key: MeetingKey(..) }) }"), "{shown}");
    }
}
