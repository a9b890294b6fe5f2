//! Accepting links.

use super::addresses::check_form;
use super::failure::link_failure;
use super::handle::{Chosen, Unused, chosen};
use super::meeting::{Meeting, OurHello, OurLink};
use crate::arguments::{Answer, needed_text, out};
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal};
use crate::table::{self, Kind, Object, WORDS};
use crate::types::{Link, LinkOptions, Listener};
use polyrail::chain::Chain;
use polyrail::link::{self, Arrival, Arrivals, LinkError, Timeouts};
use polyrail::printable;
use rustix::net::{RecvFlags, recv};
use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::net::SocketAddr;

/// Lines about refused peers that are kept. A peer may connect as often as it likes.
const REFUSED: usize = 16;

/// A listener, the links without a hello, and the links whose hello has arrived.
pub(crate) struct Listening {
    listener: link::Listener,
    timeouts: Timeouts,
    arrivals: Arrivals<Meeting>,
    ready: VecDeque<(OurLink, OurHello, SocketAddr)>,
    /// Lines about peers that were refused before their hello, the latest last.
    refused: VecDeque<String>,
}

impl Object for Listener {
    const KIND: Kind = Kind::Listener;
    const NAME: &str = "polyrail_listener";
    type Value = Listening;
}

impl Listening {
    fn accept(&mut self) -> Result<(OurLink, OurHello, SocketAddr), Refusal> {
        if self.ready.is_empty() {
            let refused = &mut self.refused;
            let refuse = |address, why| note_refused(refused, address, &why);
            let arrived = self.arrivals.step(&self.listener, &self.timeouts, refuse);
            let arrived = arrived.map_err(|error| link_failure(&error))?;
            let whole = |Arrival { link, hello, address }| (link, hello, address);
            self.ready.extend(arrived.into_iter().map(whole));
        }
        // A peer that waited in vain may have connected to another address of this listener.
        while self.ready.front().is_some_and(|(link, ..)| has_left(link)) {
            self.ready.pop_front();
        }
        self.ready.pop_front().ok_or(Refusal::NotNow)
    }
}

/// Returns whether the peer of a link has closed it, with no message left to receive.
fn has_left(link: &OurLink) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    link.fd().is_some_and(|fd| recv(fd, &mut [0_u8; 1], flags).is_ok_and(|(bytes, _)| bytes == 0))
}

fn note_refused(refused: &mut VecDeque<String>, address: SocketAddr, why: &LinkError) {
    if why.is_just_an_end() {
        return;
    }
    if refused.len() >= REFUSED {
        refused.pop_front();
    }
    refused.push_back(printable::escaped(&format!("{address}: {}", Chain(why))));
}

/// Begins to listen at an address such as "10.0.0.2:7471"; with port 0, the system chooses the
/// port. "*:7471" listens at all addresses of this host, IPv4 and, if the system has it, IPv6.
/// `options` may be NULL. While accepted links are in use, keep the listener open and call
/// polyrail_listener_accept regularly: an accepted link that breaks reconnects through the
/// listener. POLYRAIL_CODE_ARGUMENT: the address is not HOST:PORT.
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
        check_form(address, 0)?;
        let bound = link::Listener::bind(address);
        let listener = bound.map_err(|error| link_failure(&error))?;
        let listener = match token {
            Some(token) => listener.with_token(token),
            None => listener,
        };
        let (arrivals, ready, refused) = (Arrivals::default(), VecDeque::new(), VecDeque::new());
        let listening = Listening { listener, timeouts, arrivals, ready, refused };
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

/// Stores the next link whose peer has sent its hello, unless the peer has closed it since without
/// a reason; see polyrail_link_hello. Never waits: returns POLYRAIL_CODE_NOT_NOW if there is no
/// such link.
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

/// Stores a line about a peer whose link polyrail_listener_accept has ended before its hello: its
/// address and the reason, such as another token. Peers that just closed the connection are not
/// reported. The line ends with a 0 byte, which `length` does not count. POLYRAIL_CODE_NOT_NOW:
/// there is none. POLYRAIL_CODE_TOO_SHORT: `length` is the capacity that is needed. The last 16
/// lines are kept until they are stored here. polyrail_log reports all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_listener_next_refused(
    listener: *mut Listener,
    line: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let answer = unsafe { Answer::new(line.cast::<c_void>(), capacity, length) }?;
        let mut listening = table::exclusive(listener)?;
        let next = listening.refused.front().ok_or(Refusal::NotNow)?;
        answer.give_with(next.as_bytes(), &[0])?;
        listening.refused.pop_front();
        Ok(())
    })
}

/// Stops listening. Accepted links stay open, but no longer reconnect if they break.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_listener_close(listener: *mut Listener) -> Code {
    call(|| table::remove(listener).map(drop))
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use crate::link::drive::rt_tests::hello;
    use crate::link::meeting::OurMessage as Message;
    use std::time::{Duration, Instant};

    #[test]
    fn only_the_last_refusals_are_kept() {
        let mut refused = VecDeque::new();
        for port in 0..1000 {
            let address = SocketAddr::from(([10, 0, 0, 2], port));
            note_refused(&mut refused, address, &LinkError::WrongToken);
            note_refused(&mut refused, address, &LinkError::HungUp { pending: 0 });
        }
        assert_eq!(refused.len(), REFUSED);
        let last = "10.0.0.2:999: the peer has another token than this side";
        assert_eq!(refused.back().map(String::as_str), Some(last));
    }

    const LONG: Duration = Duration::from_secs(60);

    /// As by a peer that waited in vain, and then connected to another address.
    #[test]
    fn a_link_that_its_peer_has_closed_is_not_accepted() {
        let listener = link::Listener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (timeouts, arrivals) = (Timeouts::default(), Arrivals::default());
        let (ready, refused) = (VecDeque::new(), VecDeque::new());
        let mut listening = Listening { listener, timeouts, arrivals, ready, refused };
        let connect = || {
            let mut link = OurLink::connect(&address, &timeouts).unwrap();
            link.send(&Message::Hello(hello())).unwrap();
            link
        };
        drop(connect());
        let mut stays = connect();
        let begin = Instant::now();
        let (mut accepted, ..) = loop {
            match listening.accept() {
                Ok(accepted) => break accepted,
                Err(Refusal::NotNow) => assert!(begin.elapsed() < LONG),
                Err(Refusal::Failure(failure)) => panic!("{}", failure.words),
            }
        };
        accepted.offer(&Message::Hello(hello())).unwrap();
        while !matches!(stays.try_recv(), Ok(Some(Message::Hello(_)))) {
            assert!(begin.elapsed() < LONG);
        }
    }
}
