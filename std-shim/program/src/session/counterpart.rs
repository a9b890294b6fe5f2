//! The other side while data moves over the rails: its messages over the control channel, and the
//! limits of its silence.

use super::{Failure, PeerTimeouts, SessionError};
use crate::job::{Hello, JobOutcome, Link, Message};
use polyrail::backend::{Connect, Domain};
use polyrail::chain::Chain;
use polyrail::endpoint::{ConnectError, EndpointQp, HealingLink, HealingMessage};
use polyrail::link::{DONE, HELLO, LinkError, READY, Reason, Session, get_p2p_ready, get_ready};
use polyrail::p2p::P2pEndpoint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a failed endpoint may take to flush its requests.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a side whose rail failed waits for the other side to report the cause.
const BLAME_TIMEOUT: Duration = Duration::from_secs(1);

/// Most calls of [`Counterpart::poll_control_sparsely`] between reads of the clock: a call may come
/// every few nanoseconds, and reading the clock takes tens of them.
const CLOCK_EVERY: u32 = 32;

/// Time between polls of the control channel while data moves.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// Time between polls of the control channel while latency is measured: a system call adds to it.
const POLL_SELDOM: Duration = Duration::from_millis(20);

/// How long a side that has sent the last report waits until the other side closes the channel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time between checks for an interrupt while a side only waits.
const INTERRUPT_EVERY: Duration = Duration::from_millis(50);

/// Time between the reports that a side is alive while it sends no data.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Limit of messages that one poll reads, so that a peer that floods the channel cannot block the
/// reader.
const AT_ONCE: usize = 16;

/// The other side of a connection.
pub(crate) struct Counterpart<'a> {
    control: Link,
    /// Repair messages between the two endpoints, if they repair rails.
    link: Option<HealingLink>,
    timeouts: Option<PeerTimeouts>,
    interrupted: &'a AtomicBool,
    /// What this side waits for, for error messages.
    awaited: &'static str,
    /// The final report of the other side, once it has arrived.
    outcome: Option<JobOutcome>,
    /// The other side has closed the channel after its final report.
    is_closed: bool,
    /// Begin of the current time without data and control messages, and of the time without data;
    /// `None` until the next poll takes the time.
    idle_since: Option<Instant>,
    still_since: Option<Instant>,
    /// Calls until the next read of the clock, and calls between two reads.
    until_clock: u32,
    clock_every: u32,
    clock: Instant,
    /// Time between polls of the control channel.
    poll_every: Duration,
    polled: Option<Instant>,
    /// When this side last sent that it is alive.
    last_alive: Instant,
}

impl<'a> Counterpart<'a> {
    /// Takes over a control channel. `timeouts` limits the waits while data moves; `None`: no
    /// limit.
    pub(crate) fn new(
        control: Link,
        timeouts: Option<PeerTimeouts>,
        interrupted: &'a AtomicBool,
    ) -> Self {
        let now = Instant::now();
        Self {
            control,
            link: None,
            timeouts,
            interrupted,
            awaited: "the peer",
            outcome: None,
            is_closed: false,
            idle_since: None,
            still_since: None,
            until_clock: 1,
            clock_every: 1,
            clock: now,
            poll_every: POLL_EVERY,
            polled: None,
            last_alive: now,
        }
    }

    /// Carries the repair messages of `endpoint` over the control channel from now on.
    pub(crate) fn carry_for<Q: Connect>(&mut self, endpoint: &EndpointQp<Q>) {
        self.link = endpoint.healing_link();
    }

    /// Returns the session for this side's hello, with which a broken control channel can be
    /// resumed, if this channel supports it.
    pub(crate) fn session(&self) -> Option<Session> {
        self.control.session()
    }

    /// Handles a reconnected control channel: repair messages may have been lost, and are sent
    /// again.
    fn resumed(&mut self) {
        self.idle_since = None;
        if let Some(link) = &self.link {
            link.restored();
        }
    }

    /// Sends the repair messages of this side's endpoint.
    fn carry(&mut self) -> Result<(), SessionError> {
        while let Some(message) = self.link.as_ref().and_then(HealingLink::next_message) {
            self.control.send(&Message::Heal(message))?;
        }
        Ok(())
    }

    /// Passes a repair message of the other side to this side's endpoint.
    fn hear(&self, message: HealingMessage) -> Result<(), SessionError> {
        let Some(link) = &self.link else {
            return Err(SessionError::out_of_turn(&Message::Heal(message), DONE));
        };
        link.handle(message).map_err(|error| SessionError::Protocol(error.to_string()))
    }

    /// Polls the control channel less often from now on, since its system calls add to measured
    /// latencies. Has no effect if the endpoints repair rails, which needs the control channel.
    pub(crate) fn poll_seldom(&mut self) {
        if self.link.is_none() {
            self.poll_every = POLL_SELDOM;
        }
    }

