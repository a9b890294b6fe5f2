//! How peers are connected, and what the two ends tell each other.

use super::connections::Member;
use super::object::{AnyPeers, Found};
use crate::arguments::{Answer, bytes, check_length};
use crate::call::call;
use crate::code::Code;
use crate::error::{Refusal, refuse};
use crate::link::{self, PeerLink};
use crate::table::exclusive;
use crate::types::{Link, POLYRAIL_HELLO_BYTES, POLYRAIL_MESSAGE_BYTES, Peers};
use std::ffi::c_void;

impl AnyPeers {
    fn connect(&mut self, peer: u64, card: &[u8]) -> Result<(), Refusal> {
        let mut found = self.find(peer)?;
        found.state().check_not_connected()?;
        found.set.connect(found.place, card)?;
        found.state().is_connected = true;
        Ok(())
    }

    fn meet(&mut self, peer: u64, link: *mut Link, hello: &[u8]) -> Result<(), Refusal> {
        let mut found = self.find(peer)?;
        found.state().check_not_connected()?;
        // Only now: the link stays the caller's if the call was wrong.
        let link = link::take(link)?;
        let mut member = Member { set: &mut *found.set, place: found.place };
        let link = PeerLink::begin(link, hello, &mut member)?;
        found.state().link = Some(link);
        Ok(())
    }

    fn say(&mut self, peer: u64, said: &[u8]) -> Result<(), Refusal> {
        let place = self.common.numbers.place(peer)?;
        link::say(&mut self.common.states[place].link, said)
    }

    /// Refuses what is for peers without a link.
    fn carried_by_caller(&mut self, peer: u64) -> Result<Found<'_>, Refusal> {
        let mut found = self.find(peer)?;
        found.state().check_no_link()?;
        match found.set.reroutes(found.place) {
            true => Ok(found),
            false => refuse(Code::State, "the peer's rails are not rerouted"),
        }
    }
}

/// The card of this end of a connection: bytes for the other end, to be carried there by whatever way. At most
/// POLYRAIL_CARD_BYTES. Stores how many in `length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_card(
    peers: *mut Peers,
    peer: u64,
    bytes: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let answer = unsafe { Answer::new(bytes, capacity, length) }?;
        let mut peers = exclusive(peers)?;
        let found = peers.find(peer)?;
        answer.give(found.set.card(found.place)?.as_bytes())
    })
}

/// Connects with the other end, whose card this is. Neither end posts, sends or offers buffers before both have
/// connected, but both may post receives of requests before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_connect(
    peers: *mut Peers,
    peer: u64,
    card: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let card = unsafe { bytes(card, length, "card") }?;
        exclusive(peers)?.connect(peer, card)
    })
}

/// Connects over a link, which is closed with the peer; the handle of the link is of no use any more, whatever becomes
/// of it, unless an error says that the call itself was wrong. `hello`, at most POLYRAIL_HELLO_BYTES, is what the other
/// side is told. Never waits: both ends are polled until an event tells that it is done. Receives of requests may be
/// posted before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_meet(
    peers: *mut Peers,
    peer: u64,
    link: *mut Link,
    hello: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let hello = unsafe { bytes(hello, length, "hello") }?;
        check_length(length, POLYRAIL_HELLO_BYTES)?;
        exclusive(peers)?.meet(peer, link, hello)
    })
}

/// Sends a message of at most POLYRAIL_MESSAGE_BYTES over the peer's link. POLYRAIL_CODE_NOT_NOW:
/// the two sides are not connected yet, or the peer has too many unread messages. A side with 256
/// untaken events reads no messages; if it reads none for 9 seconds while messages wait, the link
/// may break and reconnect. Messages are not ordered with requests and messages over the rails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_say(
    peers: *mut Peers,
    peer: u64,
    bytes: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let said = unsafe { self::bytes(bytes, length, "bytes") }?;
        check_length(length, POLYRAIL_MESSAGE_BYTES)?;
        exclusive(peers)?.say(peer, said)
    })
}

/// With rerouting, and without a link: what this end of a connection has to tell the other one, to be carried there
/// in order, after every poll until it is POLYRAIL_CODE_NOT_NOW. At most POLYRAIL_MESSAGE_BYTES, and there must be
/// room for as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_next_control(
    peers: *mut Peers,
    peer: u64,
    bytes: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let mut answer = unsafe { Answer::new(bytes, capacity, length) }?;
        answer.check_room(POLYRAIL_MESSAGE_BYTES)?;
        let mut peers = exclusive(peers)?;
        let found = peers.carried_by_caller(peer)?;
        let message = found.set.next_control(found.place).ok_or(Refusal::NotNow)?;
        answer.give(message.as_bytes())
    })
}

/// What the other end's polyrail_peers_next_control has given. POLYRAIL_CODE_NOT_NOW: poll, and hand it over again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_control(
    peers: *mut Peers,
    peer: u64,
    bytes: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let text = unsafe { self::bytes(bytes, length, "bytes") }?;
        let mut peers = exclusive(peers)?;
        let found = peers.carried_by_caller(peer)?;
        found.set.control(found.place, text)
    })
}

/// What carried those broke, and there is another way: both ends say so before anything goes over the new one.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_control_lost(peers: *mut Peers, peer: u64) -> Code {
    call(|| {
        let mut peers = exclusive(peers)?;
        let found = peers.carried_by_caller(peer)?;
        found.set.control_lost(found.place);
        Ok(())
    })
}
