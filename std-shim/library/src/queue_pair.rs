//! Queue pairs of both kinds of endpoints: where they are, what the peer needs to connect to them,
//! and how they are connected.

mod attempts;
mod joined;

pub use attempts::{Attempts, GaveUp, StillSearching, next_attempt};
pub(crate) use joined::{Joined, retry};

use crate::backend::{
    Connect, ConnectOptions, ConnectSteps, Connecting, DeviceError, Gid, Meeting, MeetingKey, Mtu,
    Port, RemoteQp,
};
use crate::hex::Hex;
use crate::interfaces::ThisHost;
use polyrail_core::virtual_qp::MAX_RAILS;
use polyrail_nic_parts::random::random;
use rustix::io::Errno;
use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};
use std::net::{IpAddr, Ipv6Addr};

/// The device and port of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Place of its device in the list of devices.
    pub(crate) device: usize,
    pub(crate) port: Port,
}

/// Address of a physical queue pair, and the parameters with which a connection starts. Its number
/// is on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RailAddress {
    /// Index of its device in the endpoint. Requests select the device's keys by it.
    pub device: u8,
    /// GID of its port.
    #[serde(serialize_with = "as_shown")]
    pub gid: Gid,
    /// LID of its port; 0 on RoCE.
    pub lid: u16,
    /// MTU of its port. The smaller MTU of the two ends becomes the path MTU.
    #[serde(serialize_with = "in_bytes")]
    pub mtu: Mtu,
    /// Its first packet sequence number, 24 bits.
    pub psn: u32,
    /// Maximum READs and atomics that the peer may have outstanding to it.
    pub rd_atomic: u8,
    /// Where and with which key it accepts its connection; only of TCP NICs. The key is a secret of
    /// the two ends.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_meeting")]
    pub meeting: Option<Meeting>,
}

impl RailAddress {
    /// Returns the address of a queue pair on this port of the device at this place.
    pub(crate) fn new<Q: Connect>(
        qp: &Q,
        (device, port): (usize, &Port),
        psn: u32,
        options: &ConnectOptions,
    ) -> Self {
        Self {
            device: device as u8,
            gid: port.gid,
            lid: port.lid,
            mtu: options.path_mtu.min(port.mtu),
            psn,
            rd_atomic: options.max_rd_atomic.min(port.max_rd_atomic),
            meeting: qp.meeting(),
        }
    }

    /// Whether the queue pair is of a TCP NIC. It can be connected only to another of a TCP NIC.
    pub(crate) const fn is_tcp(&self) -> bool {
        self.meeting.is_some()
    }

    /// Returns why a queue pair at this address, on this host, cannot be connected to one of the
    /// peer.
    pub(crate) fn apart(&self, peer: &Self) -> Option<Apart> {
        let may_be_here = |ip| ThisHost::now().may_have(ip);
        PortAddress::from(self).apart(&peer.into(), may_be_here)
    }
}

/// The address of a port, as far as it decides which ports it can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortAddress {
    pub(crate) gid: Gid,
    /// LID; 0 on Ethernet.
    pub(crate) lid: u16,
    pub(crate) is_tcp: bool,
}

/// Why two ports cannot be the ends of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Apart {
    /// Only one of them is over TCP.
    Backends { here_is_tcp: bool },
    /// Only one of them is InfiniBand.
    LinkLayers { here_is_infiniband: bool },
    /// Only one of them has an IPv4 address.
    Gids,
    /// The one here is a loopback, and the other one is on another host.
    Loopback,
}

impl PortAddress {
    /// Returns the IP address. On InfiniBand, it is a GID in the form of an IPv6 address.
    pub(crate) fn ip(&self) -> IpAddr {
        Ipv6Addr::from(self.gid.0).to_canonical()
    }

    /// Returns whether packets are addressed by LID.
    pub(crate) const fn is_infiniband(&self) -> bool {
        self.lid != 0
    }

    /// Returns whether both ports have the same backend and link layer, and addresses of the same
    /// kind.
    pub(crate) fn meets(&self, peer: &Self) -> bool {
        self.apart(peer, |_| true).is_none()
    }

    /// Returns why this port of this host cannot reach the peer's. `may_be_here` returns whether
    /// this host may have an address; the kernel sends from loopback only to these.
    pub(crate) fn apart(
        &self,
        peer: &Self,
        may_be_here: impl FnOnce(IpAddr) -> bool,
    ) -> Option<Apart> {
        let here_is_infiniband = self.is_infiniband();
        if self.is_tcp != peer.is_tcp {
            return Some(Apart::Backends { here_is_tcp: self.is_tcp });
        }
        if here_is_infiniband != peer.is_infiniband() {
            return Some(Apart::LinkLayers { here_is_infiniband });
        }
        if here_is_infiniband {
            return None;
        }
        if !self.gid.kind().meets(peer.gid.kind()) {
            return Some(Apart::Gids);
        }
        let (own, peer) = (self.ip(), peer.ip());
        let is_cut_off = own.is_loopback() && !peer.is_loopback() && !may_be_here(peer);
        is_cut_off.then_some(Apart::Loopback)
    }
}

