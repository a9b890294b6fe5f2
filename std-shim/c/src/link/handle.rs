//! Handles of links that do not belong to a peer yet.

use super::addresses::check_form;
use super::failure::link_failure;
use super::meeting::{Meeting, OurHello as Hello, OurLink, OurMessage as Message};
use crate::arguments::{Answer, needed_text, out, text};
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal, refuse};
use crate::sized::read;
use crate::table::{self, Kind, Object, WORDS};
use crate::types::{Link, LinkOptions};
use polyrail::link::{LinkError, Reach, Reason, Timeouts, Token, resolve};
use std::ffi::{c_char, c_void};
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// The least time that a listener which answered has for its first message, if other addresses are
/// left.
const LEAST_SILENCE: Duration = Duration::from_secs(1);

/// How long a lookup is left alone for which this host lacked a thread or a file descriptor.
const LACK_PAUSE: Duration = Duration::from_millis(100);

/// A link that does not belong to a peer yet.
pub(crate) enum Unused {
    /// This side connects.
    Connecting(Connecting),
    /// The peer connected from this address, and its hello has arrived.
    Accepted(Box<(OurLink, Hello, SocketAddr)>),
}

impl Object for Link {
    const KIND: Kind = Kind::Link;
    const NAME: &str = "polyrail_link";
    type Value = Unused;
}

/// A link that this side connects.
pub(crate) enum Connecting {
    /// No address is known that is still to be tried, and names are being looked up.
    Looking(Box<Others>),
    /// This host lacks something for connecting, such as a thread or a file descriptor. Each step
    /// tries again, until connecting is late.
    Lacking(Failure, Box<Others>),
    /// The link connects.
    Begun(Box<OurLink>, Box<Others>),
    /// It could not begin.
    Failed(Failure),
}

impl Connecting {
    /// Begins to connect. Never waits: only names need a thread.
    pub(super) fn begin(list: &str, chosen: Chosen) -> Self {
        Self::with(Box::new(Others::new(list, chosen)))
    }

    /// Begins to look up the names, and to connect to the addresses that are known.
    fn with(mut others: Box<Others>) -> Self {
        match (others.look_up(), others.addresses.is_empty()) {
            (_, false) => Self::dial(others),
            (Ok(()), true) if others.is_looking() => Self::Looking(others),
            (Ok(()), true) => Self::dial(others),
            (Err(error), true) => Self::not_looked_up(&error, others),
        }
    }

    /// The names could not be looked up. They still are to be, if this host lacked something for
    /// it.
    fn not_looked_up(error: &LinkError, others: Box<Others>) -> Self {
        let failure = match others.lookup {
            Lookup::Due(..) => Failure::of(Code::System, error),
            _ => link_failure(error),
        };
        Self::not_begun(failure, others)
    }

    fn dial(others: Box<Others>) -> Self {
        match others.begin() {
            Ok(link) => Self::Begun(Box::new(link), others),
            Err(error) => Self::not_begun(link_failure(&error), others),
        }
    }

    /// The next attempt could not begin, for this reason.
    fn not_begun(failure: Failure, mut others: Box<Others>) -> Self {
        match failure.code {
            Code::System if !others.is_late() => Self::Lacking(failure, others),
            Code::System => Self::Failed(failure),
            _ if others.is_looking() => {
                others.addresses.clear();
                others.refused.get_or_insert(failure);
                Self::Looking(others)
            }
            _ if !others.silent.is_empty() => {
                others.addresses = mem::take(&mut others.silent);
                Self::dial(others)
            }
            _ => Self::Failed(others.refused.take().unwrap_or(failure)),
        }
    }

    /// Continues as far as possible without waiting.
    pub(super) fn step(self) -> Self {
        match self {
            Self::Looking(mut others) => match others.found() {
                Ok(None) => Self::Looking(others),
                Ok(Some(_)) => Self::dial(others),
                Err(error) => Self::not_looked_up(&error, others),
            },
            Self::Lacking(failure, others) if others.is_late() => Self::Failed(failure),
            Self::Lacking(_, others) => Self::with(others),
            Self::Begun(..) | Self::Failed(_) => self,
        }
    }
}

/// Returns the addresses of all names that are known.
fn look_up(list: &[String]) -> Result<Vec<SocketAddr>, LinkError> {
    let mut addresses = Vec::new();
    let mut failed = None;
    for address in list {
        match resolve(address) {
            Ok(found) => addresses.extend(found),
            Err(source) => failed = Some((address.clone(), source)),
        }
    }
    match failed {
        Some((address, source)) if addresses.is_empty() => {
            Err(LinkError::Connect { address, source })
        }
        _ => Ok(addresses),
    }
}

