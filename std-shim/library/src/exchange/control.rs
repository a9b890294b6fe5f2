//! A stream that carries messages, with timeouts.

use super::error::ControlError;
use super::hello::Hello;
use super::incoming::Incoming;
use super::message::Message;
use super::purpose::{NoPurpose, Purpose};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::Debug;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a peer may take for one message, from its first byte to its last, and for its part of
/// the set-up: long enough for a host that swaps or registers much memory, short enough for people.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How errors name a hello that is waited for.
pub const HELLO: &str = "\"hello\"";
/// How errors name the message that a side is ready.
pub const READY: &str = "\"ready\"";
/// How errors name the message that a side is done.
pub const DONE: &str = "\"done\"";

/// Something that bytes go through, never blocking.
pub(super) trait Stream: Read + Write + AsFd + Debug + Send {}

impl<S: Read + Write + AsFd + Debug + Send> Stream for S {}

/// One end of the control connection between two sides that meet for a [`Purpose`].
#[derive(Debug)]
pub struct Control<P = NoPurpose> {
    stream: Box<dyn Stream>,
    incoming: Incoming<P>,
    /// When the message that is incomplete began.
    began: Option<Instant>,
    message_timeout: Duration,
}

impl<P: Purpose> Control<P> {
    pub(super) fn over(stream: impl Stream + 'static, message_timeout: Duration) -> Self {
        let stream = Box::new(stream);
        let incoming = Incoming::new();
        Self { stream, incoming, began: None, message_timeout }
    }

    /// The two ends of a control connection within this process.
    ///
    /// # Errors
    ///
    /// The system gave no pair of sockets.
    pub fn pair() -> Result<(Self, Self), ControlError> {
        let failed = |source| ControlError::Io { doing: "making a pair of sockets", source };
        let (a, b) = UnixStream::pair().map_err(failed)?;
        for end in [&a, &b] {
            end.set_nonblocking(true).map_err(failed)?;
        }
        Ok((Self::over(a, MESSAGE_TIMEOUT), Self::over(b, MESSAGE_TIMEOUT)))
    }

    /// Sends a message. If the other side is gone, the next receive shows that, after its last message.
    ///
    /// # Errors
    ///
    /// The other side does not take the message.
    pub fn send(&mut self, message: &Message<P>) -> Result<(), ControlError> {
        let bytes = message.encode();
        let mut rest = &bytes[..];
        let deadline = deadline(self.message_timeout);
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !wait(&*self.stream, PollFlags::OUT, deadline)? {
                        return Err(ControlError::Deaf { waited: self.message_timeout });
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_gone(&error) => return Ok(()),
                Err(source) => return Err(ControlError::Io { doing: "sending a message", source }),
            }
        }
        Ok(())
    }

    /// The next message, if all of it is there.
    ///
    /// # Errors
    ///
    /// The other side is gone, and its last message was taken; it broke the protocol; it began a
    /// message and takes too long to finish it.
    pub fn try_recv(&mut self) -> Result<Option<Message<P>>, ControlError> {
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
                Err(error) if is_gone(&error) => return Err(self.hung_up()),
                Err(source) => {
                    return Err(ControlError::Io { doing: "receiving a message", source });
                }
            }
        }
        if self.incoming.pending() > 0
            && self.began.get_or_insert_with(Instant::now).elapsed() >= self.message_timeout
        {
            let pending = self.incoming.pending();
            let waited = self.message_timeout;
            return Err(ControlError::Stalled { pending, waited });
        }
        Ok(None)
    }

    /// Waits for the next message, all of it: a peer that sends a byte now and then gains nothing.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv); the other side gave up; nothing came within `timeout`.
    pub fn expect(&mut self, timeout: Duration) -> Result<Message<P>, ControlError> {
        self.expect_what("a message", timeout)
    }

    fn expect_what(
        &mut self,
        expected: &'static str,
        timeout: Duration,
    ) -> Result<Message<P>, ControlError> {
        let deadline = deadline(timeout);
        loop {
            match self.try_recv()? {
                Some(Message::Failed { reason }) => return Err(ControlError::GaveUp { reason }),
                Some(message) => return Ok(message),
                None => {}
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(self.no_answer(expected, timeout));
            }
            let complete_by = self.began.and_then(|began| began.checked_add(self.message_timeout));
            let until = [deadline, complete_by].into_iter().flatten().min();
            wait(&*self.stream, PollFlags::IN, until)?;
        }
    }

    /// Waits until there is something to receive, or it is known that there will be nothing any more;
    /// at most for `timeout`.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn wait_for_news(&self, timeout: Duration) -> Result<(), ControlError> {
        wait(&*self.stream, PollFlags::IN, deadline(timeout)).map(|_| ())
    }

    /// Waits for the other side's hello, as long as a message may take.
    ///
    /// # Errors
    ///
    /// As [`expect`](Self::expect).
    pub fn expect_hello(&mut self) -> Result<Hello<P>, ControlError> {
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
    pub fn expect_ready(&mut self) -> Result<(), ControlError> {
        match self.expect_what(READY, self.message_timeout)? {
            Message::Ready {} => Ok(()),
            other => Err(other.out_of_turn(READY).into()),
        }
    }

    fn hung_up(&self) -> ControlError {
        ControlError::HungUp { pending: self.incoming.pending() }
    }

    /// How long the other side may take for one message, and for its part of the set-up.
    pub fn message_timeout(&self) -> Duration {
        self.message_timeout
    }

    /// The error for a message that did not come in time, or not to its end.
    pub fn no_answer(&self, expected: &'static str, waited: Duration) -> ControlError {
        match self.incoming.pending() {
            0 => ControlError::NoAnswer { expected, waited },
            pending => ControlError::Stalled { pending, waited },
        }
    }
}

/// For waiting on many at once.
impl<P> AsFd for Control<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (*self.stream).as_fd()
    }
}

/// When `patience` ends; `None`: never, because the clock would overflow.
pub(super) fn deadline(patience: Duration) -> Option<Instant> {
    Instant::now().checked_add(patience)
}

/// Whether the system reports that the other end is closed.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted
    )
}

/// Waits until the stream can be read or written, or has an error to report; `false`: it is too late.
pub(super) fn wait(
    stream: impl AsFd,
    for_what: PollFlags,
    deadline: Option<Instant>,
) -> Result<bool, ControlError> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // More seconds than the system can count mean forever.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(&stream, for_what)], timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(ControlError::Io { doing: "waiting for a peer", source: error.into() });
            }
        }
    }
}
