//! A stream that carries messages, with timeouts.

use super::anew::{Anew, NewLink, Origin};
use super::error::LinkError;
use super::gate::{AtGate, Gate};
use super::hello::Hello;
use super::incoming::Incoming;
use super::message::Message;
use super::purpose::{NoPurpose, Purpose};
use super::session::Session;
use super::stream::{Stream, deadline, is_closed, is_gone, is_reset, wait, watch_closely};
use super::timeouts::MESSAGE_TIMEOUT;
use super::token::{Prover, Token, random};
use super::unsent::Unsent;
use rustix::event::PollFlags;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

/// How errors name a hello that is waited for.
pub const HELLO: &str = "\"hello\"";
/// How errors name the message that a side is ready.
pub const READY: &str = "\"ready\"";
/// How errors name the message that a side is done.
pub const DONE: &str = "\"done\"";
const CHALLENGE: &str = "\"challenge\"";
const PROOF: &str = "\"proof\"";
const RESUMED: &str = "\"resumed\"";

/// How long a wait lasts at most where a link may be made anew: the new one does not show on the old one.
const LOOK_FOR_LINK: Duration = Duration::from_millis(20);

/// Whose hello.
const OURS: usize = 0;
const THEIRS: usize = 1;

/// One end of the control connection between two sides that meet for a [`Purpose`].
///
/// A connection over TCP outlives its link if both sides agree to that in their hellos
/// ([`session`](Self::session)): when the link breaks, the side that connected connects again, and the
/// listener of the other side hands the new link to it ([`join`](Self::join)). Either side learns of it by
/// [`Message::Resumed`].
#[derive(Debug)]
pub struct Link<P: Purpose = NoPurpose> {
    stream: Box<dyn Stream>,
    incoming: Incoming<P>,
    unsent: Unsent,
    /// Closed until the other side has proved that it knows this side's token.
    gate: Gate,
    /// When the message that is incomplete began.
    began: Option<Instant>,
    message_timeout: Duration,
    /// Where the link comes from, if a new one can be had there.
    origin: Option<Origin>,
    /// What the two hellos name, this side's and the other's.
    sessions: [Option<Session>; 2],
    /// Once both name the same.
    anew: Option<Anew<P>>,
}

impl<P: Purpose> Link<P> {
    pub(super) fn over(stream: impl Stream + 'static, message_timeout: Duration) -> Self {
        Self {
            stream: Box::new(stream),
            incoming: Incoming::new(),
            unsent: Unsent::default(),
            gate: Gate::Open,
            began: None,
            message_timeout,
            origin: None,
            sessions: [None; 2],
            anew: None,
        }
    }

    pub(super) fn from(self, origin: Origin) -> Self {
        Self { origin: Some(origin), ..self }
    }

    /// Asks those that connected for a proof that they know the token, if there is one.
    pub(super) fn behind(self, token: Option<Token>) -> Self {
        Self { gate: Gate::new(token), ..self }
    }

    /// Waits until the other side has proved that it knows this side's token.
    pub(super) fn expect_proof(&mut self) -> Result<(), LinkError> {
        let until = deadline(self.message_timeout);
        // Not a message more than that: the other side may have no more to say, and be gone.
        while !self.gate.is_open() {
            match self.receive()? {
                Some(message) => match self.gate.pass(message)? {
                    AtGate::Answered(answer) => self.write(&answer)?,
                    AtGate::Passes(Message::Failed { reason }) => {
                        return Err(LinkError::GaveUp { reason });
                    }
                    AtGate::Passes(message) => return Err(message.out_of_turn(PROOF).into()),
                },
                None if until.is_some_and(|until| Instant::now() >= until) => {
                    return Err(self.no_answer(PROOF, self.message_timeout));
                }
                None => self.wait_until(until)?,
            }
        }
        Ok(())
    }