/// The lookup of names, on another thread.
enum Lookup {
    /// There is none: no name, or all were looked up.
    Over,
    /// It begins at this time: it could not begin yet, or could not be done because this host
    /// lacked something for it.
    Due(Vec<String>, Instant),
    /// With the names, in case they have to be looked up again.
    UnderWay(Vec<String>, Receiver<Result<Vec<SocketAddr>, LinkError>>),
}

/// The addresses of a peer that may still be the right ones. Another process may listen at an
/// address of the list, since some addresses, such as that of `docker0`, exist on many hosts.
pub(crate) struct Others {
    addresses: Vec<SocketAddr>,
    /// Addresses that answered and then sent nothing, the one that was left last at the end. They
    /// are tried again after the others: a peer may be busy.
    silent: Vec<SocketAddr>,
    lookup: Lookup,
    chosen: Chosen,
    /// When connecting fails; `None`: never.
    until: Option<Instant>,
    /// When the address answered that is being tried.
    answered: Option<Instant>,
    /// Why the listener that answered last is not the peer.
    refused: Option<Failure>,
}

impl Others {
    /// Takes the list as the program has given it.
    fn new(list: &str, chosen: Chosen) -> Self {
        let (mut addresses, mut names) = (Vec::new(), Vec::new());
        for address in list.split(',').map(str::trim) {
            match address.parse() {
                Ok(address) => addresses.push(address),
                Err(_) => names.push(address.to_owned()),
            }
        }
        let lookup =
            if names.is_empty() { Lookup::Over } else { Lookup::Due(names, Instant::now()) };
        let until = Instant::now().checked_add(chosen.timeouts.connect);
        Self { addresses, silent: Vec::new(), lookup, chosen, until, answered: None, refused: None }
    }

    /// Begins to look up the names, if that is due.
    fn look_up(&mut self) -> Result<(), LinkError> {
        let Lookup::Due(names, at) = &mut self.lookup else { return Ok(()) };
        if *at > Instant::now() {
            return Ok(());
        }
        *at = Instant::now() + LACK_PAUSE;
        let (sender, found) = mpsc::channel();
        let (names, also) = (names.clone(), names.clone());
        // The link may have been closed in the meantime.
        let look_up = move || _ = sender.send(look_up(&names));
        let thread = thread::Builder::new().name("polyrail-lookup".into());
        let started = thread.spawn(look_up);
        started.map_err(|source| LinkError::Io { doing: "starting a thread", source })?;
        self.lookup = Lookup::UnderWay(also, found);
        Ok(())
    }

    const fn is_looking(&self) -> bool {
        !matches!(self.lookup, Lookup::Over)
    }

    /// Returns the addresses that were found, once, and adds them to the others.
    fn found(&mut self) -> Result<Option<Vec<SocketAddr>>, LinkError> {
        self.look_up()?;
        let Lookup::UnderWay(names, lookup) = &mut self.lookup else { return Ok(None) };
        let found = match lookup.try_recv() {
            Err(TryRecvError::Empty) => return Ok(None),
            Ok(found) => found,
            Err(TryRecvError::Disconnected) => {
                let source = io::Error::other("the thread that looked up the name ended");
                Err(LinkError::Io { doing: "looking up a name", source })
            }
        };
        if let Err(error) = &found
            && error.lacks_resources()
        {
            let names = mem::take(names);
            self.lookup = Lookup::Due(names, Instant::now() + LACK_PAUSE);
            return found.map(Some);
        }
        self.lookup = Lookup::Over;
        // The time that a name server took, which may be longer, does not count.
        self.until = Instant::now().checked_add(self.chosen.timeouts.connect);
        let found = found?;
        self.addresses.extend(&found);
        Ok(Some(found))
    }

    /// Adds the addresses of names to those that a link tries, once they are known.
    pub(super) fn add_found(&mut self, link: &mut OurLink) {
        // Without them, the addresses that are known have to do.
        if let Ok(Some(found)) = self.found() {
            link.also(&found, self.time_to_connect());
        }
    }

    fn begin(&self) -> Result<OurLink, LinkError> {
        let Chosen { timeouts, token } = &self.chosen;
        let timeouts = Timeouts { connect: self.time_to_connect(), ..*timeouts };
        OurLink::begin(self.dialled(), &timeouts, token.as_ref())
    }

