//! How peers come and go.

use super::object::{AnyPeers, Found};
use crate::arguments::out;
use crate::call::call;
use crate::code::Code;
use crate::error::{Refusal, refuse};
use crate::peer_state::PeerState;
use crate::sized::read;
use crate::stack::on_a_deep_one;
use crate::table::{self, exclusive};
use crate::types::{EndpointOptions, Peers};

impl AnyPeers {
    fn add(&mut self, options: Option<&EndpointOptions>) -> Result<u64, Refusal> {
        let Self { common, set } = self;
        let set = set.connections();
        let place = set.add(options)?;
        Ok(common.welcome(set, place))
    }

    fn remove(&mut self, peer: u64) -> Result<(), Refusal> {
        let Found { common, set, place } = self.find(peer)?;
        set.remove(place, peer)?;
        common.forget(place, peer);
        common.numbers.remove(place);
        Ok(())
    }

    /// Ends all links, so that the other sides know, and all connections. Returns whether no device accesses memory of
    /// theirs any more.
    fn close(&mut self) -> bool {
        self.common.states.iter_mut().for_each(PeerState::end_link);
        self.set.connections().close()
    }
}

/// Options that may be NULL.
///
/// # Safety
///
/// As of all arguments.
pub(super) unsafe fn given(
    options: *const EndpointOptions,
) -> Result<Option<EndpointOptions>, Refusal> {
    // SAFETY: the caller's promise.
    (!options.is_null()).then(|| unsafe { read(options) }).transpose()
}

/// Closes peers with their links. Nothing is reported any more, and no device accesses memory of requests or messages
/// any more. Peers for messages wait for that: if it takes more than 10 seconds, POLYRAIL_CODE_STILL_ACCESSED is
/// returned; the memory stays registered then, and is not the caller's again.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_close(peers: *mut Peers) -> Code {
    call(|| {
        let mut removed = table::remove(peers)?;
        if removed.close() {
            return Ok(());
        }
        // Its queue pairs would be destroyed, but its devices do not answer.
        std::mem::forget(removed);
        refuse(Code::StillAccessed, "messages did not end, though they were given up")
    })
}

/// Adds a peer, and stores its number, which no other ever has in this object. Its lowest 16 bits are those of no
/// other at the same time, and are counted from 0 on. `options` may be NULL: those that the object was opened with;
/// peers for messages all have those. The others go on meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_add(
    peers: *mut Peers,
    options: *const EndpointOptions,
    peer: *mut u64,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(peer, "peer") }?;
        // SAFETY: the caller's promise.
        let options = unsafe { given(options) }?;
        let peers = &mut *exclusive(peers)?;
        place.write(on_a_deep_one(|| peers.add(options.as_ref()))?);
        Ok(())
    })
}

/// Gives a connection up. What was posted to a peer for requests comes back, as flushed or as it ended, in the next
/// polls; messages fail, as soon as no device accesses their memory any more.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_fail(peers: *mut Peers, peer: u64) -> Code {
    call(|| {
        let mut peers = exclusive(peers)?;
        let found = peers.find(peer)?;
        found.set.fail(found.place);
        Ok(())
    })
}

/// Removes a peer and its link as soon as no device can access the memory of its requests or
/// messages. A peer for requests is removed immediately, and its unreported requests are never
/// reported. To receive these reports, first call polyrail_peers_fail and poll: over several rails
/// until `unreported` of polyrail_peers_info is 0, over a single rail until as many requests are
/// reported as were posted. A peer for messages is given up first, as by polyrail_peers_fail, and
/// POLYRAIL_CODE_NOT_NOW may be returned: poll, and call again. After success its messages are
/// discarded without a report.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_remove(peers: *mut Peers, peer: u64) -> Code {
    call(|| {
        let peers = &mut *exclusive(peers)?;
        on_a_deep_one(|| peers.remove(peer))
    })
}
