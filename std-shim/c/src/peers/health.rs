//! The state of peers and of their rails.

use super::connections::Standing;
use super::object::AnyPeers;
use crate::arguments::give_list;
use crate::call::call;
use crate::code::Code;
use crate::devices::fixed;
use crate::error::Refusal;
use crate::sized::place;
use crate::table::exclusive;
use crate::types::{PeerInfo, Peers, RailInfo};

impl AnyPeers {
    fn info(&mut self, peer: u64) -> Result<PeerInfo, Refusal> {
        let mut found = self.find(peer)?;
        let place = found.place;
        // Detects that the connection has ended.
        found.common.drive_one(found.set, place, peer);
        let standing = found.set.standing(place);
        let Standing { rails, rails_in_service, is_degraded, unreported } = standing;
        let peer = found.state();
        let words = peer.end.as_ref().or(peer.rail_failure.as_ref());
        Ok(PeerInfo {
            size: 0,
            state: peer.state(peer.end.is_some(), is_degraded) as u32,
            rails,
            // The rails of a failed connection keep the states that they had.
            rails_in_service: if peer.end.is_some() { 0 } else { rails_in_service },
            unreported,
            has_link: peer.link.is_some().into(),
            words: fixed(words.map_or("", |words| words)),
        })
    }
}

/// Stores the state of a connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_info(
    peers: *mut Peers,
    peer: u64,
    info: *mut PeerInfo,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { place(info) }?;
        place.put(&exclusive(peers)?.info(peer)?);
        Ok(())
    })
}

/// Stores the state and counters of every rail of a connection for requests, or of every queue pair
/// of a connection for messages: first the queue pairs that send, then the queue pairs that
/// receive. Stores up to `capacity` entries, and in `count` the number of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_rails(
    peers: *mut Peers,
    peer: u64,
    rails: *mut RailInfo,
    capacity: usize,
    count: *mut usize,
) -> Code {
    call(|| {
        let mut peers = exclusive(peers)?;
        let found = peers.find(peer)?;
        let all = found.set.rails(found.place);
        // SAFETY: guaranteed by the caller.
        unsafe { give_list((rails, capacity), count, &all) }
    })
}