impl From<&RailAddress> for PortAddress {
    fn from(rail: &RailAddress) -> Self {
        Self { gid: rail.gid, lid: rail.lid, is_tcp: rail.is_tcp() }
    }
}

/// How the two ends connect, if only one of them is over TCP.
pub(crate) const fn backends(here_is_tcp: bool) -> &'static str {
    if here_is_tcp {
        "connects over TCP here, but not at the peer"
    } else {
        "connects over TCP at the peer, but not here"
    }
}

/// Serializes a GID in the notation of IPv6 addresses.
fn as_shown<S: Serializer>(gid: &Gid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(gid)
}

fn in_bytes<S: Serializer>(mtu: &Mtu, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(mtu.bytes())
}

/// The serialized form of a [`Meeting`].
#[derive(Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct MeetingText {
    port: u16,
    key: Hex<16>,
}

fn as_meeting<S: Serializer>(meeting: &Option<Meeting>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = meeting.map(|Meeting { port, key }| MeetingText { port, key: Hex(key.0) });
    text.serialize(serializer)
}

/// The serialized form of a [`RailAddress`].
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    device: u8,
    gid: String,
    lid: u16,
    mtu: u32,
    psn: u32,
    rd_atomic: u8,
    #[serde(default)]
    meeting: Option<MeetingText>,
}

/// Deserializes a [`RailAddress`], and refuses unknown fields and values out of range.
pub(crate) fn rail_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<RailAddress, D::Error> {
    let fields = Fields::deserialize(deserializer)?;
    let Fields { device, gid, lid, mtu, psn, rd_atomic, meeting } = fields;
    let number = |value: u32, expected: &'static str| {
        de::Error::invalid_value(de::Unexpected::Unsigned(value.into()), &expected)
    };
    if usize::from(device) >= MAX_RAILS {
        return Err(number(device.into(), "the place of a device"));
    }
    if psn > 0x00ff_ffff {
        return Err(number(psn, "24 bits"));
    }
    if meeting.as_ref().is_some_and(|meeting| meeting.port == 0) {
        return Err(number(0, "a TCP port from 1 to 65535"));
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
        meeting: meeting.map(|MeetingText { port, key }| Meeting { port, key: MeetingKey(key.0) }),
    })
}

/// Refuses a port whose MTU is smaller than the required one.
pub(crate) fn check_mtu(port: &Port, options: &ConnectOptions) -> Result<(), DeviceError> {
    if !options.exact_mtu || port.mtu >= options.path_mtu {
        return Ok(());
    }
    let (asked, most) = (options.path_mtu.bytes(), port.mtu.bytes());
    Err(DeviceError::Mtu { port: port.number, asked, most })
}

/// Begins to move a queue pair from INIT to RTS, with the limits that both ends support. `own` is
/// the address that the peer received for it; `qp_num` and `peer` are the number and address of the
/// peer's queue pair.
pub(crate) fn join<Q: Connect>(
    (qp, port, own): (&Q, &Port, &RailAddress),
    qp_num: u32,
    peer: &RailAddress,
    options: &ConnectOptions,
) -> Connecting<()> {
    match steps((port, own), qp_num, peer, options) {
        Ok(steps) => qp.connect_aside(&steps),
        Err(error) => Connecting::done(Err(error)),
    }
}

/// Returns what [`join`] does.
pub(crate) fn steps(
    (port, own): (&Port, &RailAddress),
    qp_num: u32,
    peer: &RailAddress,
    options: &ConnectOptions,
) -> Result<ConnectSteps, DeviceError> {
    check_mtu(port, options)?;
    let path_mtu = own.mtu.min(peer.mtu);
    if options.exact_mtu && path_mtu < options.path_mtu {
        let (asked, most) = (options.path_mtu.bytes(), peer.mtu.bytes());
        return Err(DeviceError::PeerMtu { asked, most });
    }
    let receives = ConnectOptions { path_mtu, max_rd_atomic: own.rd_atomic, ..*options };
    let sends = ConnectOptions { max_rd_atomic: own.rd_atomic.min(peer.rd_atomic), ..receives };
    let RailAddress { gid, lid, psn, meeting, .. } = *peer;
    let peer = RemoteQp { gid, lid, qp_num, psn, meeting };
    Ok(ConnectSteps { port: *port, peer, receives, psn: own.psn, sends })
}

/// Returns a first packet sequence number that old packets of other connections will not match. A
/// process and its forks draw different numbers.
pub(crate) fn random_psn() -> Result<u32, DeviceError> {
    let failed = |error: Errno| DeviceError::NoRandom { errno: error.raw_os_error() };
    random().map(|bytes| u32::from_ne_bytes(bytes) & 0x00ff_ffff).map_err(failed)
}
