//! What two endpoints have to know of each other, as plain data that travels.

use crate::backend::{ConnectOptions, Gid, Mtu, Port};
use crate::card::ConnectionCard;
use polyrail_core::virtual_qp::{RailId, Scheme};
use serde::{Serialize, Serializer};

/// What a peer has to know to connect: the card, where its queue pairs live, and what both sides
/// have to have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The queue pairs.
    pub card: ConnectionCard,
    /// How receivers are notified; the same on both sides.
    #[serde(serialize_with = "scheme_name")]
    pub scheme: Scheme,
    /// Bytes of the longest fragment; over several rails both sides take the lesser one.
    pub max_msg_size: u32,
    /// Where the rails' queue pairs live, in the order of the card.
    pub rails: Vec<RailAddress>,
    /// Where the notify queue pair lives, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<RailAddress>,
}

/// Where one physical queue pair lives, and how a connection with it begins. Its number is on the
/// card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RailAddress {
    /// Place of its device among the endpoint's, and so of the keys that open memory to it.
    pub device: u8,
    /// Address of its port.
    #[serde(serialize_with = "as_shown")]
    pub gid: Gid,
    /// Local identifier of its port; 0 where there is none (RoCE).
    pub lid: u16,
    /// Payload bytes of the longest packet that its port takes. The smaller of the two ends'
    /// becomes the path's.
    #[serde(serialize_with = "in_bytes")]
    pub mtu: Mtu,
    /// The packet sequence number that it starts with, 24 bits.
    pub psn: u32,
    /// READs and atomics that it takes from the peer at a time.
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
