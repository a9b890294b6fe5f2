//! Failing, removing and replacing peers, and closing objects.

use super::object::{AnyPeers, Found, on_requests};
use crate::arguments::out;
use crate::call::call;
use crate::code::Code;
use crate::error::{Refusal, refuse};
use crate::peer_state::PeerState;
use crate::sized::given;
use crate::stack::on_a_deep_one;
use crate::table::{self, exclusive};
use crate::types::{EndpointOptions, POLYRAIL_RAIL_NOTIFY, Peers};
use polyrail::virtual_qp::RailId;

impl AnyPeers {
    fn remove(&mut self, peer: u64) -> Result<(), Refusal> {
        let Found { common, set, place } = self.find(peer)?;
        common.publish_metrics(set, place);
        set.remove(place, peer)?;
        common.forget(place, peer);
        common.numbers.remove(place);
        Ok(())
    }

    /// Closes all links, which notifies the other sides, and fails all connections. Returns whether
    /// no device accesses their memory any more.
    fn close(&mut self) -> bool {
        let Self { common, set } = self;
        common.states.iter_mut().for_each(PeerState::end_link);
        let set = set.connections();
        let is_closed = set.close();
        common.end_metrics(set);
        is_closed
    }
}

/// Fails one rail of a peer for requests, for example before its device is removed. `rail` may be
/// POLYRAIL_RAIL_NOTIFY. With rerouting, other rails take over.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_fail_rail(peers: *mut Peers, peer: u64, rail: u32) -> Code {
    call(|| {
        let rail = match (rail, u8::try_from(rail)) {
            (POLYRAIL_RAIL_NOTIFY, _) => RailId::Notify,
            (_, Ok(number)) => RailId::Data(number),
            _ => return refuse(Code::Argument, format_args!("there is no rail {rail}")),
        };
        on_requests!(&mut *exclusive(peers)?, (common, requests) => {
            requests.fail_rail(common, peer, rail)
        })
    })
}

/// Fails a connection. The next polls report what was posted to a peer for requests, as flushed or
/// with its real status. Messages fail as soon as no device accesses their memory any more.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_fail(peers: *mut Peers, peer: u64) -> Code {
    call(|| {
        let mut peers = exclusive(peers)?;
        let found = peers.find(peer)?;
        found.set.fail(found.place);
        Ok(())
    })
}

/// Removes a peer for requests, failed or not, and adds a new peer in its place, which is not
/// connected. The numbers of the two peers have the same lowest 16 bits. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_replace(
    peers: *mut Peers,
    peer: u64,
    options: *const EndpointOptions,
    new_peer: *mut u64,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(new_peer, "new_peer") }?;
        // SAFETY: guaranteed by the caller.
        let options = unsafe { given(options) }?;
        let new_peer = on_requests!(&mut *exclusive(peers)?, (common, requests) => {
            on_a_deep_one(|| requests.replace(common, peer, options.as_ref()))
        });
        place.write(new_peer?);
        Ok(())
    })
}

/// Removes a peer and its link as soon as no device can access the memory of its requests or
/// messages. A peer for requests is removed immediately, and its unreported requests are never
/// reported. To receive these reports, first call polyrail_peers_fail and poll: over several rails
/// until `unreported` of polyrail_peers_info is 0, over a single rail until as many requests are
/// reported as were posted. A peer for messages is failed first, as by polyrail_peers_fail, and
/// POLYRAIL_CODE_NOT_NOW may be returned: poll, and call again. After success its messages are
/// discarded without a report.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_remove(peers: *mut Peers, peer: u64) -> Code {
    call(|| {
        let peers = &mut *exclusive(peers)?;
        on_a_deep_one(|| peers.remove(peer))
    })
}

/// Closes a polling object, with all its peers and their links. Messages that polyrail_peers_say
/// has accepted are still sent, unless the link is broken, or the peer has not read for so long
/// that the system has no room for them. The other sides may see their receives fail before these
/// messages arrive. Afterwards nothing is reported any more, and no device accesses memory of
/// requests or messages. With peers for messages the call waits until that is so. If this takes
/// more than 10 seconds, it returns POLYRAIL_CODE_STILL_ACCESSED: the memory then stays registered,
/// and does not belong to the caller again.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_close(peers: *mut Peers) -> Code {
    call(|| {
        let mut removed = table::remove(peers)?;
        if removed.close() {
            return Ok(());
        }
        // Leaked, because dropping it would destroy its queue pairs, and its devices do not answer.
        std::mem::forget(removed);
        refuse(Code::StillAccessed, "messages did not end, though they were given up")
    })
}
