//! Ports of local devices.

use polyrail_software_nic::{Gid, Mtu};

/// A port of a local device, as rails use it.
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
