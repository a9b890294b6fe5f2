//! The other side, while data moves over the rails: what it says beside them, and how long it may
//! say and do nothing.

use super::{Failure, Patience, SessionError};
use crate::job::{Control, Hello, JobOutcome, Message};
use polyrail::backend::Connect;
use polyrail::chain::Chain;
use polyrail::endpoint::{ConnectError, Endpoint, EndpointQp};
use polyrail::exchange::{ControlError, DONE, HELLO, READY, Reason, get_ready};
use polyrail::hardware::CompletionQueue;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a failed endpoint may take to give its requests back.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a side whose rail failed waits for the other's word on it.
const BLAME_TIMEOUT: Duration = Duration::from_secs(1);

/// Calls of [`Counterpart::poll_control_sparsely`] between looks at the clock, at most: rounds of nanoseconds.
const CLOCK_EVERY: u32 = 32;

/// Between looks at the link of a side that is busy.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// Between looks for an interrupt of a side that only waits.
const INTERRUPT_EVERY: Duration = Duration::from_millis(50);

/// How often a side that is busy by itself, where nothing shows at the other one, says that it is there.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Messages that are taken at once: one who floods the link does not hold its reader.
const AT_ONCE: usize = 16;

/// The other side of a connection.
pub(crate) struct Counterpart<'a> {
    control: Control,
    patience: Option<Patience>,
    interrupted: &'a AtomicBool,
    /// What is waited for, for people.
    awaited: &'static str,
    /// What it did in the end, once it has said so.
    outcome: Option<JobOutcome>,
    /// When it was noticed that nothing happens, and that nothing moves.
    idle_since: Option<Instant>,
    still_since: Option<Instant>,
    /// Glances until the clock is looked at, and between looks at it.
    until_clock: u32,
    clock_every: u32,
    clock: Instant,
    polled: Option<Instant>,
    /// When the other side was last told that this one is there.
    told: Instant,
}

impl<'a> Counterpart<'a> {
    /// `patience`: how long it is waited for; `None`: for ever, once it is ready.
    pub(crate) fn new(
        control: Control,
        patience: Option<Patience>,
        interrupted: &'a AtomicBool,
    ) -> Self {
        let now = Instant::now();
        Self {
            control,
            patience,
            interrupted,
            awaited: "news",
            outcome: None,
            idle_since: None,
            still_since: None,
            until_clock: 1,
            clock_every: 1,
            clock: now,
            polled: None,
            told: now,
        }
    }

    /// Says, for errors, what is waited for from now on.
    pub(crate) fn awaits(&mut self, what: &'static str) {
        self.awaited = what;
    }

    /// Tells the other side something.
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

    /// Waits for the next message, and sees an interrupt meanwhile.
    fn expect(
        &mut self,
        expected: &'static str,
        patience: Duration,
    ) -> Result<Message, SessionError> {
        let begin = Instant::now();
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(SessionError::Interrupted);
            }
            match self.control.try_recv()? {
                Some(Message::Failed { reason }) => return Err(SessionError::Peer(reason)),
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
        match self.expect(READY, self.control.message_timeout())? {
            Message::Ready {} => Ok(()),
            message => Err(SessionError::out_of_turn(&message, READY).into()),
        }
    }

    /// What the other side did in the end, if it has said so.
    pub(crate) fn outcome(&self) -> Option<JobOutcome> {
        self.outcome
    }

    /// Waits for what the other side did in the end.
    ///
    /// # Errors
    ///
    /// It failed or is gone, or does not answer in time; the user wants to stop.
    pub(crate) fn expect_outcome(&mut self) -> Result<JobOutcome, SessionError> {
        match self.expect(DONE, self.control.message_timeout())? {
            Message::Done(outcome) => Ok(outcome),
            message => Err(SessionError::out_of_turn(&message, DONE)),
        }
    }

    /// Something happened over the rails: patience begins anew.
    pub(crate) fn moved(&mut self) {
        (self.idle_since, self.still_since) = (None, None);
    }

