//! The other side, while data moves over the rails: what it says beside them, and how long it may
//! say and do nothing.

use super::{Failure, SessionError};
use crate::backend::Connect;
use crate::endpoint::{ConnectError, Endpoint, EndpointQp};
use crate::exchange::{Hello, Link, LinkError, Message, Outcome, Reason, bring_up};
use polyrail_core::hardware::CompletionQueue;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a failed endpoint may take to give its requests back.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a side whose rail failed waits for the other's word on it.
const BLAME_TIMEOUT: Duration = Duration::from_secs(1);

/// Calls of [`Counterpart::glance`] between looks at the clock.
const CLOCK_EVERY: u32 = 32;

/// Between looks at the link of a side that is busy.
const GLANCE_EVERY: Duration = Duration::from_millis(1);

/// The other side of a connection.
pub(crate) struct Counterpart<'a> {
    link: Link,
    idle_timeout: Option<Duration>,
    interrupted: &'a AtomicBool,
    /// What it did in the end, once it has said so.
    outcome: Option<Outcome>,
    /// When it was noticed that nothing happens.
    idle_since: Option<Instant>,
    /// Glances until the clock is looked at.
    until_clock: u32,
    looked: Instant,
}

impl<'a> Counterpart<'a> {
    /// `idle_timeout`: how long nothing at all may happen; `None`: for ever.
    pub(crate) fn new(
        link: Link,
        idle_timeout: Option<Duration>,
        interrupted: &'a AtomicBool,
    ) -> Self {
        Self {
            link,
            idle_timeout,
            interrupted,
            outcome: None,
            idle_since: None,
            until_clock: CLOCK_EVERY,
            looked: Instant::now(),
        }
    }

    /// Tells the other side something.
    pub(crate) fn tell(&mut self, message: &Message) -> Result<(), SessionError> {
        Ok(self.link.send(message)?)
    }

    /// Tells the other side of a failure, unless it has told us.
    pub(crate) fn tell_failure(&mut self, failure: &impl Failure) {
        tell_failure(&mut self.link, failure);
    }

    /// Waits for the other side's hello.
    pub(crate) fn expect_hello(&mut self) -> Result<Hello, SessionError> {
        Ok(self.link.expect_hello()?)
    }

    /// Connects an endpoint with the other side's; see [`bring_up`].
    pub(crate) fn bring_up<Q: Connect, E>(
        &mut self,
        endpoint: &mut EndpointQp<Q>,
        hello: &Hello,
        post_receives: impl FnOnce(&mut EndpointQp<Q>) -> Result<(), E>,
    ) -> Result<(), E>
    where
        E: From<ConnectError> + From<LinkError>,
    {
        bring_up(endpoint, &mut self.link, hello, post_receives)
    }

    /// What the other side did in the end, if it has said so.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Waits for what the other side did in the end.
    ///
    /// # Errors
    ///
    /// It failed or is gone, or says nothing for `patience`.
    pub(crate) fn expect_outcome(&mut self, patience: Duration) -> Result<Outcome, SessionError> {
        match self.link.expect(patience)? {
            Message::Done(outcome) => Ok(outcome),
            message => Err(SessionError::out_of_turn(&message, "\"done\"")),
        }
    }

    /// Something happened over the rails: patience begins anew.
    pub(crate) fn moved(&mut self) {
        self.idle_since = None;
    }

    /// Looks at the link.
    ///
    /// # Errors
    ///
    /// The other side failed or is gone, or nothing happened for too long; the user wants to stop.
    pub(crate) fn look(&mut self) -> Result<(), SessionError> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(SessionError::Interrupted);
        }
        let idle = self.idle_since.get_or_insert_with(Instant::now).elapsed();
        if let Some(waited) = self.idle_timeout.filter(|timeout| idle >= *timeout) {
            return Err(SessionError::Idle { waited });
        }
        match self.link.try_recv()? {
            Some(Message::Failed { reason }) => Err(SessionError::Peer(reason)),
            Some(Message::Done(outcome)) => {
                self.outcome = Some(outcome);
                Ok(())
            }
            Some(Message::Alive {}) => {
                self.moved();
                Ok(())
            }
            Some(message) => Err(SessionError::out_of_turn(&message, "\"done\"")),
            None => Ok(()),
        }
    }

    /// Looks at the link if it is time to, and says whether it did. Cheap enough for every round of
    /// a loop that is busy.
    ///
    /// # Errors
    ///
    /// As [`look`](Self::look).
    pub(crate) fn glance(&mut self) -> Result<bool, SessionError> {
        self.until_clock -= 1;
        if self.until_clock > 0 {
            return Ok(false);
        }
        self.until_clock = CLOCK_EVERY;
        let now = Instant::now();
        let due = now.duration_since(self.looked) >= GLANCE_EVERY;
        if due {
            self.looked = now;
            self.look()?;
        }
        Ok(due)
    }

    /// Looks at the link when there is something to hear, at the latest after `patience`: for a side
    /// that has nothing else to do.
    ///
    /// # Errors
    ///
    /// As [`look`](Self::look).
    pub(crate) fn listen(&mut self, patience: Duration) -> Result<(), SessionError> {
        self.link.wait_for_news(patience)?;
        self.look()
    }

    /// A side whose rail failed waits for the other's word: a link that fails, fails for both, and
    /// the sender knows which of its requests were concerned.
    pub(crate) fn defer(&mut self, failure: SessionError) -> SessionError {
        if !matches!(failure, SessionError::Endpoint(_)) {
            return failure;
        }
        match self.link.expect(BLAME_TIMEOUT) {
            Err(LinkError::GaveUp { reason }) => SessionError::Peer(reason),
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
pub(crate) fn tell_failure(link: &mut Link, failure: &impl Failure) {
    if !failure.is_echo() {
        // If it cannot be told, the other side sees that we are gone.
        _ = link.send(&Message::Failed { reason: Reason::new(failure) });
    }
}

/// Waits for the hello of a side that asks for something; if it is none, tells it so.
pub(crate) fn expect_asker(link: &mut Link) -> Result<Hello, SessionError> {
    let hello = link.expect_hello().map_err(SessionError::from);
    hello.inspect_err(|error| tell_failure(link, error))
}
