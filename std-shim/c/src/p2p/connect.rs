//! How peers are connected, and what the two ends tell each other.

use super::meets::{Member, connect_failure};
use super::object::{P2pOn, on_backend};
use crate::arguments::{Answer, bytes, check_length};
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal, refuse};
use crate::link::{self, PeerLink};
use crate::table::exclusive;
use crate::types::{Link, P2p, POLYRAIL_HELLO_BYTES, POLYRAIL_MESSAGE_BYTES};
use polyrail::backend::Domain;
use polyrail::p2p::{P2pAddress, P2pMember};
use std::ffi::c_void;

impl<D: Domain> P2pOn<D> {
    fn connect(&mut self, peer: u64, card: &[u8]) -> Result<(), Refusal> {
        let place = self.numbers.place(peer)?;
        self.kept[place].check_not_connected()?;
        let address = P2pAddress::from_json(card);
        let address = address.map_err(|error| Failure::of(Code::Protocol, &error))?;
        let (place, member) = self.member(peer)?;
        member.connect(&address).map_err(|error| connect_failure(&error))?;
        self.kept[place].is_connected = true;
        Ok(())
    }

    fn meet(&mut self, peer: u64, link: *mut Link, hello: &[u8]) -> Result<(), Refusal> {
        let (place, _) = self.member(peer)?;
        self.kept[place].check_not_connected()?;
        // Only now: the link stays the caller's if the call was wrong.
        let link = link::take(link)?;
        let mut member = Member { set: &mut self.set, place };
        self.kept[place].link = Some(PeerLink::begin(link, hello, &mut member)?);
        Ok(())
    }

    fn say(&mut self, peer: u64, said: &[u8]) -> Result<(), Refusal> {
        let place = self.numbers.place(peer)?;
        link::say(&mut self.kept[place].link, said)
    }

    /// Refuses what is for peers without a link.
    fn carried_by_caller(&mut self, peer: u64) -> Result<(usize, &mut P2pMember<D>), Refusal> {
        let place = self.numbers.place(peer)?;
        self.kept[place].check_no_link()?;
        match self.reroutes {
            true => self.member(peer),
            false => refuse(Code::State, "the peer's rails are not rerouted"),
        }
    }

    fn next_control(&mut self, peer: u64) -> Result<String, Refusal> {
        let (_, member) = self.carried_by_caller(peer)?;
        Ok(member.next_message().ok_or(Refusal::NotNow)?.to_json())
    }

    fn control(&mut self, peer: u64, told: &[u8]) -> Result<(), Refusal> {
        let (place, _) = self.carried_by_caller(peer)?;
        Ok(Member { set: &mut self.set, place }.hear_control(told)?)
    }

    fn control_lost(&mut self, peer: u64) -> Result<(), Refusal> {
        self.carried_by_caller(peer)?.1.link_restored();
        Ok(())
    }
}

/// The card of this end of a connection: bytes for the other end, to be carried there by whatever way. At most
/// POLYRAIL_CARD_BYTES. Stores how many in `length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_p2p_card(
    p2p: *mut P2p,
    peer: u64,
    bytes: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let answer = unsafe { Answer::new(bytes, capacity, length) }?;
        let address = on_backend!(&mut *exclusive(p2p)?, p2p => p2p.member(peer)?.1.address());
        answer.give(address.to_json().as_bytes())
    })
}

/// Connects with the other end, whose card this is. Neither end sends or offers buffers before both have
/// connected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_p2p_connect(
    p2p: *mut P2p,
    peer: u64,
    card: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let card = unsafe { bytes(card, length, "card") }?;
        on_backend!(&mut *exclusive(p2p)?, p2p => p2p.connect(peer, card))
    })
}

/// Connects over a link, which is closed with the peer; the handle of the link is of no use any more, whatever becomes
/// of it, unless an error says that the call itself was wrong. `hello`, at most POLYRAIL_HELLO_BYTES, is what the other
/// side is told. Never waits: both ends are polled until an event tells that it is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_p2p_meet(
    p2p: *mut P2p,
    peer: u64,
    link: *mut Link,
    hello: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let hello = unsafe { bytes(hello, length, "hello") }?;
        check_length(length, POLYRAIL_HELLO_BYTES)?;
        on_backend!(&mut *exclusive(p2p)?, p2p => p2p.meet(peer, link, hello))
    })
}

/// Sends a message over the peer's link, at most POLYRAIL_MESSAGE_BYTES. POLYRAIL_CODE_NOT_NOW: the two sides have not
/// met yet, or too much waits to be taken by the other side: a side that has 256 events to take reads no more, and one
/// that reads nothing for 9 seconds while messages wait may lose its link, which is made anew. It has no order with what
/// goes over the rails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_p2p_say(
    p2p: *mut P2p,
    peer: u64,
    bytes: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let said = unsafe { self::bytes(bytes, length, "bytes") }?;
        check_length(length, POLYRAIL_MESSAGE_BYTES)?;
        on_backend!(&mut *exclusive(p2p)?, p2p => p2p.say(peer, said))
    })
}

/// With rerouting, and without a link: what this end of a connection has to tell the other one, to be carried there
/// in order, after every poll until it is POLYRAIL_CODE_NOT_NOW. At most POLYRAIL_MESSAGE_BYTES, and there must be
/// room for as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_p2p_next_control(
    p2p: *mut P2p,
    peer: u64,
    bytes: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let mut answer = unsafe { Answer::new(bytes, capacity, length) }?;
        answer.check_room(POLYRAIL_MESSAGE_BYTES)?;
        let told = on_backend!(&mut *exclusive(p2p)?, p2p => p2p.next_control(peer)?);
        answer.give(told.as_bytes())
    })
}

/// What the other end's polyrail_p2p_next_control has given. POLYRAIL_CODE_NOT_NOW: poll, and hand it over again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_p2p_control(
    p2p: *mut P2p,
    peer: u64,
    bytes: *const c_void,
    length: usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let told = unsafe { self::bytes(bytes, length, "bytes") }?;
        on_backend!(&mut *exclusive(p2p)?, p2p => p2p.control(peer, told))
    })
}

/// What carried those broke, and there is another way: both ends say so before anything goes over the new one.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_p2p_control_lost(p2p: *mut P2p, peer: u64) -> Code {
    call(|| on_backend!(&mut *exclusive(p2p)?, p2p => p2p.control_lost(peer)))
}