    /// Proves that this side, which connected, knows the token, and has the other side do the same.
    pub(super) fn prove(&mut self, token: &Token) -> Result<(), LinkError> {
        let ours = random();
        self.write(&Message::Knock { nonce: ours })?;
        let nonces = match self.expect_what(CHALLENGE, self.message_timeout)? {
            Message::Challenge { nonce } => [ours, nonce],
            other => return Err(other.out_of_turn(CHALLENGE).into()),
        };
        self.write(&Message::Proof { proof: token.proof(Prover::Connects, &nonces) })?;
        match self.expect_what(PROOF, self.message_timeout)? {
            Message::Proof { proof } if token.is_proved(Prover::Listens, &nonces, &proof) => Ok(()),
            Message::Proof { .. } => Err(LinkError::WrongToken),
            other => Err(other.out_of_turn(PROOF).into()),
        }
    }

    /// The two ends of a control connection within this process.
    ///
    /// # Errors
    ///
    /// The system gave no pair of sockets.
    pub fn pair() -> Result<(Self, Self), LinkError> {
        let failed = |source| LinkError::Io { doing: "making a pair of sockets", source };
        let (a, b) = UnixStream::pair().map_err(failed)?;
        for end in [&a, &b] {
            end.set_nonblocking(true).map_err(failed)?;
        }
        Ok((Self::over(a, MESSAGE_TIMEOUT), Self::over(b, MESSAGE_TIMEOUT)))
    }

    /// What this side's hello says of the link, if it is to be made anew when it breaks: a side that connected
    /// chooses a name, and one that was connected to repeats what the other side's hello says. `None` where
    /// that cannot be: within a process.
    pub fn session(&self) -> Option<Session> {
        match &self.origin {
            Some(Origin::Connected { .. }) => Some(Session::random()),
            Some(Origin::Accepted { .. }) => self.sessions[THEIRS],
            None => None,
        }
    }

    /// Whether the link broke, and a new one is waited for: what is sent is lost, but for
    /// [`Message::Ready`], [`Message::Done`] and [`Message::Failed`].
    pub fn is_broken(&self) -> bool {
        self.anew.as_ref().is_some_and(Anew::is_missing)
    }

    /// The other side has sent [`Message::Resume`] where a hello could have come: this is a new link for an earlier
    /// connection of the same [`Listener`](super::Listener), which gets it.
    ///
    /// # Errors
    ///
    /// There is no such connection, or not any more: then this one is returned, to tell the other side.
    pub fn join(self, session: Session) -> Result<(), Box<Self>> {
        let Some(Origin::Accepted { sessions, timeouts }) = self.origin.clone() else {
            return Err(Box::new(self));
        };
        let message_timeout = self.message_timeout;
        sessions.join(session, self.into_link()).map_err(|NewLink { stream, unread }| {
            let mut control = Self::over(stream, message_timeout);
            control.incoming.go_on(&unread);
            Box::new(control.from(Origin::Accepted { sessions, timeouts }))
        })
    }

    pub(super) fn into_link(self) -> NewLink {
        NewLink { stream: self.stream, unread: self.incoming.unread().to_vec() }
    }

    /// Notes what a hello says of the link: once both name the same session, it is made anew when it breaks.
    fn note_session(&mut self, whose: usize, message: &Message<P>) {
        let Message::Hello(Hello { session, .. }) = message else { return };
        self.sessions[whose] = *session;
        if let [Some(ours), Some(theirs)] = self.sessions
            && ours == theirs
            && let Some(origin) = &self.origin
        {
            self.anew = Anew::new(ours, origin.clone());
            if self.anew.is_some() {
                watch_closely(self.stream.as_fd());
            }
        }
    }

    /// Sends a message. If the other side is gone, the next receive shows that, after its last message. What
    /// is lost while the link is [broken](Self::is_broken) is not an error.
    ///
    /// # Errors
    ///
    /// The other side does not take the message, or has not proved yet that it knows this side's token: then it
    /// is told only that this side gives up.
    pub fn send(&mut self, message: &Message<P>) -> Result<(), LinkError> {
        if self.may_say(message)? {
            self.write(message)?;
            self.note_session(OURS, message);
        }
        Ok(())
    }

    /// Whether there is a link to say it over.
    fn may_say(&mut self, message: &Message<P>) -> Result<bool, LinkError> {
        if !self.gate.is_open() && !matches!(message, Message::Failed { .. }) {
            return Err(LinkError::TokenWanted);
        }
        let Some(anew) = &mut self.anew else { return Ok(true) };
        anew.note_said(message);
        Ok(!anew.is_missing())
    }

