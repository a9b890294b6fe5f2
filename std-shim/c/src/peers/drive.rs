//! What happens beside the data path, driven and taken.

use super::object::AnyPeers;
use crate::call::call;
use crate::code::Code;
use crate::table::exclusive;
use crate::types::{Event, Peers};
use std::ffi::c_void;

/// Drives links and healing at once, which otherwise some of the polls do. Never waits for long: making a queue pair
/// may take a driver milliseconds.
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
        // SAFETY: the caller's promise.
        unsafe { exclusive(peers)?.common.events.next(event, bytes, capacity) }
    })
}