    /// Takes no notice of interrupts from now on, since the caller does.
    pub(crate) fn leave_interrupts(&mut self) {
        static NEVER: AtomicBool = AtomicBool::new(false);
        self.interrupted = &NEVER;
    }

    /// Sets what this side waits for from now on, for error messages.
    pub(crate) fn awaits(&mut self, what: &'static str) {
        self.awaited = what;
    }

    /// Sends the other side a message.
    pub(crate) fn tell(&mut self, message: &Message) -> Result<(), SessionError> {
        Ok(self.control.send(message)?)
    }

    /// Reports a failure to the other side, unless the other side caused it.
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

    /// Waits for the next message that is not about repair, for up to `timeout`, and longer if the
    /// channel breaks ([`Link::time_left`]), or for an interrupt.
    fn expect(
        &mut self,
        expected: &'static str,
        timeout: Duration,
    ) -> Result<Message, SessionError> {
        let begin = Instant::now();
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(SessionError::Interrupted);
            }
            self.carry()?;
            let has_more = match self.control.try_recv()? {
                Some(Message::Failed { reason }) => return Err(SessionError::Peer(reason)),
                Some(Message::Heal(message)) if self.link.is_some() => {
                    self.hear(message)?;
                    true
                }
                Some(Message::Resumed {}) => {
                    self.resumed();
                    true
                }
                Some(message) => return Ok(message),
                None => false,
            };
            // Also while messages come: a peer that sends them without end gains no time.
            let left = self.control.time_left(begin, timeout);
            if left.is_zero() {
                return Err(self.control.no_answer(expected, timeout).into());
            }
            if !has_more {
                self.control.wait_for_news(left.min(INTERRUPT_EVERY))?;
            }
        }
    }

    /// Connects `endpoint` with the endpoint of the other side; see
    /// [`bring_up`](polyrail::link::bring_up).
    pub(crate) fn bring_up<Q: Connect, E>(
        &mut self,
        endpoint: &mut EndpointQp<Q>,
        hello: &Hello,
        post_receives: impl FnOnce(&mut EndpointQp<Q>) -> Result<(), E>,
    ) -> Result<(), E>
    where
        E: From<ConnectError> + From<LinkError> + From<SessionError>,
    {
        get_ready(endpoint, &mut self.control, hello, post_receives)?;
        Ok(self.expect_ready()?)
    }

    /// Connects an endpoint for messages with that of the other side; see
    /// [`bring_up_p2p`](polyrail::link::bring_up_p2p).
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

    /// Returns the final report of the other side, if it has arrived.
    pub(crate) fn outcome(&self) -> Option<JobOutcome> {
        self.outcome
    }

    /// Waits for the final report of the other side.
    ///
    /// # Errors
    ///
    /// The other side failed, closed the connection, or did not answer in time; the user
    /// interrupted.
    pub(crate) fn expect_outcome(&mut self) -> Result<JobOutcome, SessionError> {
        match self.expect(DONE, self.control.message_timeout())? {
            Message::Done(outcome) => Ok(outcome),
            message => Err(SessionError::out_of_turn(&message, DONE)),
        }
    }

    /// Notes that data moved over the rails: restarts the limits of silence.
    pub(crate) fn moved(&mut self) {
        self.idle_since = None;
        self.still_since = None;
    }

    /// Reads messages from the control channel, and checks for interrupts and the limits of
    /// silence.
    ///
    /// # Errors
    ///
    /// The other side failed or closed the connection; it was silent, or no data moved, for too
    /// long; the user interrupted.
    pub(crate) fn poll_control(&mut self) -> Result<(), SessionError> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(SessionError::Interrupted);
        }
        self.carry()?;
        // First, so that messages that came while this side was busy restart the limits.
        for _ in 0..AT_ONCE {
            match self.control.try_recv() {
                Ok(Some(Message::Failed { reason })) => return Err(SessionError::Peer(reason)),
                Ok(Some(Message::Done(outcome))) => {
                    // Stop here: a failure may follow that reports a difference, and this side is
                    // to compare the results itself first.
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
                // The other side has sent its final report; its data may still be in flight.
                Err(LinkError::HungUp { .. }) if self.outcome.is_some() => {
                    self.is_closed = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let now = Instant::now();
        let awaited = self.awaited;
        let idle = now.duration_since(*self.idle_since.get_or_insert(now));
        let still = now.duration_since(*self.still_since.get_or_insert(now));
        let Some(timeouts) = self.timeouts else { return Ok(()) };
        let silence = timeouts.idle.min(timeouts.progress);
        if idle >= silence {
            Err(SessionError::Idle { awaited, waited: silence })
        } else if still >= timeouts.progress {
            Err(SessionError::NoProgress { awaited, waited: timeouts.progress })
        } else {
            Ok(())
        }
    }

    /// Polls the control channel if a poll is due, and returns whether it was. Cheap enough for
    /// every round of a busy loop: if rounds take nanoseconds, few of them read the clock.
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

    /// Polls the control channel if a poll is due, and reports that this side is alive: call it
    /// regularly during long work.
    ///
    /// # Errors
    ///
    /// As [`poll_control`](Self::poll_control).
    pub(crate) fn keep_company(&mut self) -> Result<(), SessionError> {
        self.go_on()?;
        self.say_alive()
    }

    /// Reports that this side is alive, if a report is due.
    pub(crate) fn say_alive(&mut self) -> Result<(), SessionError> {
        if self.last_alive.elapsed() < ALIVE_EVERY {
            return Ok(());
        }
        self.last_alive = Instant::now();
        self.tell(&Message::Alive {})
    }

    /// Reports that this side is alive, if a report is due, and has a broken control channel
    /// resumed: during work that nothing the other side does can end.
    pub(crate) fn stand_by(&mut self) {
        // The work goes on after an error, which the next use of the channel shows again.
        _ = self.say_alive().and_then(|()| self.poll_control());
    }

    /// Sends this side's final report when there is nothing to wait for but the other side's end,
    /// and stays until the other side has closed the channel, so that a channel that breaks
    /// meanwhile is resumed and carries the report. No error of that changes the result.
    pub(crate) fn report(&mut self, outcome: JobOutcome) -> Result<(), SessionError> {
        self.tell(&Message::Done(outcome))?;
        let begin = Instant::now();
        while !self.control.time_left(begin, CLOSE_TIMEOUT).is_zero() {
            let waited = self.control.wait_for_news(INTERRUPT_EVERY);
            if waited.is_err() || self.poll_control().is_err() || self.is_closed {
                break;
            }
        }
        Ok(())
    }

    /// Polls the control channel if a poll is due, and returns whether it was.
    fn poll_control_if_due(&mut self, now: Instant) -> Result<bool, SessionError> {
        let due = self.polled.is_none_or(|polled| now.duration_since(polled) >= self.poll_every);
        if due {
            self.polled = Some(now);
            self.poll_control()?;
        }
        Ok(due)
    }

    /// Notes that data moved over the rails, and polls the control channel if a poll is due: for a
    /// round of a loop that made progress.
    ///
    /// # Errors
    ///
    /// As [`poll_control`](Self::poll_control).
    pub(crate) fn go_on(&mut self) -> Result<(), SessionError> {
        self.moved();
        self.carry()?;
        self.poll_control_if_due(Instant::now()).map(|_| ())
    }

    /// Waits for a control message for up to `timeout`, then polls the control channel: for a side
    /// that only waits.
    ///
    /// # Errors
    ///
    /// As [`poll_control`](Self::poll_control).
    pub(crate) fn listen(&mut self, timeout: Duration) -> Result<(), SessionError> {
        self.carry()?;
        self.control.wait_for_news(timeout)?;
        self.poll_control()
    }

    /// Waits for the other side's report after a rail failed, and returns that report instead of
    /// `failure` if it comes: a cut link fails on both sides, and only the sender has the failed
    /// requests.
    pub(crate) fn defer(&mut self, failure: SessionError) -> SessionError {
        if !matches!(failure, SessionError::Endpoint(_)) {
            return failure;
        }
        let begin = Instant::now();
        while begin.elapsed() < BLAME_TIMEOUT {
            let left = BLAME_TIMEOUT.saturating_sub(begin.elapsed());
            match self.control.expect(left) {
                Err(LinkError::GaveUp { reason }) => return SessionError::Peer(reason),
                // Both endpoints have failed, so there is nothing left to repair.
                Ok(Message::Heal(_) | Message::Resumed {}) => {}
                _ => break,
            }
        }
        failure
    }

    /// Ends this side: reports a failure to the other side, and calls `flush`, which takes all
    /// requests back from the devices within the time it is given. Buffers must stay registered
    /// until then: with the queue pairs gone, the other side's requests get no answer and the
    /// report arrives first; with the memory gone, they fail at once with an error that hides the
    /// cause.
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

/// Reports a failure to the other side, unless the other side caused it.
pub(crate) fn tell_failure(control: &mut Link, failure: &impl Failure) {
    if !failure.is_echo() {
        // If the report cannot be sent, the other side notices the closed connection.
        _ = control.send(&Message::Failed { reason: Reason::new(Chain(failure)) });
    }
}

/// Waits for the hello of the side that requests a job; reports the failure to it if there is none.
pub(crate) fn expect_asker(control: &mut Link) -> Result<Hello, SessionError> {
    let hello = control.expect_hello().map_err(SessionError::from);
    hello.inspect_err(|error| tell_failure(control, error))
}

#[cfg(test)]
mod rt_tests;
