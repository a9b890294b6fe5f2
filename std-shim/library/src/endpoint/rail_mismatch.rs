//! Queue pairs of the two ends that cannot be the two ends of one rail.

use super::address::RailAddress;
use super::qp::EndpointQp;
use crate::backend::{Connect, Gid};
use polyrail_core::virtual_qp::RailId;

/// A queue pair of either end, and the two cannot be the ends of one rail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RailMismatch {
    /// Keys are found by the places of the devices, so both ends of a rail must be on devices in the same
    /// place; or, with different numbers of them, each on the one whose turn it is.
    #[error("{rail} is on device {here} here and on device {peer} at the peer, counted from 0")]
    Devices {
        /// The rail.
        rail: RailId,
        /// Place of its device here.
        here: u8,
        /// Place of its device at the peer.
        peer: u8,
    },
    /// The two ports of a rail have addresses of different versions of IP, and cannot reach each other.
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
        /// Address of its port here.
        here: Gid,
        /// Address of its port at the peer.
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
        if !own.meets(peer) {
            let device = self.device_at(own.device.into());
            return Err(RailMismatch::Gids { rail, device, here: own.gid, peer: peer.gid });
        }
        Ok(())
    }

    /// The place of the peer's device that this rail meets from a device here: the same, unless the numbers of
    /// devices differ.
    pub(super) fn far_device(&self, rail: RailId, device: u8) -> u8 {
        let far = self.position(rail).and_then(|at| self.far_devices.get(at));
        far.copied().unwrap_or(device)
    }
}
