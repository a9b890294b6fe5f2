//! Messages over one stream: it connects, both sides prove that they have the token, and messages
//! go to and fro. Nothing here waits, and the time is an argument.

use super::dial::{Dial, FEW_ATTEMPTS};
use super::error::{HandshakeError, LinkError};
use super::gate::Gate;
use super::incoming::Incoming;
use super::message::Message;
use super::purpose::Purpose;
use super::stream::{Network, Stream, is_gone};
use super::timeouts::Timeouts;
use super::token::Token;
use rustix::event::PollFlags;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A stream breaks when the peer's host has not answered for so long, so that a host without power,
/// which closes nothing, is noticed.
const SILENCE: Duration = Duration::from_secs(20);

/// Why a stream carries no messages any more.
#[derive(Debug)]
pub(super) enum Fault {
    /// The system says that the stream broke.
    Broken { doing: &'static str, source: io::Error },
    /// The peer ended it, or one of the two sides broke the protocol.
    Over(LinkError),
}

impl From<LinkError> for Fault {
    fn from(error: LinkError) -> Self {
        Self::Over(error)
    }
}

impl From<HandshakeError> for Fault {
    fn from(error: HandshakeError) -> Self {
        Self::Over(error.into())
    }
}

/// Where a side connects to.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) network: Arc<dyn Network>,
    /// The address as the caller has given it.
    pub(super) name: String,
    /// Its addresses, in the order of the attempts.
    pub(super) addresses: Vec<SocketAddr>,
    /// The one that answered as the peer, once one has.
    pub(super) met: Option<SocketAddr>,
    pub(super) timeouts: Timeouts,
    /// The token that the peer requires.
    pub(super) token: Option<Token>,
}

impl Target {
    /// Notes the address that answered as the peer, and puts it before the others: those of the
    /// name, and those of the peer's queue pairs, where its listener may be, too.
    pub(super) fn meet(&mut self, answered: SocketAddr, queue_pairs: &[IpAddr]) {
        let also = queue_pairs.iter().map(|ip| SocketAddr::new(*ip, answered.port()));
        let mut ordered = vec![answered];
        for address in self.addresses.drain(..).chain(also) {
            if !ordered.contains(&address) {
                ordered.push(address);
            }
        }
        (self.addresses, self.met) = (ordered, Some(answered));
    }

    /// Puts an address after the others: a process listens there that may not be the peer.
    pub(super) fn put_last(&mut self, address: SocketAddr) {
        if let Some(place) = self.addresses.iter().position(|other| *other == address) {
            self.addresses[place..].rotate_left(1);
        }
    }
}

/// Messages over one stream.
#[derive(Debug)]
pub(super) struct Channel<P: Purpose> {
    /// `None` if this side connects and no attempt is under way, because the next one waits until
    /// the system has resources.
    stream: Option<Box<dyn Stream>>,
    /// While this side connects. `stream` is then the one of the attempt that began last.
    dial: Option<Dial>,
    /// The address that answered, on the side that connected.
    answered: Option<SocketAddr>,
    gate: Gate,
    /// When the peer was last asked for an answer: when this side was connected, and by each part
    /// of the proofs.
    asked: Option<Instant>,
    incoming: Incoming<P>,
    /// When the message that is incomplete began.
    began: Option<Instant>,
    /// Bytes that the stream has not taken, and how many of them it has.
    unsent: Vec<u8>,
    taken: usize,
    /// Bytes that wait until the gate is open.
    held: Vec<u8>,
    /// How the stream broke when it was written to. What the peer sent before is received first.
    broke: Option<io::Error>,
    message_timeout: Duration,
}

impl<P: Purpose> Channel<P> {
    /// Carries messages over a stream that was accepted from a peer.
    pub(super) fn over(
        stream: Box<dyn Stream>,
        message_timeout: Duration,
        token: Option<&Token>,
    ) -> Self {
        stream.watch(SILENCE);
        Self::new(stream, message_timeout, Gate::listens(token))
    }

    fn new(stream: Box<dyn Stream>, message_timeout: Duration, gate: Gate) -> Self {
        Self {
            stream: Some(stream),
            dial: None,
            answered: None,
            gate,
            asked: None,
            incoming: Incoming::new(),
            began: None,
            unsent: Vec::new(),
            taken: 0,
            held: Vec::new(),
            broke: None,
            message_timeout,
        }
    }

