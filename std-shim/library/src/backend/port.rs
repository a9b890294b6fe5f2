//! Ports of local devices.

use polyrail_software_nic::{Gid, Mtu};

/// A port of a local device that rails use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number on the device, from 1.
    pub number: u8,
    /// Index of `gid` in the port's GID table. On RoCE the entry decides the version.
    pub gid_index: u8,
    /// The GID by which peers reach the port.
    pub gid: Gid,
    /// The LID by which peers in the same InfiniBand subnet reach the port; 0 on RoCE.
    pub lid: u16,
    /// MTU in use on the link.
    pub mtu: Mtu,
    /// Maximum READs and atomics that may be outstanding to or from one peer.
    pub max_rd_atomic: u8,
}
