//! Control connections between processes: TCP, with timeouts on connecting and accepting.

use super::control::{Control, MESSAGE_TIMEOUT, deadline, wait};
use super::error::ControlError;
use super::purpose::Purpose;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long connections of one side may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until a connection is made, for all addresses of a name together. The system has its own timeout
    /// for looking up the name.
    pub connect: Duration,
    /// Until a peer connects; `None`: forever.
    pub accept: Option<Duration>,
    /// For one message, from its first byte to its last, and for the peer's part of the set-up.
    pub message: Duration,
}

impl Default for Timeouts {
    /// 10 seconds each.
    fn default() -> Self {
        let patience = MESSAGE_TIMEOUT;
        Self { connect: patience, accept: Some(patience), message: patience }
    }
}

/// A silent connection is probed after this time, and again at this interval.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// This many probes without an answer end it. So a host that lost power or its cable, and cannot close,
/// is noticed within 20 seconds even if both sides only wait.
const KEEPALIVE_PROBES: u32 = 3;
/// Nor is data to such a host sent again for longer, where the system has the option; otherwise it
/// would be for a quarter of an hour, without any probes.
#[cfg(target_os = "linux")]
const UNANSWERED_MS: u32 = 20_000;

impl<P: Purpose> Control<P> {
    /// Connects to a side that [listens](Listener) at `address`, such as `10.0.0.2:7471`.
    ///
    /// # Errors
    ///
    /// The name is not known; nobody listens there; nobody answers in time.
    pub fn connect(address: &str, timeouts: &Timeouts) -> Result<Self, ControlError> {
        let failed = |source| ControlError::Connect { address: address.to_owned(), source };
        let begin = Instant::now();
        let mut last = io::Error::from(ErrorKind::NotFound);
        for socket_address in address.to_socket_addrs().map_err(failed)? {
            let left = timeouts.connect.saturating_sub(begin.elapsed());
            if left.is_zero() {
                last = ErrorKind::TimedOut.into();
                break;
            }
            match TcpStream::connect_timeout(&socket_address, left) {
                Ok(stream) => return control(stream, timeouts),
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }
}

/// Waits for connections.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
}

impl Listener {
    /// Listens at `address`, such as `0.0.0.0:7471`; with port 0 the system chooses one.
    ///
    /// # Errors
    ///
    /// The address is not local, or it is taken.
    pub fn bind(address: &str) -> Result<Self, ControlError> {
        let failed = |source| ControlError::Listen { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn local_addr(&self) -> Result<SocketAddr, ControlError> {
        let failed = |source| ControlError::Io { doing: "asking for the local address", source };
        self.listener.local_addr().map_err(failed)
    }

    /// Waits for the next connection; its messages show which peer it is.
    ///
    /// # Errors
    ///
    /// Nobody connected in time.
    pub fn accept<P: Purpose>(
        &self,
        timeouts: &Timeouts,
    ) -> Result<(Control<P>, SocketAddr), ControlError> {
        let deadline = timeouts.accept.and_then(deadline);
        loop {
            if let Some(accepted) = self.try_accept(timeouts)? {
                return Ok(accepted);
            }
            if !wait(&self.listener, PollFlags::IN, deadline)? {
                return Err(ControlError::Nobody { waited: timeouts.accept.unwrap_or_default() });
            }
        }
    }

    /// The next connection, if there is one.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn try_accept<P: Purpose>(
        &self,
        timeouts: &Timeouts,
    ) -> Result<Option<(Control<P>, SocketAddr)>, ControlError> {
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    // One that cannot be prepared has ended already.
                    if let Ok(control) = control(stream, timeouts) {
                        return Ok(Some((control, peer)));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if ended_early(&error) => {}
                Err(source) => return Err(ControlError::Io { doing: "accepting", source }),
            }
        }
    }
}

/// For waiting on many at once.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Whether it is the connection that failed, not the waiting for connections (`accept(2)`, "Error
/// handling").
fn ended_early(error: &io::Error) -> bool {
    let network = matches!(
        Errno::from_io_error(error),
        Some(
            Errno::NETDOWN
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
        )
    );
    network || matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted)
}

fn control<P: Purpose>(stream: TcpStream, timeouts: &Timeouts) -> Result<Control<P>, ControlError> {
    let prepare = || -> io::Result<()> {
        stream.set_nonblocking(true)?;
        // Messages are short, and each is waited for.
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        #[cfg(target_os = "linux")]
        sockopt::set_tcp_user_timeout(&stream, UNANSWERED_MS)?;
        Ok(())
    };
    prepare().map_err(|source| ControlError::Io { doing: "preparing a connection", source })?;
    Ok(Control::over(stream, timeouts.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ended_early_is_told_from_a_listener_that_did() {
        for errno in [Errno::CONNABORTED, Errno::INTR, Errno::PROTO, Errno::HOSTUNREACH] {
            assert!(ended_early(&errno.into()), "{errno}");
        }
        for errno in [Errno::MFILE, Errno::INVAL, Errno::WOULDBLOCK] {
            assert!(!ended_early(&errno.into()), "{errno}");
        }
    }
}