    /// Returns how long the addresses of an attempt have to answer: half of the time that is left
    /// if others are tried after them.
    fn time_to_connect(&self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.unwrap_or(self.chosen.timeouts.connect);
        if self.addresses.is_empty() || self.silent.is_empty() { left } else { left / 2 }
    }

    /// Returns the addresses of an attempt. One that was silent answers at once again, and would
    /// end the attempts to reach the others.
    fn dialled(&self) -> &[SocketAddr] {
        if self.addresses.is_empty() { &self.silent } else { &self.addresses }
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Returns how long the address that answered has sent nothing, if that is too long because
    /// there are other addresses: half of the time that is left for all of them, and if it was
    /// silent before, most of the time of a message. A listener that has proved its token is the
    /// peer, and may take its time.
    pub(super) fn silence(&mut self, link: &OurLink) -> Option<Duration> {
        let address = link.peer_addr()?;
        let answered = *self.answered.get_or_insert_with(Instant::now);
        let is_the_peer = self.chosen.token.is_some() && link.is_open();
        let mut known = self.addresses.iter().chain(&self.silent);
        let is_alone = known.all(|other| *other == address) && !self.is_looking();
        if is_the_peer || is_alone || self.is_late() {
            return None;
        }
        let until = self.until.filter(|_| !self.silent.contains(&address));
        let left = until.map(|until| until.saturating_duration_since(answered) / 2);
        // Before the meeting has taken too long.
        let most = link.message_timeout() * 4 / 5;
        let limit = left.map_or(most, |left| left.max(LEAST_SILENCE).min(most));
        (answered.elapsed() >= limit).then_some(limit)
    }

    /// Begins to connect to the other addresses, because the one that answered sends nothing.
    pub(super) fn after_silence(
        mut self: Box<Self>,
        answered: Option<SocketAddr>,
        failure: Failure,
    ) -> Result<Connecting, Failure> {
        self.addresses.retain(|address| Some(*address) != answered);
        self.silent.retain(|address| Some(*address) != answered);
        self.silent.extend(answered);
        self.go_on(failure)
    }

    /// Begins to connect to the other addresses, because the listener that answered is not the
    /// peer, for this reason. Without an answer, all addresses were tried, or this host lacked
    /// something for that.
    pub(super) fn next(
        mut self: Box<Self>,
        answered: Option<SocketAddr>,
        failure: Failure,
    ) -> Result<Connecting, Failure> {
        let Others { addresses, silent, .. } = &mut *self;
        let is_last = addresses.is_empty() || silent.is_empty();
        match answered {
            Some(answered) => {
                addresses.retain(|address| *address != answered);
                silent.retain(|address| *address != answered);
            }
            None if failure.code == Code::System && is_last => return Err(failure),
            None if addresses.is_empty() => silent.clear(),
            None => addresses.clear(),
        }
        match (answered, self.refused.take()) {
            (None, Some(refused)) => self.go_on(refused),
            _ => self.go_on(failure),
        }
    }

    /// Begins to connect to the addresses that are left, or reports this failure.
    fn go_on(mut self: Box<Self>, failure: Failure) -> Result<Connecting, Failure> {
        self.answered = None;
        let is_over = self.addresses.is_empty() && self.silent.is_empty();
        if is_over && !self.is_looking() || !is_over && self.is_late() {
            return Err(failure);
        }
        self.refused = Some(failure);
        match self.addresses.is_empty() && self.is_looking() {
            true => Ok(Connecting::Looking(self)),
            false => Ok(Connecting::dial(self)),
        }
    }
}

/// The options of links, with defaults filled in.
pub(crate) struct Chosen {
    pub(super) timeouts: Timeouts,
    pub(super) token: Option<Token>,
}

/// # Safety
///
/// As of all arguments.
pub(super) unsafe fn chosen(options: *const LinkOptions) -> Result<Chosen, Refusal> {
    // SAFETY: the caller's promise.
    let options = unsafe { read(options) }?;
    // SAFETY: the caller's promise.
    let token = unsafe { text(options.token, "token") }?;
    let token = token.map(Token::new).transpose();
    let default = Timeouts::default();
    let or = |ms: u32, default| match ms {
        0 => default,
        ms => Duration::from_millis(ms.into()),
    };
    let timeouts = Timeouts {
        connect: or(options.connect_ms, default.connect),
        accept: None,
        message: or(options.message_ms, default.message),
        resume: or(options.reconnect_ms, default.resume),
        ..default
    };
    Ok(Chosen { timeouts, token: token.map_err(|error| Failure::of(Code::Argument, &error))? })
}

/// Begins to connect to a listener, such as "10.0.0.2:7471", in the background, and returns at
/// once. `address` may be a list of addresses of one listener, separated by commas, the best first.
/// Names are looked up meanwhile, and tried last. Attempts begin 250 ms apart, or sooner if there
/// are many addresses or an attempt fails, and go on until the peer answers, for `connect_ms` in
/// all, also while this host has no file descriptor or thread for them; an address that refuses, as
/// that of a listener that is not open yet, is not tried again. If another process answers
/// instead, the remaining addresses are tried; likewise if the process that answers has not proved
/// the token and sends nothing for half of the time that is left, for at least 1 s and at most four
/// fifths of `message_ms`. Such a process may be a busy peer: its address is tried again after the
/// others, which have half of the time that is left then. The address that has answered when
/// `connect_ms` is over has `message_ms` for its answer. Pass the link to polyrail_peers_meet: the
/// events of that peer report whether the link connected. `options` may be NULL.
/// POLYRAIL_CODE_ARGUMENT: an address is not HOST:PORT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_link_open(
    address: *const c_char,
    options: *const LinkOptions,
    link: *mut *mut Link,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(link, "link") }?;
        // SAFETY: the caller's promise.
        let address = unsafe { needed_text(address, "address") }?;
        address.split(',').try_for_each(|address| check_form(address.trim(), 1))?;
        // SAFETY: the caller's promise.
        let chosen = unsafe { chosen(options) }?;
        let connecting = Unused::Connecting(Connecting::begin(address, chosen));
        place.write(table::insert(connecting, &[0; WORDS])?);
        Ok(())
    })
}

