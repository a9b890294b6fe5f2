//! One end of a link, as a machine that its owner drives. Nothing here waits.

use super::channel::{Channel, Fault, NewStream, Target};
use super::dial::{alternate, names};
use super::error::LinkError;
use super::hello::{Hello, Session};
use super::message::Message;
use super::purpose::{NoPurpose, Purpose};
use super::resume::{Origin, Resumption, Sessions};
use super::stream::Stream;
use super::tcp::TcpNetwork;
use super::timeouts::{MESSAGE_TIMEOUT, Timeouts};
use super::token::Token;
use polyrail_process::Process;
use rustix::event::PollFlags;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The side that sent a hello.
const OURS: usize = 0;
const THEIRS: usize = 1;

/// One end of a link between two sides that meet for a [`Purpose`].
///
/// A link over TCP outlives its stream if both sides agree to that in their hellos
/// ([`session`](Self::session)): when the stream breaks, the side that connected connects again,
/// and the listener of the other side hands the new stream to the link. Both sides receive
/// [`Message::Resumed`].
///
/// A link has no thread: connecting, proofs, sending and resuming go on in
/// [`try_recv`](Self::try_recv), which never waits, and in the methods that wait. Call one of them
/// when [`fd`](Self::fd) is readable, and also every 20 ms while the link connects and if it has a
/// session, because neither the time for the next attempt nor a new stream shows on the old one.
/// Otherwise once a second is enough to detect time limits that have passed.
///
/// A fork of the process cannot use the link, which would mix its messages with the parent's: every
/// method that sends or receives returns [`LinkError::Forked`], and dropping the link sends
/// nothing.
///
/// | methods | they |
/// |---|---|
/// | [`begin`](Self::begin), [`offer`](Self::offer), [`go_on_sending`](Self::go_on_sending), [`try_recv`](Self::try_recv) | never wait |
/// | [`connect`](Self::connect), [`send`](Self::send), [`expect`](Self::expect), [`expect_hello`](Self::expect_hello), [`expect_ready`](Self::expect_ready), [`wait_for_news`](Self::wait_for_news) | wait, up to a limit |
#[derive(Debug)]
pub struct Link<P: Purpose = NoPurpose> {
    pub(super) channel: Channel<P>,
    /// How the link was made, if it can be resumed.
    origin: Option<Origin>,
    /// What the two hellos name, this side's and the other's.
    sessions: [Option<Session>; 2],
    /// The addresses of the peer's queue pairs, which its hello names.
    theirs: Vec<IpAddr>,
    /// Once both name the same.
    pub(super) resumption: Option<Resumption<P>>,
    /// When the link was last resumed.
    resumed: Option<Instant>,
    /// The process that made the link.
    process: Process,
}

impl<P: Purpose> Link<P> {
    /// Begins to connect to a side that [listens](super::Listener) at one of these addresses, and,
    /// with a token, to prove that both sides have it. Messages that are [offered](Self::offer)
    /// before that is done are held back.
    ///
    /// The attempts begin 250 ms apart, or sooner if there are many addresses or an attempt fails.
    /// They go on side by side until the first address answers, for up to [`Timeouts::connect`]
    /// together. The two versions of IP alternate; within a version, the order is kept. At
    /// most 16 attempts go on at once: of more addresses, the one that was tried longest ago gives
    /// way, and is tried again after the others. Once the first attempt is under way, an attempt
    /// for which the system lacks resources, such as a file descriptor, is made again.
    ///
    /// # Errors
    ///
    /// There are no addresses; the system cannot connect to any of them; it [lacks
    /// resources](LinkError::lacks_resources) for the first attempt, which is temporary.
    pub fn begin(
        addresses: &[SocketAddr],
        timeouts: &Timeouts,
        token: Option<&Token>,
    ) -> Result<Self, LinkError> {
        Self::dial(
            Target {
                network: Arc::new(TcpNetwork),
                name: names(addresses),
                addresses: alternate(addresses),
                met: None,
                timeouts: *timeouts,
                token: token.cloned(),
            },
            Instant::now(),
        )
    }

    /// Adds addresses to those of [`begin`](Self::begin), such as those of a name whose lookup took
    /// longer, and begins the time limit of connecting again. Does nothing once an address has
    /// answered.
    pub fn also(&mut self, addresses: &[SocketAddr], timeout: Duration) {
        self.channel.also(addresses, (timeout, Instant::now()));
        if let (None, Some(Origin::Connected(target))) = (self.peer_addr(), &mut self.origin) {
            target.addresses.extend(alternate(addresses));
        }
    }