    /// Begins to connect.
    pub(super) fn dial(target: Target, now: Instant) -> Result<Self, LinkError> {
        let Target { network, name, addresses, met, timeouts, token } = target;
        let Timeouts { connect, message, .. } = timeouts;
        let gate = Gate::connects(token.as_ref());
        let (dial, stream) = Dial::begin(network, name, &addresses, (connect, now))?;
        let dial = if met.is_some() { dial.at_most(FEW_ATTEMPTS) } else { dial };
        Ok(Self { dial: Some(dial), ..Self::new(stream, message, gate) })
    }

    /// Adds addresses to connect to.
    pub(super) fn also(&mut self, addresses: &[SocketAddr], timeout: (Duration, Instant)) {
        self.dial.iter_mut().for_each(|dial| dial.also(addresses, timeout));
    }

    /// Goes on to connect, and with the proofs. Returns whether both are done.
    pub(super) fn open(&mut self, now: Instant) -> Result<bool, Fault> {
        if !self.connect(now)? {
            return Ok(false);
        }
        self.flush();
        while !self.gate.is_open() {
            let asked = *self.asked.get_or_insert(now);
            let Some(message) = self.take(now)? else {
                if now.saturating_duration_since(asked) >= self.message_timeout {
                    let expected = self.gate.expected();
                    return Err(self.no_answer(expected, self.message_timeout).into());
                }
                return Ok(false);
            };
            self.asked = Some(now);
            if let Some(answer) = self.gate.pass(&message)? {
                self.unsent.extend(answer.encode());
            }
            if self.gate.is_open() {
                self.unsent.append(&mut self.held);
            }
            self.flush();
        }
        Ok(true)
    }

    fn connect(&mut self, now: Instant) -> Result<bool, Fault> {
        let Some(dial) = &mut self.dial else { return Ok(true) };
        let Some(address) = dial.step(&mut self.stream, now)? else { return Ok(false) };
        self.dial = None;
        self.answered = Some(address);
        self.asked = Some(now);
        // Not before: the limit would end a connect, too (tcp(7), TCP_USER_TIMEOUT).
        self.watch(SILENCE);
        match self.gate.knock()? {
            Some::<Message<P>>(knock) => self.unsent.extend(knock.encode()),
            None => self.unsent.append(&mut self.held),
        }
        Ok(true)
    }

    /// Returns the address that answered, once this side is connected; `None` on the side that
    /// accepted.
    pub(super) const fn answered(&self) -> Option<SocketAddr> {
        self.answered
    }

    /// Returns whether this side is connected, and both sides have proved that they have the token.
    pub(super) fn is_open(&self) -> bool {
        self.dial.is_none() && self.gate.is_open()
    }

    /// Returns when the peer was last asked for an answer, by this side's connecting or its part of
    /// the proofs, if that was after `since`.
    pub(super) fn asked(&self, since: Instant) -> Instant {
        self.asked.map_or(since, |asked| asked.max(since))
    }

    /// Returns whether the peer may still have to prove that it has this side's token.
    pub(super) fn wants_proof(&self) -> bool {
        matches!(self.gate, Gate::Closed(_) | Gate::Asked(..))
    }

    /// Returns the next message, if all of it is there. Before the channel is open there is none.
    pub(super) fn receive(&mut self, now: Instant) -> Result<Option<Message<P>>, Fault> {
        if !self.open(now)? {
            return Ok(None);
        }
        match self.take(now)? {
            Some(Message::Knock { .. }) => Err(LinkError::NoToken.into()),
            message => Ok(message),
        }
    }