    fn write(&mut self, message: &Message<P>) -> Result<(), LinkError> {
        self.unsent.push(&message.encode());
        let deadline = deadline(self.message_timeout);
        while !self.write_unsent()? {
            if !wait(&*self.stream, PollFlags::OUT, deadline)? {
                return Err(LinkError::Deaf { waited: self.message_timeout });
            }
        }
        Ok(())
    }

    /// Writes what the other side takes now; whether nothing is left.
    fn write_unsent(&mut self) -> Result<bool, LinkError> {
        let source = match self.unsent.write_to(&mut *self.stream) {
            Ok(all) => return Ok(all),
            Err(source) => source,
        };
        self.unsent.clear();
        // What was lost, the next receive shows; where a new link may be had, it does not show it again.
        if is_closed(&source) || is_reset(&source) && self.anew.is_none() {
            return Ok(true);
        }
        self.broke("sending a message", source).map(|_| true)
    }

    /// Sends a message as [`send`](Self::send) does, and never waits: what the other side does not take now, goes
    /// with the next call that sends, receives, or [goes on sending](Self::go_on_sending).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), but for a side that does not listen.
    pub fn offer(&mut self, message: &Message<P>) -> Result<(), LinkError> {
        if self.may_say(message)? {
            self.unsent.push(&message.encode());
            self.write_unsent()?;
            self.note_session(OURS, message);
        }
        Ok(())
    }

