//! What happens beside the data path: links, rails, ends.

use super::meets::Member;
use super::object::{PeersOn, on_backend};
use crate::call::call;
use crate::code::Code;
use crate::news::{Item, rail_number};
use crate::table::exclusive;
use crate::types::{Event, Peers};
use polyrail::backend::Domain;
use polyrail::chain::Chain;
use polyrail::verbs::WcStatus;
use polyrail::virtual_qp::QpState;
use std::ffi::c_void;

impl<D: Domain> PeersOn<D> {
    /// Drives links and rails in some of the polls.
    #[inline]
    pub(super) fn drive_sometimes(&mut self) {
        if self.pace.is_time() {
            self.drive();
        }
    }

    /// Drives links of all peers, and finds out what happened to rails.
    #[cold]
    pub(super) fn drive(&mut self) {
        let all: Vec<_> = self.numbers.all().collect();
        all.into_iter().for_each(|(place, peer)| self.drive_one(place, peer));
    }

    pub(super) fn drive_one(&mut self, place: usize, peer: u64) {
        let Self { set, kept, news, .. } = self;
        let (Some(qp), Some(kept)) = (set.get_mut(place), kept.get_mut(place)) else { return };
        kept.drive(peer, &mut Member(qp), news);
        while news.has_room() {
            let Some(event) = qp.take_rail_event() else { break };
            let rail = rail_number(event.event.rail);
            news.push(peer, Item::of_rail(rail, &event.event.kind, event.to_string()));
        }
        if qp.state() == QpState::Error {
            kept.fail(peer, || Chain(&qp.explain(WcStatus::WR_FLUSH_ERR)).to_string(), news);
        }
    }
}

/// Drives links and healing at once, which otherwise some of the polls do. Never waits for long: making a queue pair
/// may take a driver milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_drive(peers: *mut Peers) -> Code {
    call(|| {
        on_backend!(&mut *exclusive(peers)?, peers => {
            peers.set.heal();
            peers.drive();
        });
        Ok(())
    })
}

/// The oldest thing that happened to a peer and was not taken yet, with the bytes that came with it, which may be as
/// many as POLYRAIL_MESSAGE_BYTES; POLYRAIL_CODE_TOO_SHORT leaves it where it is. Never waits:
/// POLYRAIL_CODE_NOT_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_next_event(
    peers: *mut Peers,
    event: *mut Event,
    bytes: *mut c_void,
    capacity: usize,
) -> Code {
    call(|| {
        on_backend!(&mut *exclusive(peers)?, peers => {
            // SAFETY: the caller's promise.
            unsafe { peers.news.next(event, bytes, capacity) }
        })
    })
}