/// Stores the bytes of the peer's hello, at most POLYRAIL_HELLO_BYTES, by which the program can
/// identify the peer. The link must have been accepted by a listener.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_link_hello(
    link: *mut Link,
    bytes: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let answer = unsafe { Answer::new(bytes, capacity, length) }?;
        match &*table::exclusive(link)? {
            Unused::Connecting(_) => {
                refuse(Code::State, "only an accepted link has the hello of its peer")
            }
            Unused::Accepted(accepted) => answer.give(said(&accepted.1)),
        }
    })
}

/// Stores the address from which the peer of an accepted link connected, such as "10.0.0.2:40112",
/// as text that ends with a 0 byte, and in `length` the number of bytes without the 0 byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_link_peer_address(
    link: *mut Link,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let answer = unsafe { Answer::new(text.cast::<c_void>(), capacity, length) }?;
        match &*table::exclusive(link)? {
            Unused::Connecting(_) => {
                refuse(Code::State, "only an accepted link has the address of its peer")
            }
            Unused::Accepted(accepted) => answer.give_with(accepted.2.to_string().as_bytes(), &[0]),
        }
    })
}

/// Returns the program's part of a hello.
pub(super) fn said(hello: &Hello) -> &[u8] {
    hello.purpose.as_ref().map_or(&[], |Meeting { hello, .. }| &hello.0)
}

/// Closes a link that was not passed to polyrail_peers_meet.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_link_close(link: *mut Link) -> Code {
    call(|| table::remove(link).map(drop))
}

/// Closes an accepted link that the program does not use, and sends the other side the reason: its
/// event POLYRAIL_EVENT_KIND_NOT_CONNECTED contains it. Longer reasons are cut off.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_link_refuse(link: *mut Link, reason: *const c_char) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let reason = unsafe { needed_text(reason, "reason") }?;
        if let Unused::Connecting(_) = &*table::exclusive(link)? {
            return refuse(Code::State, "only an accepted link can be refused");
        }
        let Unused::Accepted(accepted) = *table::remove(link)? else { return Ok(()) };
        let (mut control, ..) = *accepted;
        // If it cannot be sent, the other side notices that the link is closed.
        _ = control.offer(&Message::Failed { reason: Reason::new(reason) });
        Ok(())
    })
}

/// Takes the link out of its handle, to pass it to a peer.
pub(crate) fn take(link: *mut Link) -> Result<Unused, Refusal> {
    Ok(*table::remove(link)?)
}

/// Returns the address of the endpoint at the other side of a link that was accepted.
pub(crate) fn reach_of_accepted(link: *mut Link) -> Result<Reach, Refusal> {
    match &*table::exclusive(link)? {
        Unused::Accepted(accepted) => Ok(accepted.1.reach.clone()),
        Unused::Connecting(_) => refuse(
            Code::Argument,
            "the link was not accepted by a listener: the other side's devices are not known yet",
        ),
    }
}

#[cfg(test)]
mod rt_tests;
