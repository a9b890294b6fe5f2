//! Connecting peers, and the messages between the two ends.

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
        // Last, so that the link remains the caller's if an argument is wrong.
        let link = link::take(link)?;
        let mut member = Member { set: &mut *found.set, place: found.place };
        let link = PeerLink::begin(link, hello, &mut member)?;
        found.state().link = Some(link);
        found.common.pace.restart();
        Ok(())
    }

    fn say(&mut self, peer: u64, said: &[u8]) -> Result<(), Refusal> {
        let place = self.common.numbers.place(peer)?;
        link::say(&mut self.common.states[place].link, said)
    }

    /// Finds a peer whose repair messages the caller carries; refuses a peer with a link.
    fn carried_by_caller(&mut self, peer: u64) -> Result<Found<'_>, Refusal> {
        let mut found = self.find(peer)?;
        found.state().check_no_link()?;
        match found.set.reroutes(found.place) {
            true => Ok(found),
            false => refuse(Code::State, "the peer's rails are not rerouted"),
        }
    }
}

/// Connects over a link. The link then belongs to the peer, and is closed with it. Its handle is
/// invalid after this call, even if the connection fails; it stays valid only if the call is
/// refused because of its arguments or the peer's state. `hello`, at most POLYRAIL_HELLO_BYTES, is
/// sent to the other side. Never waits: poll both ends until an event reports that they are
/// connected; a loop that sleeps between its polls calls polyrail_peers_drive in each turn.
/// Receives of requests may be posted earlier; a poll may store their completions before the event
/// POLYRAIL_EVENT_KIND_CONNECTED is taken. Options that do not match (POLYRAIL_CODE_MISMATCH) are
/// the result of this call if the link was accepted by a listener, and otherwise the event
/// POLYRAIL_EVENT_KIND_NOT_CONNECTED. After either, the peer is as before: its receives stay
/// posted, and it may meet over another link.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_meet(
    peers: *mut Peers,
    peer: u64,
    link: *mut Link,
    hello: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let hello = unsafe { bytes(hello, length, "hello") }?;
        check_length(length, POLYRAIL_HELLO_BYTES)?;
        exclusive(peers)?.meet(peer, link, hello)
    })
}

/// Stores the card of this end of a connection in `bytes`, and its length, at most
/// POLYRAIL_CARD_BYTES, in `length`. The caller carries the card to the other end in any way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_card(
    peers: *mut Peers,
    peer: u64,
    bytes: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let answer = unsafe { Answer::new(bytes, capacity, length) }?;
        let mut peers = exclusive(peers)?;
        let found = peers.find(peer)?;
        answer.give(found.set.card(found.place)?.as_bytes())
    })
}

/// Connects with the other end, which made this card. Neither end may post, send or offer buffers
/// before both ends have connected; only receives of requests may be posted earlier. Waits while
/// the device connects queue pairs, for about a second over RoCE if no path to the peer is found;
/// polyrail_peers_meet does not. If the call fails because a port is down or no path to the other
/// end is found, it may be repeated with the same card, and connects the rest: the code is
/// POLYRAIL_CODE_DEVICE, and the message of the error names the reason.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_connect(
    peers: *mut Peers,
    peer: u64,
    card: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let card = unsafe { bytes(card, length, "card") }?;
        exclusive(peers)?.connect(peer, card)
    })
}

/// Sends a message of at most POLYRAIL_MESSAGE_BYTES over the peer's link. POLYRAIL_CODE_NOT_NOW:
/// the two sides are not connected yet, or the peer has too many unread messages. While 64 events
/// of a peer are not taken, no messages of this peer are read; if none are read for 9 seconds while
/// messages wait, the link may break and reconnect. Messages are not ordered with requests and
/// messages over the rails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_say(
    peers: *mut Peers,
    peer: u64,
    bytes: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let said = unsafe { self::bytes(bytes, length, "bytes") }?;
        check_length(length, POLYRAIL_MESSAGE_BYTES)?;
        exclusive(peers)?.say(peer, said)
    })
}

/// Stores the next repair message for the other end, if the peer's rails are rerouted and it has no
/// link. After every poll, call this until it returns POLYRAIL_CODE_NOT_NOW, and carry the messages
/// to the other end in order. `capacity` must be at least POLYRAIL_MESSAGE_BYTES, the maximum
/// length of a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_next_control(
    peers: *mut Peers,
    peer: u64,
    bytes: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let mut answer = unsafe { Answer::new(bytes, capacity, length) }?;
        answer.check_room(POLYRAIL_MESSAGE_BYTES)?;
        let mut peers = exclusive(peers)?;
        let found = peers.carried_by_caller(peer)?;
        let message = found.set.next_control(found.place).ok_or(Refusal::NotNow)?;
        answer.give(message.as_bytes())
    })
}

/// Handles a message that polyrail_peers_next_control stored at the other end.
/// POLYRAIL_CODE_NOT_NOW: the message was not taken; poll, and pass it again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_control(
    peers: *mut Peers,
    peer: u64,
    bytes: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let text = unsafe { self::bytes(bytes, length, "bytes") }?;
        let mut peers = exclusive(peers)?;
        let found = peers.carried_by_caller(peer)?;
        found.set.control(found.place, text)
    })
}

/// Reports that the channel which carried these messages broke and was replaced. Both ends must
/// call this before any message goes over the new channel.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_control_lost(peers: *mut Peers, peer: u64) -> Code {
    call(|| {
        let mut peers = exclusive(peers)?;
        let found = peers.carried_by_caller(peer)?;
        found.set.control_lost(found.place);
        Ok(())
    })
}