    /// Looks at the link.
    ///
    /// # Errors
    ///
    /// The other side failed or is gone, or nothing happened, or moved, for too long; the user wants to
    /// stop.
    pub(crate) fn poll_control(&mut self) -> Result<(), SessionError> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(SessionError::Interrupted);
        }
        // What came while this side was busy counts before patience does.
        for _ in 0..AT_ONCE {
            match self.control.try_recv() {
                Ok(Some(Message::Failed { reason })) => return Err(SessionError::Peer(reason)),
                Ok(Some(Message::Done(outcome))) => {
                    // Compared before what it may say about a difference is heard.
                    self.outcome = Some(outcome);
                    break;
                }
                Ok(Some(Message::Alive {})) => self.idle_since = None,
                Ok(Some(message)) => return Err(SessionError::out_of_turn(&message, DONE)),
                Ok(None) => break,
                // It has said all that it had to; what it did is still on its way over the rails.
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

    /// Looks at the link if it is time to, and says whether it did. Cheap enough for every round of
    /// a loop that is busy: of rounds that take nanoseconds, not every one looks at the clock.
    ///
    /// # Errors
    ///
    /// As [`poll_control`](Self::poll_control).
    pub(crate) fn poll_control_sparsely(&mut self) -> Result<bool, SessionError> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(SessionError::Interrupted);
        }
        self.until_clock -= 1;
        if self.until_clock > 0 {
            return Ok(false);
        }
        let now = Instant::now();
        let slow = now.duration_since(self.clock) >= POLL_EVERY;
        self.clock_every = if slow { 1 } else { (2 * self.clock_every).min(CLOCK_EVERY) };
        (self.clock, self.until_clock) = (now, self.clock_every);
        self.poll_control_if_due(now)
    }

    /// Looks at the link if it is time to, in the middle of long work of this side's own, and lets the
    /// other side know that this one is there.
    ///
    /// # Errors
    ///
    /// As [`poll_control`](Self::poll_control).
    pub(crate) fn keep_company(&mut self) -> Result<(), SessionError> {
        self.go_on()?;
        self.say_alive()
    }

    /// Tells the other side, now and then, that this one is there.
    pub(crate) fn say_alive(&mut self) -> Result<(), SessionError> {
        if self.told.elapsed() < ALIVE_EVERY {
            return Ok(());
        }
        self.told = Instant::now();
        self.tell(&Message::Alive {})
    }

    /// Looks at the link if it is time to, and says whether it did.
    fn poll_control_if_due(&mut self, now: Instant) -> Result<bool, SessionError> {
        let due = self.polled.is_none_or(|polled| now.duration_since(polled) >= POLL_EVERY);
        if due {
            self.polled = Some(now);
            self.poll_control()?;
        }
        Ok(due)
    }

    /// Something happened over the rails, in a round of a loop: patience begins anew, and the link is
    /// looked at if it is time to.
    ///
    /// # Errors
    ///
    /// As [`poll_control`](Self::poll_control).
    pub(crate) fn go_on(&mut self) -> Result<(), SessionError> {
        self.moved();
        self.poll_control_if_due(Instant::now()).map(|_| ())
    }

    /// Looks at the link when there is something to hear, at the latest after `patience`: for a side
    /// that has nothing else to do.
    ///
    /// # Errors
    ///
    /// As [`poll_control`](Self::poll_control).
    pub(crate) fn listen(&mut self, patience: Duration) -> Result<(), SessionError> {
        self.control.wait_for_news(patience)?;
        self.poll_control()
    }

    /// A side whose rail failed waits for the other's word: a link that fails, fails for both, and
    /// the sender knows which of its requests were concerned.
    pub(crate) fn defer(&mut self, failure: SessionError) -> SessionError {
        if !matches!(failure, SessionError::Endpoint(_)) {
            return failure;
        }
        match self.control.expect(BLAME_TIMEOUT) {
            Err(ControlError::GaveUp { reason }) => SessionError::Peer(reason),
            _ => failure,
        }
    }

    /// Ends this side's part: tells the other side of a failure, and takes every request back from
    /// the devices. Buffers have to stay until this is over: without queue pairs the other side's
    /// requests meet silence, and the news overtakes them; without memory they would fail at once,
    /// and hide the reason.
    pub(crate) fn conclude<Q: Connect, C: CompletionQueue>(
        &mut self,
        endpoint: &mut Endpoint<Q, C>,
        failure: Option<&impl Failure>,
    ) {
        if let Some(failure) = failure {
            self.tell_failure(failure);
        }
        endpoint.flush(FLUSH_TIMEOUT);
    }
}

/// Tells the other side of a failure, unless it has told us.
pub(crate) fn tell_failure(control: &mut Control, failure: &impl Failure) {
    if !failure.is_echo() {
        // If it cannot be told, the other side sees that we are gone.
        _ = control.send(&Message::Failed { reason: Reason::new(Chain(failure)) });
    }
}

/// Waits for the hello of a side that asks for something; if it is none, tells it so.
pub(crate) fn expect_asker(control: &mut Control) -> Result<Hello, SessionError> {
    let hello = control.expect_hello().map_err(SessionError::from);
    hello.inspect_err(|error| tell_failure(control, error))
}