    /// Goes on with what was [offered](Self::offer); whether the other side has taken all of it. Until it has, no more
    /// should be offered.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn go_on_sending(&mut self) -> Result<bool, LinkError> {
        Ok(self.unsent.is_empty() || self.write_unsent()?)
    }

    /// The next message, if all of it is there.
    ///
    /// # Errors
    ///
    /// The other side is gone, and its last message was taken; it broke the protocol; it began a
    /// message and takes too long to finish it; the link broke, and was not made anew.
    pub fn try_recv(&mut self) -> Result<Option<Message<P>>, LinkError> {
        if let Some(anew) = &mut self.anew {
            if let Some(link) = anew.take_link()? {
                return self.go_on_over(link);
            }
            if anew.is_missing() {
                return Ok(None);
            }
        }
        self.go_on_sending()?;
        while let Some(message) = self.receive()? {
            match self.gate.pass(message)? {
                AtGate::Passes(message) => {
                    self.note_session(THEIRS, &message);
                    return Ok(Some(message));
                }
                AtGate::Answered(answer) => self.write(&answer)?,
            }
        }
        Ok(None)
    }

    /// The first message over a new link tells the owner of it.
    fn go_on_over(&mut self, link: NewLink) -> Result<Option<Message<P>>, LinkError> {
        let NewLink { stream, unread } = link;
        self.stream = stream;
        self.incoming.go_on(&unread);
        self.unsent.clear();
        self.began = None;
        watch_closely(self.stream.as_fd());
        let opening = self.anew.as_ref().map(Anew::opening).unwrap_or_default();
        opening.iter().try_for_each(|message| self.write(message))?;
        Ok(Some(Message::Resumed {}))
    }

    fn receive(&mut self) -> Result<Option<Message<P>>, LinkError> {
        loop {
            if let Some(message) = self.incoming.next_message()? {
                self.began = None;
                return Ok(Some(message));
            }
            match self.stream.read(self.incoming.room()) {
                Ok(0) => return Err(self.hung_up()),
                Ok(bytes) => self.incoming.filled(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return self.broke("receiving a message", source),
            }
        }
        if self.incoming.pending() > 0
            && self.began.get_or_insert_with(Instant::now).elapsed() >= self.message_timeout
        {
            let pending = self.incoming.pending();
            let waited = self.message_timeout;
            return Err(LinkError::Stalled { pending, waited });
        }
        Ok(None)
    }

    /// The system says that the link broke. Nothing comes any more for now, if it is to be made anew.
    fn broke(
        &mut self,
        doing: &'static str,
        source: io::Error,
    ) -> Result<Option<Message<P>>, LinkError> {
        match &mut self.anew {
            Some(anew) if !self.incoming.is_over() && !is_closed(&source) => {
                anew.note_broken(source);
                Ok(None)
            }
            _ if is_gone(&source) => Err(self.hung_up()),
            _ => Err(LinkError::Io { doing, source }),
        }
    }

    /// Waits for the next message, all of it: a peer that sends a byte now and then gains nothing.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv); the other side gave up; nothing came within `timeout`.
    pub fn expect(&mut self, timeout: Duration) -> Result<Message<P>, LinkError> {
        self.expect_what("a message", timeout)
    }

    fn expect_what(
        &mut self,
        expected: &'static str,
        timeout: Duration,
    ) -> Result<Message<P>, LinkError> {
        let mut until = deadline(timeout);
        loop {
            match self.try_recv()? {
                Some(Message::Failed { reason }) => return Err(LinkError::GaveUp { reason }),
                Some(message) => return Ok(message),
                None => {}
            }
            if self.is_broken() {
                // Nothing can come. How long that may last, is another limit.
                until = deadline(timeout);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(self.no_answer(expected, timeout));
            }
            let complete_by = self.began.and_then(|began| began.checked_add(self.message_timeout));
            self.wait_until([until, complete_by].into_iter().flatten().min())?;
        }
    }

    /// Waits until there is something to receive, or it is known that there will be nothing any more;
    /// at most for `timeout`.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn wait_for_news(&self, timeout: Duration) -> Result<(), LinkError> {
        self.wait_until(deadline(timeout))
    }

    fn wait_until(&self, until: Option<Instant>) -> Result<(), LinkError> {
        if self.anew.is_none() {
            return wait(&*self.stream, PollFlags::IN, until).map(|_| ());
        }
        let look = deadline(LOOK_FOR_LINK);
        let until = [until, look].into_iter().flatten().min();
        if self.is_broken() {
            thread::sleep(
                until
                    .map_or(LOOK_FOR_LINK, |until| until.saturating_duration_since(Instant::now())),
            );
            return Ok(());
        }
        wait(&*self.stream, PollFlags::IN, until).map(|_| ())
    }

    /// Waits for the other side's hello, as long as a message may take.
    ///
    /// # Errors
    ///
    /// As [`expect`](Self::expect).
    pub fn expect_hello(&mut self) -> Result<Hello<P>, LinkError> {
        match self.expect_what(HELLO, self.message_timeout)? {
            Message::Hello(hello) => Ok(hello),
            other => Err(other.out_of_turn(HELLO).into()),
        }
    }

    /// Waits until the other side is ready, as long as a message may take.
    ///
    /// # Errors
    ///
    /// As [`expect`](Self::expect).
    pub fn expect_ready(&mut self) -> Result<(), LinkError> {
        loop {
            match self.expect_what(READY, self.message_timeout)? {
                Message::Ready {} => return Ok(()),
                // Before that there is nothing of which a part could be lost.
                Message::Resumed {} => {}
                other => return Err(other.out_of_turn(READY).into()),
            }
        }
    }

    pub(super) fn expect_resumed(&mut self) -> Result<(), LinkError> {
        match self.expect_what(RESUMED, self.message_timeout)? {
            Message::Resumed {} => Ok(()),
            other => Err(other.out_of_turn(RESUMED).into()),
        }
    }

    fn hung_up(&self) -> LinkError {
        LinkError::HungUp { pending: self.incoming.pending() }
    }

    /// How long the other side may take for one message, and for its part of the set-up.
    pub fn message_timeout(&self) -> Duration {
        self.message_timeout
    }

    /// The error for a message that did not come in time, or not to its end.
    pub fn no_answer(&self, expected: &'static str, waited: Duration) -> LinkError {
        match self.incoming.pending() {
            0 => LinkError::NoAnswer { expected, waited },
            pending => LinkError::Stalled { pending, waited },
        }
    }
}

/// For waiting on many at once.
impl<P: Purpose> AsFd for Link<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (*self.stream).as_fd()
    }
}
