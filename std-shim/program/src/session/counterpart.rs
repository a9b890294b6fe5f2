//! The other side, while data moves over the rails: its messages over the control channel, and how long it
//! may send and do nothing.

use super::{Failure, Patience, SessionError};
use crate::job::{Control, Hello, JobOutcome, Message};
use polyrail::backend::{Connect, Domain};
use polyrail::chain::Chain;
use polyrail::endpoint::{ConnectError, EndpointQp, HealingLink, HealingMessage};
use polyrail::exchange::{
    ControlError, DONE, HELLO, READY, Reason, Session, get_p2p_ready, get_ready,
};
use polyrail::p2p::P2pEndpoint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a failed endpoint may take to flush its requests.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a side whose rail failed waits for the other side's report of it.
const BLAME_TIMEOUT: Duration = Duration::from_secs(1);

/// Most calls of [`Counterpart::poll_control_sparsely`] between reads of the clock: a round may take only
/// nanoseconds.
const CLOCK_EVERY: u32 = 32;

/// Time between polls of the control channel by a busy side.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// The same of a side that measures how long single requests take.
const POLL_SELDOM: Duration = Duration::from_millis(20);

/// Time between checks for an interrupt by a side that only waits.
const INTERRUPT_EVERY: Duration = Duration::from_millis(50);

/// How often a side reports that it is alive while it works without sending data.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Messages that are read at once, so that a peer that floods the channel does not hold up its reader.
const AT_ONCE: usize = 16;

/// The other side of a connection.
pub(crate) struct Counterpart<'a> {
    control: Control,
    /// What this side's endpoint and the other's tell each other, if they heal by themselves.
    link: Option<HealingLink>,
    patience: Option<Patience>,
    interrupted: &'a AtomicBool,
    /// What this side waits for, in words for errors.
    awaited: &'static str,
    /// What the other side reported at the end, once it has.
    outcome: Option<JobOutcome>,
    /// Since when nothing at all has happened, and no data has moved.
    idle_since: Option<Instant>,
    still_since: Option<Instant>,
    /// Calls until the next read of the clock, and between two reads.
    until_clock: u32,
    clock_every: u32,
    clock: Instant,
    /// Time between polls of the control channel.
    poll_every: Duration,
    polled: Option<Instant>,
    /// When the other side was last told that this one is alive.
    told: Instant,
}

impl<'a> Counterpart<'a> {
    /// Waits for the other side for `patience`; `None`: forever, once it is ready.
    pub(crate) fn new(
        control: Control,
        patience: Option<Patience>,
        interrupted: &'a AtomicBool,
    ) -> Self {
        let now = Instant::now();
        Self {
            control,
            link: None,
            patience,
            interrupted,
            awaited: "news",
            outcome: None,
            idle_since: None,
            still_since: None,
            until_clock: 1,
            clock_every: 1,
            clock: now,
            poll_every: POLL_EVERY,
            polled: None,
            told: now,
        }
    }

    /// From now on carries what this side's endpoint has to tell the other's.
    pub(crate) fn carry_for<Q: Connect>(&mut self, endpoint: &EndpointQp<Q>) {
        self.link = endpoint.healing_link();
    }

    /// Returns what this side's hello says of the control channel: it is made anew when it breaks, if there is
    /// a way.
    pub(crate) fn session(&self) -> Option<Session> {
        self.control.session()
    }

    /// The control channel was made anew: what the endpoints told each other may be lost.
    fn resumed(&mut self) {
        self.idle_since = None;
        if let Some(link) = &self.link {
            link.restored();
        }
    }

    /// Sends what this side's endpoint has to tell.
    fn carry(&mut self) -> Result<(), SessionError> {
        while let Some(message) = self.link.as_ref().and_then(HealingLink::next_message) {
            self.control.send(&Message::Heal(message))?;
        }
        Ok(())
    }

    /// Hands this side's endpoint what the other's tells.
    fn hear(&self, message: HealingMessage) -> Result<(), SessionError> {
        let Some(link) = &self.link else {
            return Err(SessionError::out_of_turn(&Message::Heal(message), DONE));
        };
        link.hear(message).map_err(|error| SessionError::Protocol(error.to_string()))
    }

    /// From now on polls the control channel less often, since the system calls would show in what is measured; unless
    /// the two endpoints heal with its help.
    pub(crate) fn poll_seldom(&mut self) {
        if self.link.is_none() {
            self.poll_every = POLL_SELDOM;
        }
    }

    /// Sets what this side waits for from now on, in words for errors.
    pub(crate) fn awaits(&mut self, what: &'static str) {
        self.awaited = what;
    }

    /// Sends the other side a message.
    pub(crate) fn tell(&mut self, message: &Message) -> Result<(), SessionError> {
        Ok(self.control.send(message)?)
    }

    /// Tells the other side of a failure, unless it has told us.
    pub(crate) fn tell_failure(&mut self, failure: &impl Failure) {
        tell_failure(&mut self.control, failure);
    }

