//! Work outside the data path: driving links and repairs, and taking events.

use super::object::AnyPeers;
use crate::call::call;
use crate::code::Code;
use crate::table::exclusive;
use crate::types::{Event, Peers};
use std::ffi::c_void;

/// Takes the oldest event of all peers, and stores it with its bytes, at most
/// POLYRAIL_MESSAGE_BYTES; text that is longer is cut. Never waits. POLYRAIL_CODE_NOT_NOW: there is
/// no event. POLYRAIL_CODE_TOO_SHORT: the bytes exceed `capacity`; the event was not taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_next_event(
    peers: *mut Peers,
    event: *mut Event,
    bytes: *mut c_void,
    capacity: usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { exclusive(peers)?.common.events.next(event, bytes, capacity) }
    })
}

/// Drives links and repairs rails immediately, instead of in one of the next polls. Never waits for
/// long, but a driver may take milliseconds to create a queue pair.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_drive(peers: *mut Peers) -> Code {
    call(|| {
        let AnyPeers { common, set } = &mut *exclusive(peers)?;
        let set = set.connections();
        set.heal();
        common.drive(set);
        Ok(())
    })
}