    pub(super) fn dial(target: Target, now: Instant) -> Result<Self, LinkError> {
        let channel = Channel::dial(target.clone(), now)?;
        Ok(Self { origin: Some(Origin::Connected(target.into())), ..Self::over(channel) })
    }

    fn over(channel: Channel<P>) -> Self {
        let process = Process::current();
        Self {
            channel,
            origin: None,
            sessions: [None; 2],
            theirs: Vec::new(),
            resumption: None,
            resumed: None,
            process,
        }
    }

    /// The end of a stream that was accepted by the listener with these sessions.
    pub(super) fn accepted(
        stream: Box<dyn Stream>,
        sessions: Sessions,
        timeouts: &Timeouts,
        token: Option<&Token>,
    ) -> Self {
        let channel = Channel::over(stream, timeouts.message, token);
        let origin = Origin::Accepted { sessions, timeouts: *timeouts };
        Self { origin: Some(origin), ..Self::over(channel) }
    }

    /// The two ends of a link within this process.
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
        let end = |socket| Self::over(Channel::over(Box::new(socket), MESSAGE_TIMEOUT, None));
        Ok((end(a), end(b)))
    }

    /// The session for this side's hello, so that the link can be resumed: a side that connected
    /// draws one, and a side that was connected to repeats the one in the peer's hello. `None`
    /// where a link cannot be resumed: within a process.
    pub fn session(&self) -> Option<Session> {
        match &self.origin {
            Some(Origin::Connected(_)) => Session::random().ok(),
            Some(Origin::Accepted { .. }) => self.sessions[THEIRS],
            None => None,
        }
    }

    /// Returns whether this side is connected, and both sides have proved that they have the token,
    /// if there is one.
    pub fn is_open(&self) -> bool {
        self.channel.is_open()
    }

    /// Returns the peer's address, once this side has connected; `None` on the side that accepted.
    pub const fn peer_addr(&self) -> Option<SocketAddr> {
        self.channel.answered()
    }

    /// Returns whether the stream broke, and the link waits to be resumed. What is sent now is
    /// lost, except [`Message::Ready`], [`Message::Done`] and [`Message::Failed`].
    pub fn is_broken(&self) -> bool {
        let has_broken = self.channel.has_broken();
        self.resumption.as_ref().is_some_and(|resumption| resumption.is_broken() || has_broken)
    }

    /// Returns whether [`try_recv`](Self::try_recv) has something to do that does not show on the
    /// stream: the link is broken, or a new stream waits for it.
    pub fn is_due(&self) -> bool {
        self.is_broken() || self.resumption.as_ref().is_some_and(Resumption::has_mail)
    }

    /// Breaks the stream without a message, so that the peer finds a reset.
    pub(super) fn reset(&self) {
        self.channel.reset();
    }

    /// Hands the stream of this link to an earlier link of the same
    /// [`Listener`](super::Listener), after the peer has sent [`Message::Resume`] where a hello
    /// could have come.
    ///
    /// # Errors
    ///
    /// There is no such link, or it has ended. This link is returned, for the answer to the peer.
    pub fn join(self, session: Session) -> Result<(), Box<Self>> {
        let Some(Origin::Accepted { sessions, timeouts }) = self.origin.clone() else {
            return Err(Box::new(self));
        };
        // A link that was accepted has one.
        let Some(stream) = self.channel.into_stream() else { return Ok(()) };
        sessions.join(session, stream).map_err(|NewStream { stream, .. }| {
            Box::new(Self::accepted(stream, sessions, &timeouts, None))
        })
    }

    /// Notes the session that a hello names: once both name the same, the link can be resumed.
    fn note_session(&mut self, side: usize, message: &Message<P>) {
        let Message::Hello(Hello { session, reach, .. }) = message else { return };
        self.sessions[side] = *session;
        if side == THEIRS {
            self.theirs = reach.ip_addresses();
        }
        if let [Some(ours), Some(theirs)] = self.sessions
            && ours == theirs
            && let Some(mut origin) = self.origin.clone()
        {
            self.channel.watch(origin.timeouts().silence);
            if let (Origin::Connected(target), Some(answered)) = (&mut origin, self.peer_addr()) {
                target.meet(answered, &self.theirs);
            }
            self.resumption = Resumption::new(ours, origin);
        }
    }

    /// Sends a message without waiting. What the stream does not take now goes with the next call
    /// that sends, receives, or [goes on sending](Self::go_on_sending). Messages that are offered
    /// while the link is [broken](Self::is_broken) may be lost, which is not an error. If the
    /// stream failed, the next receive shows that, after the peer's last message.
    ///
    /// # Errors
    ///
    /// The peer has not proved that it has this side's token: then only the reason of a refusal is
    /// sent.
    pub fn offer(&mut self, message: &Message<P>) -> Result<(), LinkError> {
        self.process.check()?;
        if self.channel.wants_proof() && !message.is_last() {
            return Err(LinkError::TokenWanted);
        }
        if let Some(resumption) = &mut self.resumption {
            resumption.note_sent(message);
        }
        if self.is_broken() {
            return Ok(());
        }
        self.channel.push(message);
        self.go_on_sending();
        self.note_session(OURS, message);
        Ok(())
    }

    /// Sends what was [offered](Self::offer) and not taken yet. Returns whether nothing is left.
    /// Until then no more should be offered: it is kept in memory. If the stream failed, or in a
    /// fork of the process that made the link, nothing is left; the next receive shows that.
    pub fn go_on_sending(&mut self) -> bool {
        !self.process.is_current() || self.is_broken() || self.channel.flush()
    }

    /// Returns the next message, if all of it is there, and goes on with everything else that the
    /// link does.
    ///
    /// # Errors
    ///
    /// The peer is gone, and its last message was taken; one of the two sides broke the protocol;
    /// the peer could not be reached, or takes too long to finish a message or its proof; the link
    /// broke, and was not resumed.
    pub fn try_recv(&mut self) -> Result<Option<Message<P>>, LinkError> {
        self.receive(Instant::now())
    }

    pub(super) fn receive(&mut self, now: Instant) -> Result<Option<Message<P>>, LinkError> {
        self.process.check()?;
        if let Some(resumption) = &mut self.resumption {
            if let Some(stream) = resumption.step(now)? {
                let opening = resumption.opening();
                self.resumed = Some(now);
                return Ok(Some(self.resume(stream, &opening)));
            }
            if resumption.is_broken() {
                return Ok(None);
            }
        }
        self.channel.flush();
        match self.channel.receive(now) {
            Ok(Some(message)) => {
                self.note_session(THEIRS, &message);
                Ok(Some(message))
            }
            Ok(None) => Ok(None),
            Err(fault) => self.broke(fault, now).map(|()| None),
        }
    }

    /// Goes on over a new stream. Returns the message that reports it to the owner.
    fn resume(&mut self, stream: NewStream, opening: &[Message<P>]) -> Message<P> {
        self.channel.replace(stream);
        opening.iter().for_each(|message| self.channel.push(message));
        self.channel.flush();
        Message::Resumed {}
    }

    /// The stream carries no messages any more. Nothing more comes for now if the link is to be
    /// resumed.
    fn broke(&mut self, fault: Fault, now: Instant) -> Result<(), LinkError> {
        match (fault, &mut self.resumption) {
            (Fault::Broken { source, .. }, Some(resumption)) if !self.channel.is_over() => {
                resumption.note_broken(source, now);
                Ok(())
            }
            (fault, _) => Err(self.channel.end(fault)),
        }
    }

    /// What the link waits for.
    pub(super) fn waits_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.resumption {
            Some(resumption) if resumption.is_broken() => resumption.waits_for(),
            _ => self.channel.waits_for(),
        }
    }

    /// Returns the file descriptor of the stream, for waiting on many links at once. `None` while
    /// the link is [broken](Self::is_broken), or connects and the system lacks resources for the
    /// next attempt.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.fd().filter(|_| !self.is_broken())
    }

    /// How long the other side may take for one message, and for its part of the set-up.
    pub const fn message_timeout(&self) -> Duration {
        self.channel.message_timeout()
    }

    /// Returns what is left of `timeout` for an answer of the peer that this side has waited for
    /// since `since`. When a link that broke is resumed, the time begins again, but the peer has no
    /// more than `timeout` and [`Timeouts::resume`] in all, however often the link breaks.
    pub fn time_left(&self, since: Instant, timeout: Duration) -> Duration {
        let now = Instant::now();
        let waited = now.saturating_duration_since(since);
        let whole = self.resumed.map(|resumed| now.saturating_duration_since(resumed));
        let counted = match self.is_broken() {
            true => Duration::ZERO,
            false => whole.map_or(waited, |whole| whole.min(waited)),
        };
        let resume = self.origin.as_ref().map_or(Duration::ZERO, |from| from.timeouts().resume);
        let in_all = timeout.saturating_add(resume);
        timeout.saturating_sub(counted).min(in_all.saturating_sub(waited))
    }

    /// The error for a message that did not come in time, or not to its end.
    pub fn no_answer(&self, expected: &'static str, waited: Duration) -> LinkError {
        self.channel.no_answer(expected, waited)
    }
}
