//! Accepting links.

use super::failure::link_failure;
use super::handle::{Chosen, Unused, chosen};
use super::meeting::{Meeting, OurHello, OurLink};
use crate::arguments::{Answer, needed_text, out};
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal};
use crate::table::{self, Kind, Object, WORDS};
use crate::types::{Link, LinkOptions, Listener};
use polyrail::link::{self, Arrival, Arrivals, Timeouts};
use std::collections::VecDeque;
use std::ffi::{c_char, c_void};

/// A listener, the links without a hello, and the links whose hello has arrived.
pub(crate) struct Listening {
    listener: link::Listener,
    timeouts: Timeouts,
    arrivals: Arrivals<Meeting>,
    ready: VecDeque<(OurLink, OurHello)>,
}

impl Object for Listener {
    const KIND: Kind = Kind::Listener;
    const NAME: &str = "polyrail_listener";
    type Value = Listening;
}

impl Listening {
    fn accept(&mut self) -> Result<(OurLink, OurHello), Refusal> {
        if self.ready.is_empty() {
            let arrived = self.arrivals.step(&self.listener, &self.timeouts, |_, _| {});
            let arrived = arrived.map_err(|error| link_failure(&error))?;
            self.ready.extend(arrived.into_iter().map(|Arrival { link, hello, .. }| (link, hello)));
        }
        self.ready.pop_front().ok_or(Refusal::NotNow)
    }
}

/// Begins to listen at an address such as "10.0.0.2:7471"; with port 0, the system chooses the port.
/// "*:7471" listens at all addresses of this host, IPv4 and, if the system has it, IPv6.
/// `options` may be NULL. While accepted links are in use, keep the listener open and call
/// polyrail_listener_accept regularly: an accepted link that breaks reconnects through the
/// listener.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_listener_open(
    address: *const c_char,
    options: *const LinkOptions,
    listener: *mut *mut Listener,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(listener, "listener") }?;
        // SAFETY: the caller's promise.
        let address = unsafe { needed_text(address, "address") }?;
        // SAFETY: the caller's promise.
        let Chosen { timeouts, token } = unsafe { chosen(options) }?;
        let bound = link::Listener::bind(address);
        let listener = bound.map_err(|error| link_failure(&error))?;
        let listener = match token {
            Some(token) => listener.with_token(token),
            None => listener,
        };
        let (arrivals, ready) = (Arrivals::default(), VecDeque::new());
        let listening = Listening { listener, timeouts, arrivals, ready };
        place.write(table::insert(listening, &[0; WORDS])?);
        Ok(())
    })
}

/// Stores the address of the listener as text that ends with a 0 byte, and in `length` the number
/// of bytes without the 0 byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_listener_address(
    listener: *mut Listener,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let answer = unsafe { Answer::new(text.cast::<c_void>(), capacity, length) }?;
        let listening = table::exclusive(listener)?;
        let address = listening.listener.local_addr();
        let address = address.map_err(|error| Failure::of(Code::Link, &error))?;
        answer.give_with(address.to_string().as_bytes(), &[0])
    })
}

/// Stores the next link whose peer has sent its hello; see polyrail_link_hello. Never waits:
/// returns POLYRAIL_CODE_NOT_NOW if there is no such link.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_listener_accept(
    listener: *mut Listener,
    link: *mut *mut Link,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(link, "link") }?;
        let accepted = table::exclusive(listener)?.accept()?;
        place.write(table::insert(Unused::Accepted(Box::new(accepted)), &[0; WORDS])?);
        Ok(())
    })
}

/// Stops listening. Accepted links stay open, but no longer reconnect if they break.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_listener_close(listener: *mut Listener) -> Code {
    call(|| table::remove(listener).map(drop))
}
