//! What can be asked about peers.

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
        // Ends are noticed there.
        found.common.drive_one(found.set, place, peer);
        let standing = found.set.standing(place);
        let Standing { rails, rails_in_service, is_degraded, unreported, first_error } = standing;
        let peer = found.state();
        let words = peer.end.clone().or(first_error).unwrap_or_default();
        Ok(PeerInfo {
            size: 0,
            state: peer.state(peer.end.is_some(), is_degraded) as u32,
            rails,
            rails_in_service,
            unreported,
            has_link: peer.link.is_some().into(),
            words: fixed(&words),
        })
    }
}

/// Where a connection stands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_info(
    peers: *mut Peers,
    peer: u64,
    info: *mut PeerInfo,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { place(info) }?;
        place.put(&exclusive(peers)?.info(peer)?);
        Ok(())
    })
}

/// What every rail of a connection for requests did, or every queue pair of a connection for messages: those that send,
/// then those that receive. Stores up to `capacity`, and in `count` how many there are.
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
        // SAFETY: the caller's promise.
        unsafe { give_list((rails, capacity), count, &all) }
    })
}
