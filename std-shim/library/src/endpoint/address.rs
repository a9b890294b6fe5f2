//! The data that a peer needs to connect to an endpoint.

use crate::backend::{ConnectOptions, Gid, Mtu, Port};
use crate::card::ConnectionCard;
use polyrail_core::virtual_qp::{RailId, Scheme};
use serde::{Serialize, Serializer};

/// The data that a peer needs to connect: the connection card, the addresses of the queue pairs,
/// and the options that both ends must share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The queue pairs.
    pub card: ConnectionCard,
    /// How receivers are notified; equal at both ends.
    #[serde(serialize_with = "scheme_name")]
    pub scheme: Scheme,
    /// Length of the longest fragment in bytes; over several rails, both ends use the smaller one.
    pub max_msg_size: u32,
    /// Addresses of the rails' queue pairs, in the order of the card.
    pub rails: Vec<RailAddress>,
    /// Address of the notify queue pair, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<RailAddress>,
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
}

impl RailAddress {
    /// Of a queue pair on this port of the device at this place.
    pub(crate) fn new(device: usize, port: &Port, psn: u32, options: &ConnectOptions) -> Self {
        Self {
            device: device as u8,
            gid: port.gid,
            lid: port.lid,
            mtu: options.path_mtu.min(port.mtu),
            psn,
            rd_atomic: options.max_rd_atomic.min(port.max_rd_atomic),
        }
    }

    /// Whether the addresses of the two ports can be joined. Ports that have LIDs go by those.
    pub(crate) fn meets(&self, peer: &Self) -> bool {
        self.lid != 0 || peer.lid != 0 || self.gid.kind().meets(peer.gid.kind())
    }
}

impl Address {
    /// What no other endpoint on the same network has: number and place of the first queue pair.
    pub(super) fn first(&self) -> (u32, Gid) {
        let gid = self.rails.first().map(|rail| rail.gid);
        (self.card.qp_nums.first().copied().unwrap_or_default(), gid.unwrap_or_default())
    }

    /// The queue pairs with their numbers. The notify queue pair is last, if it has a number and its
    /// address is known.
    pub(super) fn queue_pairs(&self) -> impl Iterator<Item = (RailId, u32, &RailAddress)> {
        let rails = (0..).map(RailId::Data).zip(&self.card.qp_nums).zip(&self.rails);
        let notify = self.notify.iter().filter(|_| self.card.notify_qp_num != 0);
        let notify = notify.map(|rail| (RailId::Notify, self.card.notify_qp_num, rail));
        rails.map(|((id, qp_num), rail)| (id, *qp_num, rail)).chain(notify)
    }
}

fn scheme_name<S: Serializer>(scheme: &Scheme, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match scheme {
        Scheme::Spray => "spray",
        Scheme::Dqplb => "dqplb",
    })
}

/// As tools show it.
fn as_shown<S: Serializer>(gid: &Gid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(gid)
}

fn in_bytes<S: Serializer>(mtu: &Mtu, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(mtu.bytes())
}
