//! What bytes go through: waiting for it, and how it shows that the other end is gone.

use super::error::LinkError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::fmt::Debug;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Something that bytes go through, never blocking.
pub(super) trait Stream: Read + Write + AsFd + Debug + Send {}

impl<S: Read + Write + AsFd + Debug + Send> Stream for S {}

/// A silent connection is probed after this time, and again at this interval.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// This many probes without an answer end it. So a host that lost power or its cable, and cannot close,
/// is noticed within 20 seconds even if both sides only wait.
const KEEPALIVE_PROBES: u32 = 3;
/// Nor is data to such a host sent again for longer, where the system has the option; otherwise it
/// would be for a quarter of an hour, without any probes.
const UNANSWERED: Duration = Duration::from_secs(20);

/// The same where a link that broke is made anew: too early a verdict harms nobody there, and one that is
/// later than [`MESSAGE_TIMEOUT`](super::MESSAGE_TIMEOUT) would come when the last messages have been given up.
const CLOSE_KEEPALIVE: Duration = Duration::from_secs(3);
const CLOSE_PROBES: u32 = 2;
const CLOSE_UNANSWERED: Duration = Duration::from_secs(9);

/// A connection whose other end may vanish without a word is given up when it is silent.
pub(super) fn watch(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    set_limits(stream.as_fd(), KEEPALIVE, KEEPALIVE_PROBES, UNANSWERED)
}

fn set_limits(
    stream: BorrowedFd<'_>,
    keepalive: Duration,
    probes: u32,
    unanswered: Duration,
) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, keepalive)?;
    sockopt::set_tcp_keepintvl(stream, keepalive)?;
    sockopt::set_tcp_keepcnt(stream, probes)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, unanswered.as_millis() as u32)?;
    #[cfg(not(target_os = "linux"))]
    let _ = unanswered;
    Ok(())
}

/// From now on a host that is silent is given up within 9 seconds.
pub(super) fn watch_closely(stream: BorrowedFd<'_>) {
    // Where the system refuses, it is noticed later.
    _ = set_limits(stream, CLOSE_KEEPALIVE, CLOSE_PROBES, CLOSE_UNANSWERED);
}

/// Whether the other end has closed its side, or its system answered that there is no such connection.
pub(super) fn is_gone(error: &io::Error) -> bool {
    is_closed(error) || is_reset(error)
}

/// Whether the other end has closed its side before.
pub(super) fn is_closed(error: &io::Error) -> bool {
    error.kind() == ErrorKind::BrokenPipe
}

/// Whether the other end's system answered, unannounced, that there is no such connection: its process ended, or
/// the system has given the connection up.
pub(super) fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted)
}

/// When `patience` ends; `None`: never, because the clock would overflow.
pub(super) fn deadline(patience: Duration) -> Option<Instant> {
    Instant::now().checked_add(patience)
}

/// Waits until the stream can be read or written, or has an error to report; `false`: it is too late.
pub(super) fn wait(
    stream: impl AsFd,
    for_what: PollFlags,
    deadline: Option<Instant>,
) -> Result<bool, LinkError> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // More seconds than the system can count mean forever.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(&stream, for_what)], timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(LinkError::Io { doing: "waiting for a peer", source: error.into() });
            }
        }
    }
}
