//! Whether a queue pair here and one of the peer can be the two ends of a rail.

use super::qp::EndpointQp;
use crate::backend::{Connect, Gid, link_layers};
use crate::queue_pair::{Apart, RailAddress, backends};
use polyrail_core::virtual_qp::RailId;

/// The queue pairs of the two ends cannot be connected as one rail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RailMismatch {
    /// The devices do not correspond. Keys are found by the indices of devices, so the two ends of
    /// a rail must be on devices with the same index; if the numbers of devices differ, each rail
    /// must be on the next device in turn.
    #[error("{rail} is on device {here} here and on device {peer} at the peer, counted from 0")]
    Devices {
        /// The rail.
        rail: RailId,
        /// Index of its device here.
        here: u8,
        /// Index of its device at the peer.
        peer: u8,
    },
    /// One end is over TCP, and the other is not.
    #[error("{rail} (device {device}): {}", backends(*here_is_tcp))]
    Backends {
        /// The rail.
        rail: RailId,
        /// Its device's name.
        device: String,
        /// Whether the end here is the one over TCP.
        here_is_tcp: bool,
    },
    /// One of the two ports is InfiniBand, and the other is Ethernet.
    #[error("{rail} (device {device}): {}", link_layers(*here_is_infiniband))]
    LinkLayers {
        /// The rail.
        rail: RailId,
        /// Its device's name.
        device: String,
        /// Whether the port here is the one of InfiniBand.
        here_is_infiniband: bool,
    },
    /// The two ports have addresses of different IP versions, so they cannot reach each other.
    #[error(
        "{rail} (device {device}): {} here ({here}), {} at the peer ({peer})",
        here.kind(),
        peer.kind()
    )]
    Gids {
        /// The rail.
        rail: RailId,
        /// Its device's name.
        device: String,
        /// GID of its port here.
        here: Gid,
        /// GID of its port at the peer.
        peer: Gid,
    },
    /// The port here is a loopback, which reaches only this host, and the peer is on another host.
    #[error(
        "{rail} (device {device}): loopback here ({here}), {peer} at the peer, which is on another host"
    )]
    Loopback {
        /// The rail.
        rail: RailId,
        /// Its device's name.
        device: String,
        /// GID of its port here.
        here: Gid,
        /// GID of its port at the peer.
        peer: Gid,
    },
}

impl<Q> EndpointQp<Q>
where
    Q: Connect,
{
    /// Checks that a queue pair here and one of the peer can be the two ends of a rail.
    pub(super) fn check_ends(
        &self,
        rail: RailId,
        own: &RailAddress,
        peer: &RailAddress,
    ) -> Result<(), RailMismatch> {
        if self.far_device(rail, own.device) != peer.device {
            return Err(RailMismatch::Devices { rail, here: own.device, peer: peer.device });
        }
        let Some(apart) = own.apart(peer) else { return Ok(()) };
        let device = self.device_at(own.device.into());
        let (here, peer) = (own.gid, peer.gid);
        Err(match apart {
            Apart::Backends { here_is_tcp } => RailMismatch::Backends { rail, device, here_is_tcp },
            Apart::LinkLayers { here_is_infiniband } => {
                RailMismatch::LinkLayers { rail, device, here_is_infiniband }
            }
            Apart::Gids => RailMismatch::Gids { rail, device, here, peer },
            Apart::Loopback => RailMismatch::Loopback { rail, device, here, peer },
        })
    }

    /// The place of the peer's device that this rail meets from a device here: the same, unless the
    /// numbers of devices differ.
    pub(super) fn far_device(&self, rail: RailId, device: u8) -> u8 {
        let far = self.position(rail).and_then(|at| self.far_devices.get(at));
        far.copied().unwrap_or(device)
    }
}
