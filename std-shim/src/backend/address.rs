//! Ports and their addresses, here and at a peer.

use serde::{Serialize, Serializer};
use std::fmt;
use std::net::{AddrParseError, Ipv6Addr};
use std::str::FromStr;

/// The address of a port (`union ibv_gid`): link-local prefix, then the port's GUID.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The default GID of the port with this GUID.
    pub const fn link_local(guid: u64) -> Self {
        Self(((0xfe80_u128 << 112) | guid as u128).to_be_bytes())
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

/// As tools show it.
impl Serialize for Gid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// As tools show it: an IPv6 address.
impl FromStr for Gid {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        Ok(Self(text.parse::<Ipv6Addr>()?.octets()))
    }
}

/// Bytes of payload in one packet (`enum ibv_mtu`). Counts packets, hence sequence numbers.
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
    /// Every one, the smallest first.
    pub const ALL: [Self; 5] =
        [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// So many bytes.
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// The one of so many bytes, if there is one.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// Packets that a message of `length` bytes takes; an empty one takes one too.
    pub(crate) const fn packets(self, length: u32) -> u32 {
        let shift = 8 + self as u32;
        let full = length >> shift;
        let rest = (length & ((1 << shift) - 1) != 0) as u32;
        if length == 0 { 1 } else { full + rest }
    }
}

/// As its number of bytes.
impl Serialize for Mtu {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.bytes())
    }
}

/// A port of a device here, as rails use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number on the device, from 1 on.
    pub number: u8,
    /// Place of `gid` in the port's table of addresses. On RoCE it decides the version.
    pub gid_index: u8,
    /// The address that peers reach it by.
    pub gid: Gid,
    /// Its local identifier, by which peers of the same InfiniBand subnet reach it; 0 where there is
    /// none (RoCE).
    pub lid: u16,
    /// Payload bytes of the longest packet that it carries now.
    pub mtu: Mtu,
    /// READs and atomics that its device takes from one peer, or sends to one, at a time.
    pub max_rd_atomic: u8,
}

/// What one side has to know of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteQp {
    /// Address of its port.
    pub gid: Gid,
    /// Local identifier of its port; 0 where there is none (RoCE).
    pub lid: u16,
    /// Its number.
    pub qp_num: u32,
    /// The packet sequence number that it starts with.
    pub psn: u32,
}
