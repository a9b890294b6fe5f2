//! Accepting links.

use super::handle::{Chosen, Unused, chosen};
use super::meeting::{OurHello as Hello, OurLink, OurMessage as Message};
use crate::arguments::{Answer, needed_text, out};
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal};
use crate::table::{self, Kind, Object, WORDS};
use crate::types::{Link, LinkOptions, Listener};
use polyrail::link::{self, Reason, Timeouts};
use std::ffi::{c_char, c_void};
use std::time::Instant;

/// Those that have connected and said nothing yet. More are not accepted before one of them has, or has been given up.
const MOST_SILENT: usize = 64;

/// A listener, and those that have not said hello yet.
pub(crate) struct Listening {
    listener: link::Listener,
    timeouts: Timeouts,
    silent: Vec<(OurLink, Instant)>,
}

impl Object for Listener {
    const KIND: Kind = Kind::Listener;
    const NAME: &str = "polyrail_listener";
    type Value = Listening;
}

/// What came of one that connected.
enum Heard {
    Nothing(OurLink),
    Hello(OurLink, Hello),
    /// It is none of ours, or belongs to an earlier link.
    Gone,
}

fn hear(mut control: OurLink) -> Heard {
    match control.try_recv() {
        Ok(None) => Heard::Nothing(control),
        Ok(Some(Message::Hello(hello))) => Heard::Hello(control, hello),
        Ok(Some(Message::Resume { session })) => {
            if let Err(mut control) = control.join(session) {
                give_up(&mut control, "there is no such connection");
            }
            Heard::Gone
        }
        Ok(Some(Message::Failed { .. })) => Heard::Gone,
        Ok(Some(other)) => {
            give_up(&mut control, &other.out_of_turn("\"hello\"").to_string());
            Heard::Gone
        }
        Err(error) => {
            give_up(&mut control, &error.to_string());
            Heard::Gone
        }
    }
}

/// It learns why, if it is still there.
fn give_up(control: &mut OurLink, why: &str) {
    _ = control.offer(&Message::Failed { reason: Reason::new(why) });
}

impl Listening {
    fn accept(&mut self) -> Result<(OurLink, Hello), Refusal> {
        while self.silent.len() < MOST_SILENT {
            let accepted = self.listener.try_accept(&self.timeouts);
            match accepted.map_err(|error| Failure::of(Code::Link, &error))? {
                Some((control, _)) => self.silent.push((control, Instant::now())),
                None => break,
            }
        }
        let mut found = None;
        for (mut control, since) in std::mem::take(&mut self.silent) {
            if found.is_some() {
                self.silent.push((control, since));
            } else if since.elapsed() >= self.timeouts.message {
                give_up(&mut control, "no hello came in time");
            } else {
                match hear(control) {
                    Heard::Nothing(control) => self.silent.push((control, since)),
                    Heard::Hello(control, hello) => found = Some((control, hello)),
                    Heard::Gone => {}
                }
            }
        }
        found.ok_or(Refusal::NotNow)
    }
}

/// Begins to listen at an address such as "0.0.0.0:7471"; with port 0 the system chooses one. `options` may be NULL.
/// As long as links that were accepted are in use, it should stay open, and be asked for new ones now and then:
/// those that break are made anew by it.
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
        let listener = bound.map_err(|error| Failure::of(Code::Link, &error))?;
        let listener = match token {
            Some(token) => listener.with_token(token),
            None => listener,
        };
        let listening = Listening { listener, timeouts, silent: Vec::new() };
        place.write(table::insert(listening, &[0; WORDS])?);
        Ok(())
    })
}

/// Where it listens, as text with a 0 behind it. Stores in `length` the bytes without the 0.
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

/// The next link, whose other side has said hello: polyrail_link_hello. Never waits: POLYRAIL_CODE_NOT_NOW.
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

/// Stops listening. Links that were accepted stay, and are not made anew.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_listener_close(listener: *mut Listener) -> Code {
    call(|| table::remove(listener).map(drop))
}
