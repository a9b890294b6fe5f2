//! Adding, failing and removing peers.

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

    /// Closes all links, which notifies the other sides, and fails all connections. Returns whether
    /// no device accesses their memory any more.
    fn close(&mut self) -> bool {
        self.common.states.iter_mut().for_each(PeerState::end_link);
        self.set.connections().close()
    }
}

/// Reads options, which may be NULL.
///
/// # Safety
///
/// As for all arguments, the pointers are valid for their types.
pub(super) unsafe fn given(
    options: *const EndpointOptions,
) -> Result<Option<EndpointOptions>, Refusal> {
    // SAFETY: guaranteed by the caller.
    (!options.is_null()).then(|| unsafe { read(options) }).transpose()
}

/// Closes a polling object, with all its peers and their links. Afterwards nothing is reported any
/// more, and no device accesses memory of requests or messages. With peers for messages the call
/// waits until that is so. If this takes more than 10 seconds, it returns
/// POLYRAIL_CODE_STILL_ACCESSED: the memory then stays registered, and does not belong to the
/// caller again.
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

/// Adds a peer, and stores its number, which is never used again in this object. The lowest 16 bits
/// of the number are a small index, counted from 0, which differs from the indices of all other
/// present peers. If `options` is NULL, the options apply that the object was opened with; for
/// messages it must be NULL. Other peers keep working meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_add(
    peers: *mut Peers,
    options: *const EndpointOptions,
    peer: *mut u64,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(peer, "peer") }?;
        // SAFETY: guaranteed by the caller.
        let options = unsafe { given(options) }?;
        let peers = &mut *exclusive(peers)?;
        place.write(on_a_deep_one(|| peers.add(options.as_ref()))?);
        Ok(())
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