    /// Waits for the other side's hello.
    pub(crate) fn expect_hello(&mut self) -> Result<Hello, SessionError> {
        match self.expect(HELLO, self.control.message_timeout())? {
            Message::Hello(hello) => Ok(hello),
            message => Err(SessionError::out_of_turn(&message, HELLO)),
        }
    }

    /// Waits for the next message or an interrupt.
    fn expect(
        &mut self,
        expected: &'static str,
        patience: Duration,
    ) -> Result<Message, SessionError> {
        let mut begin = Instant::now();
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(SessionError::Interrupted);
            }
            self.carry()?;
            if self.control.is_broken() {
                // Nothing can come: how long that may last, the channel knows.
                begin = Instant::now();
            }
            match self.control.try_recv()? {
                Some(Message::Failed { reason }) => return Err(SessionError::Peer(reason)),
                Some(Message::Heal(message)) if self.link.is_some() => {
                    self.hear(message)?;
                    continue;
                }
                Some(Message::Resumed {}) => {
                    self.resumed();
                    continue;
                }
                Some(message) => return Ok(message),
                None => {}
            }
            let left = patience.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(self.control.no_answer(expected, patience).into());
            }
            self.control.wait_for_news(left.min(INTERRUPT_EVERY))?;
        }
    }

    /// Connects an endpoint with the other side's; see [`bring_up`](polyrail::exchange::bring_up).
    pub(crate) fn bring_up<Q: Connect, E>(
        &mut self,
        endpoint: &mut EndpointQp<Q>,
        hello: &Hello,
        post_receives: impl FnOnce(&mut EndpointQp<Q>) -> Result<(), E>,
    ) -> Result<(), E>
    where
        E: From<ConnectError> + From<ControlError> + From<SessionError>,
    {
        get_ready(endpoint, &mut self.control, hello, post_receives)?;
        Ok(self.expect_ready()?)
    }

    /// Connects an endpoint for messages with the other side's; see
    /// [`bring_up_p2p`](polyrail::exchange::bring_up_p2p).
    pub(crate) fn bring_up_p2p<D: Domain>(
        &mut self,
        endpoint: &mut P2pEndpoint<D>,
        hello: &Hello,
    ) -> Result<(), SessionError> {
        get_p2p_ready::<D, SessionError, _>(endpoint, &mut self.control, hello)?;
        self.expect_ready()
    }

    fn expect_ready(&mut self) -> Result<(), SessionError> {
        match self.expect(READY, self.control.message_timeout())? {
            Message::Ready {} => Ok(()),
            message => Err(SessionError::out_of_turn(&message, READY)),
        }
    }

    /// Returns what the other side reported at the end, if it has.
    pub(crate) fn outcome(&self) -> Option<JobOutcome> {
        self.outcome
    }

    /// Waits for the other side's report at the end.
    ///
    /// # Errors
    ///
    /// It failed or is gone, or did not answer in time; the user wants to stop.
    pub(crate) fn expect_outcome(&mut self) -> Result<JobOutcome, SessionError> {
        match self.expect(DONE, self.control.message_timeout())? {
            Message::Done(outcome) => Ok(outcome),
            message => Err(SessionError::out_of_turn(&message, DONE)),
        }
    }

    /// Data moved over the rails: patience begins anew.
    pub(crate) fn moved(&mut self) {
        self.idle_since = None;
        self.still_since = None;
    }

    /// Reads messages from the control channel, and checks for interrupts and patience.
    ///
    /// # Errors
    ///
    /// The other side failed or is gone, or nothing happened, or no data moved, for too long; the user
    /// wants to stop.
    pub(crate) fn poll_control(&mut self) -> Result<(), SessionError> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(SessionError::Interrupted);
        }
        self.carry()?;
        // Messages that came while this side was busy count before patience does.
        for _ in 0..AT_ONCE {
            match self.control.try_recv() {
                Ok(Some(Message::Failed { reason })) => return Err(SessionError::Peer(reason)),
                Ok(Some(Message::Done(outcome))) => {
                    // Compare before reading what it may report about a difference.
                    self.outcome = Some(outcome);
                    break;
                }
                Ok(Some(Message::Alive {})) => self.idle_since = None,
                Ok(Some(Message::Heal(message))) => {
                    self.idle_since = None;
                    self.hear(message)?;
                }
                Ok(Some(Message::Resumed {})) => self.resumed(),
                Ok(Some(message)) => return Err(SessionError::out_of_turn(&message, DONE)),
                Ok(None) => break,
                // It has sent all its messages; its data may still be in flight.
                Err(ControlError::HungUp { .. }) if self.outcome.is_some() => break,
                Err(error) => return Err(error.into()),
            }
        }
        let now = Instant::now();
        let awaited = self.awaited;
        let idle = now.duration_since(*self.idle_since.get_or_insert(now));
        let still = now.duration_since(*self.still_since.get_or_insert(now));
        let Some(patience) = self.patience else { return Ok(()) };
        let silence = patience.idle.min(patience.progress);
        if idle >= silence {
            Err(SessionError::Idle { awaited, waited: silence })
        } else if still >= patience.progress {
            Err(SessionError::NoProgress { awaited, waited: patience.progress })
        } else {
            Ok(())
        }
    }

    /// Polls the control channel if it is due, and returns whether it was. Cheap enough for every round
    /// of a busy loop: when rounds take nanoseconds, few of them read the clock.
    ///
    /// # Errors
    ///
    /// As [`poll_control`](Self::poll_control).
    pub(crate) fn poll_control_sparsely(&mut self) -> Result<bool, SessionError> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(SessionError::Interrupted);
        }
        self.carry()?;
        self.until_clock -= 1;
        if self.until_clock > 0 {
            return Ok(false);
        }
        let now = Instant::now();
        let slow = now.duration_since(self.clock) >= POLL_EVERY;
        self.clock_every = if slow { 1 } else { (2 * self.clock_every).min(CLOCK_EVERY) };
        self.clock = now;
        self.until_clock = self.clock_every;
        self.poll_control_if_due(now)
    }

    /// During long work of this side: polls the control channel if it is due, and tells the other side that
    /// this one is alive.
    ///
    /// # Errors
    ///
    /// As [`poll_control`](Self::poll_control).
    pub(crate) fn keep_company(&mut self) -> Result<(), SessionError> {
        self.go_on()?;
        self.say_alive()
    }

    /// Tells the other side that this one is alive, if that is due.
    pub(crate) fn say_alive(&mut self) -> Result<(), SessionError> {
        if self.told.elapsed() < ALIVE_EVERY {
            return Ok(());
        }
        self.told = Instant::now();
        self.tell(&Message::Alive {})
    }

    /// Polls the control channel if it is due, and returns whether it was.
    fn poll_control_if_due(&mut self, now: Instant) -> Result<bool, SessionError> {
        let due = self.polled.is_none_or(|polled| now.duration_since(polled) >= self.poll_every);
        if due {
            self.polled = Some(now);
            self.poll_control()?;
        }
        Ok(due)
    }

    /// Data moved over the rails in a round of a loop: patience begins anew, and the control channel is
    /// polled if it is due.
    ///
    /// # Errors
    ///
    /// As [`poll_control`](Self::poll_control).
    pub(crate) fn go_on(&mut self) -> Result<(), SessionError> {
        self.moved();
        self.carry()?;
        self.poll_control_if_due(Instant::now()).map(|_| ())
    }

    /// Polls the control channel when a message comes, at the latest after `patience`: for a side that has
    /// nothing else to do.
    ///
    /// # Errors
    ///
    /// As [`poll_control`](Self::poll_control).
    pub(crate) fn listen(&mut self, patience: Duration) -> Result<(), SessionError> {
        self.carry()?;
        self.control.wait_for_news(patience)?;
        self.poll_control()
    }

    /// After a rail failed, waits for the other side's report: a NIC's link fails for both sides, and the
    /// sender knows which of its requests were affected.
    pub(crate) fn defer(&mut self, failure: SessionError) -> SessionError {
        if !matches!(failure, SessionError::Endpoint(_)) {
            return failure;
        }
        let begin = Instant::now();
        while begin.elapsed() < BLAME_TIMEOUT {
            let left = BLAME_TIMEOUT.saturating_sub(begin.elapsed());
            match self.control.expect(left) {
                Err(ControlError::GaveUp { reason }) => return SessionError::Peer(reason),
                // Both endpoints have failed: nobody is to be told anything any more.
                Ok(Message::Heal(_) | Message::Resumed {}) => {}
                _ => break,
            }
        }
        failure
    }

    /// Ends this side's part: tells the other side of a failure, and lets `flush` take every request back from the
    /// devices, for a time. Buffers have to stay until then: without queue pairs the other side's requests get no
    /// answer, and the message arrives first; without memory they would fail at once, and hide the
    /// reason.
    pub(crate) fn conclude(
        &mut self,
        flush: impl FnOnce(Duration),
        failure: Option<&impl Failure>,
    ) {
        if let Some(failure) = failure {
            self.tell_failure(failure);
        }
        flush(FLUSH_TIMEOUT);
    }
}

/// Tells the other side of a failure, unless it has told us.
pub(crate) fn tell_failure(control: &mut Control, failure: &impl Failure) {
    if !failure.is_echo() {
        // If it cannot be told, the other side sees that we are gone.
        _ = control.send(&Message::Failed { reason: Reason::new(Chain(failure)) });
    }
}

/// Waits for the hello of a side that asks for something; if something else comes, tells the side.
pub(crate) fn expect_asker(control: &mut Control) -> Result<Hello, SessionError> {
    let hello = control.expect_hello().map_err(SessionError::from);
    hello.inspect_err(|error| tell_failure(control, error))
}
