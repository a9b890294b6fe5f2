//! The data that a peer needs to connect to an endpoint.

use crate::backend::Gid;
use crate::card::ConnectionCard;
use crate::queue_pair::RailAddress;
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

impl Address {
    /// What no other endpoint on the same network has: number and place of the first queue pair,
    /// and its TCP port, because processes of one host can have the same address and number.
    pub(super) fn first(&self) -> (u32, Gid, u16) {
        let rail = self.rails.first();
        let gid = rail.map(|rail| rail.gid).unwrap_or_default();
        let port = rail.and_then(|rail| rail.meeting).map_or(0, |meeting| meeting.port);
        (self.card.qp_nums.first().copied().unwrap_or_default(), gid, port)
    }

    /// The queue pairs with their numbers. The notify queue pair is last, if it has a number and
    /// its address is known.
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
