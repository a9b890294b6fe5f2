//! The streams that carry a link's bytes, and waiting for them.

use super::error::LinkError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::Debug;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A stream of bytes that never blocks.
pub(super) trait Stream: Read + Write + AsFd + Debug + Send {
    /// Returns whether the stream is connected; `false`: not yet.
    fn is_connected(&self) -> io::Result<bool>;

    /// Has the system break the stream when the peer's host has not answered for `silence`.
    fn watch(&self, silence: Duration);

    /// Breaks the stream. The peer finds a reset, not an end.
    fn reset(&self);
}

/// Where streams to a peer come from: TCP, except in tests.
pub(super) trait Network: Debug + Send + Sync {
    /// Begins to connect.
    fn connect(&self, address: &SocketAddr) -> io::Result<Box<dyn Stream>>;
}

/// A stream within a process. Its other end has no host that could fall silent.
impl Stream for UnixStream {
    fn is_connected(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn watch(&self, _: Duration) {}

    fn reset(&self) {}
}

/// Returns whether the peer has closed the stream, or its system answered that there is no such
/// stream.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::BrokenPipe || is_reset(error)
}

/// Returns whether the peer's system answered that there is no such stream: the peer's process has
/// ended, or its system has given the stream up.
pub(super) fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted)
}

/// Waits until one of the streams has something to read, for up to `until`.
pub(super) fn wait_for_any<'a>(
    streams: impl Iterator<Item = BorrowedFd<'a>>,
    until: Instant,
) -> Result<(), LinkError> {
    let poll_in = |stream| PollFd::from_borrowed_fd(stream, PollFlags::IN);
    let mut fds: Vec<_> = streams.map(poll_in).collect();
    let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
    match poll(&mut fds, left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(LinkError::Io { doing: "waiting for peers", source: error.into() }),
    }
}

/// Waits until one of `flags` holds for the stream, or it has an error to report. Returns `false`
/// if that did not happen before `deadline`; `None` is no deadline.
pub(super) fn wait(
    stream: BorrowedFd<'_>,
    flags: PollFlags,
    deadline: Option<Instant>,
) -> Result<bool, LinkError> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A timeout of more seconds than the system can count is none.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::from_borrowed_fd(stream, flags)], timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(LinkError::Io { doing: "waiting for a peer", source: error.into() });
            }
        }
    }
}
