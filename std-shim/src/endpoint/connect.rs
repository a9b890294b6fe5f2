//! Bringing two endpoints together.

use super::Endpoint;
use crate::card::ConnectionCard;
use crate::nic::{CompletionQueue, Gid, ModifyError, QpState, QueuePair, RemoteQp};
use polyrail_core::hardware::QueuePair as _;
use polyrail_core::virtual_qp::{PeerWindowError, RailId, Scheme};
use serde::{Deserialize, Serialize};
use std::net::Ipv6Addr;

/// What a peer has to know to connect: the card, and where its queue pairs live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The queue pairs.
    pub card: ConnectionCard,
    /// Addresses (GIDs) of the rails' ports, written as tools show them.
    pub gids: Vec<Ipv6Addr>,
    /// Address of the notify queue pair's port; anything if there is none.
    pub notify_gid: Ipv6Addr,
    /// The packet sequence number that all its queue pairs start with.
    pub psn: u32,
}

/// Two endpoints do not go together, or a queue pair refused. Those that were moved stay so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The i-th rail connects to the peer's i-th, so there must be equally many.
    #[error("{local} rails here, {peer} rails and {gids} addresses at the peer")]
    Rails {
        /// Rails here.
        local: usize,
        /// Rails on the peer's card.
        peer: usize,
        /// Addresses that came with them.
        gids: usize,
    },
    /// One side has a notify queue pair: the schemes differ.
    #[error("{} has no notify queue pair: one side uses SPRAY, the other DQPLB", if *.here { "the peer" } else { "this side" })]
    Notify {
        /// It is this side that has one.
        here: bool,
    },
    /// Rails that share a device here lead to different ports there, so that no key fits both.
    #[error("rails {first} and {second} share a device here but not at the peer")]
    Devices {
        /// A rail.
        first: u8,
        /// Another one on the same device.
        second: u8,
    },
    /// DQPLB cannot run in the peer's window.
    #[error(transparent)]
    PeerWindow(#[from] PeerWindowError),
    /// A queue pair could not be moved on.
    #[error("{rail}: {source}")]
    Modify {
        /// Which.
        rail: RailId,
        /// Why.
        source: ModifyError,
    },
}

impl<const RAILS: usize, const DEPTH: usize, const WRS: usize>
    Endpoint<QueuePair, CompletionQueue, RAILS, DEPTH, WRS>
{
    /// The connection card: the numbers of the queue pairs, and for DQPLB the receive window.
    pub fn card(&self) -> ConnectionCard {
        let dqplb = self.qp.is_multi() && self.qp.config().scheme == Scheme::Dqplb;
        ConnectionCard {
            qp_nums: self.qp.rails().map(QueuePair::number).collect(),
            notify_qp_num: self.qp.notify_qp().map_or(0, QueuePair::number),
            window: dqplb.then(|| self.qp.window()),
        }
    }

    /// What the peer's [`connect`](Self::connect) has to be told.
    pub fn address(&self) -> Address {
        let gid = |qp: &QueuePair| Ipv6Addr::from(qp.gid().0);
        Address {
            card: self.card(),
            gids: self.qp.rails().map(gid).collect(),
            notify_gid: self.qp.notify_qp().map_or(Ipv6Addr::UNSPECIFIED, gid),
            psn: self.psn,
        }
    }

    /// Connects every queue pair with the peer's: INIT, RTR, RTS.
    ///
    /// Both sides have to have returned from here before either posts: a request that meets a
    /// queue pair that is not ready is retried a few times only.
    ///
    /// # Errors
    ///
    /// The two do not go together (nothing changed), or a queue pair refused.
    pub fn connect(&mut self, peer: &Address) -> Result<(), ConnectError> {
        self.check(peer)?;
        if self.qp.is_multi() && self.qp.config().scheme == Scheme::Dqplb {
            self.qp.set_peer_window(peer.card.peer_window())?;
        }
        let remote = |gid: Ipv6Addr, qp_num| RemoteQp {
            gid: Gid(gid.octets()),
            qp_num,
            psn: peer.psn & 0x00ff_ffff,
        };
        for (rail, (gid, qp_num)) in (0..).zip(peer.gids.iter().zip(&peer.card.qp_nums)) {
            self.connect_one(RailId::Data(rail), remote(*gid, *qp_num))?;
        }
        self.connect_one(RailId::Notify, remote(peer.notify_gid, peer.card.notify_qp_num))
    }

    fn check(&self, peer: &Address) -> Result<(), ConnectError> {
        let (local, rails, gids) =
            (self.qp.rails().len(), peer.card.qp_nums.len(), peer.gids.len());
        if local != rails || local != gids {
            return Err(ConnectError::Rails { local, peer: rails, gids });
        }
        let here = self.qp.notify_qp().is_some();
        if here != (peer.card.notify_qp_num != 0) {
            return Err(ConnectError::Notify { here });
        }
        let devices: Vec<_> = self.qp.rails().map(|qp| qp.device()).collect();
        for (second, device) in devices.iter().enumerate() {
            let first = devices.iter().position(|other| other == device).unwrap_or(second);
            if peer.gids[first] != peer.gids[second] {
                let (first, second) = (first as u8, second as u8);
                return Err(ConnectError::Devices { first, second });
            }
        }
        Ok(())
    }

    fn connect_one(&mut self, rail: RailId, remote: RemoteQp) -> Result<(), ConnectError> {
        let (psn, options) = (self.psn, self.options);
        let Some(qp) = self.qp.physical_mut(rail) else { return Ok(()) };
        qp.connect(psn, &remote, &options).map_err(|source| ConnectError::Modify { rail, source })
    }

    /// Moves every queue pair to ERR, so that everything outstanding comes back as flushed.
    /// Poll until nothing is outstanding; then no device touches the buffers any more.
    pub fn fail_all(&mut self) {
        for rail in (0..RAILS as u8).map(RailId::Data).chain([RailId::Notify]) {
            self.fail_rail(rail);
        }
    }

    /// Moves one queue pair to ERR; the virtual queue pair follows when it sees a flushed request.
    pub fn fail_rail(&mut self, rail: RailId) {
        if let Some(qp) = self.qp.physical_mut(rail)
            && qp.state() != QpState::Err
        {
            // Refused if the device is gone: then there is nothing left to flush either.
            _ = qp.to_error();
        }
    }
}

/// Connects two endpoints of one process.
///
/// # Errors
///
/// As [`Endpoint::connect`].
pub fn connect_endpoints<const RAILS: usize, const DEPTH: usize, const WRS: usize>(
    a: &mut Endpoint<QueuePair, CompletionQueue, RAILS, DEPTH, WRS>,
    b: &mut Endpoint<QueuePair, CompletionQueue, RAILS, DEPTH, WRS>,
) -> Result<(), ConnectError> {
    let (address_a, address_b) = (a.address(), b.address());
    a.connect(&address_b)?;
    b.connect(&address_a)
}