    /// Takes the next message from the stream.
    fn take(&mut self, now: Instant) -> Result<Option<Message<P>>, Fault> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        loop {
            if let Some(message) = self.incoming.next_message()? {
                self.began = None;
                return match message {
                    Message::Refused { reason } => Err(LinkError::TokenRefused { reason }.into()),
                    message => Ok(Some(message)),
                };
            }
            match stream.read(self.incoming.room()) {
                Ok(0) => return Err(self.gone()),
                Ok(bytes) => self.incoming.filled(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.broke.is_none() => {
                    break;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(self.gone()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    let broke = self.broke.take();
                    let source = broke.unwrap_or(source);
                    return Err(Fault::Broken { doing: "receiving a message", source });
                }
            }
        }
        let pending = self.incoming.pending();
        let began = if pending > 0 { *self.began.get_or_insert(now) } else { now };
        if now.saturating_duration_since(began) >= self.message_timeout {
            return Err(LinkError::Stalled { pending, waited: self.message_timeout }.into());
        }
        Ok(None)
    }

    /// Adds a message to those that are to be sent. It is held back until the channel is open,
    /// except that a peer without the token may be sent the reason of its refusal.
    pub(super) fn push(&mut self, message: &Message<P>) {
        let is_refusal = self.wants_proof() && message.is_last();
        let queue = match self.is_open() || is_refusal {
            true => &mut self.unsent,
            false => &mut self.held,
        };
        queue.extend(message.encode());
    }

    /// Sends what the stream takes now. Returns whether nothing is left. If the stream broke, the
    /// next receive shows that, after the peer's last message: the system keeps what arrived before
    /// a reset, and reports the reset only once (tcp(7)).
    pub(super) fn flush(&mut self) -> bool {
        let Some(stream) = self.stream.as_mut().filter(|_| self.dial.is_none()) else {
            return false;
        };
        while self.taken < self.unsent.len() {
            match stream.write(&self.unsent[self.taken..]) {
                Ok(written) => self.taken += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    // A stream that the peer has closed ends where the peer's bytes end.
                    if source.kind() != ErrorKind::BrokenPipe {
                        self.broke.get_or_insert(source);
                    }
                    break;
                }
            }
        }
        self.clear();
        self.held.is_empty()
    }

    /// Returns whether the stream broke when it was written to, and the next receive shows that.
    pub(super) const fn has_broken(&self) -> bool {
        self.broke.is_some()
    }

    /// What ends a stream from which nothing more comes.
    fn gone(&mut self) -> Fault {
        match self.broke.take() {
            Some(source) => Fault::Broken { doing: "sending a message", source },
            None => self.hung_up().into(),
        }
    }

    fn clear(&mut self) {
        self.unsent.clear();
        self.taken = 0;
    }

    /// Takes the stream of another channel, which is open. What this channel has not sent is
    /// dropped.
    pub(super) fn replace(&mut self, NewStream { stream, unread }: NewStream) {
        self.stream = Some(stream);
        self.incoming.go_on(&unread);
        self.began = None;
        self.broke = None;
        self.clear();
    }

    /// Has the system break the stream when the peer's host has not answered for `silence`.
    pub(super) fn watch(&self, silence: Duration) {
        self.stream.iter().for_each(|stream| stream.watch(silence));
    }

    /// Returns the stream, if this side is connected.
    pub(super) fn into_stream(self) -> Option<NewStream> {
        let unread = self.incoming.unread().to_vec();
        let stream = self.stream.filter(|_| self.dial.is_none());
        stream.map(|stream| NewStream { stream, unread })
    }

    /// Breaks the stream. The peer finds a reset, not an end.
    pub(super) fn reset(&self) {
        self.stream.iter().for_each(|stream| stream.reset());
    }

    /// Returns whether the peer gave up.
    pub(super) fn is_over(&self) -> bool {
        self.incoming.is_over()
    }

    /// What the channel waits for; `None` if that does not show on a stream.
    pub(super) fn waits_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let flags = match (&self.dial, self.unsent.is_empty()) {
            (Some(_), _) => PollFlags::OUT,
            (None, true) => PollFlags::IN,
            (None, false) => PollFlags::IN | PollFlags::OUT,
        };
        self.fd().map(|stream| (stream, flags))
    }

    /// The file descriptor of the stream, if there is one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(|stream| (**stream).as_fd())
    }

    /// When an incomplete message is too late.
    pub(super) fn complete_by(&self) -> Option<Instant> {
        self.began.and_then(|began| began.checked_add(self.message_timeout))
    }

    pub(super) const fn message_timeout(&self) -> Duration {
        self.message_timeout
    }

    fn hung_up(&self) -> LinkError {
        LinkError::HungUp { pending: self.incoming.pending() }
    }

    /// The error for a message that did not come in time, or not to its end.
    pub(super) fn no_answer(&self, expected: &'static str, waited: Duration) -> LinkError {
        match self.incoming.pending() {
            0 => LinkError::NoAnswer { expected, waited },
            pending => LinkError::Stalled { pending, waited },
        }
    }

    /// The error of a link that is not resumed after this fault.
    pub(super) fn end(&self, fault: Fault) -> LinkError {
        match fault {
            Fault::Over(error) => error,
            Fault::Broken { source, .. } if is_gone(&source) => self.hung_up(),
            Fault::Broken { doing, source } => LinkError::Io { doing, source },
        }
    }
}

/// A stream for a link that exists already, with the bytes that were read from it.
#[derive(Debug)]
pub(super) struct NewStream {
    pub(super) stream: Box<dyn Stream>,
    pub(super) unread: Vec<u8>,
}
