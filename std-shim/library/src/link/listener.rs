//! Listening for links.

#[cfg(doc)]
use super::Arrivals;
use super::dial::resolve;
use super::end::Link;
use super::error::LinkError;
use super::purpose::Purpose;
use super::resume::Sessions;
use super::tcp::Tcp;
use super::timeouts::Timeouts;
use super::token::Token;
use polyrail_process::Process;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};

/// Connections that the system keeps for a listener, as the standard library has it.
const BACKLOG: i32 = 128;

/// Listens for links, and for new streams of links that it accepted earlier ([`Link::join`]): a
/// link that is to be resumed needs its listener, and an owner that goes on to accept. [`Arrivals`]
/// accept them.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    sessions: Sessions,
    token: Option<Token>,
    /// The process that made the listener.
    process: Process,
}

impl Listener {
    /// Listens at `address`, such as `10.0.0.2:7471`; with port 0 the system chooses one. The host
    /// `*` is every address of this host, of both versions of IP, or only IPv4 where the system has
    /// no IPv6; [`local_addr`](Self::local_addr) is then `[::]` or `0.0.0.0`.
    ///
    /// # Errors
    ///
    /// The address is not local, or is in use.
    pub fn bind(address: &str) -> Result<Self, LinkError> {
        let failed = |source| LinkError::Listen { address: address.to_owned(), source };
        let listener = match address.strip_prefix("*:").map(str::parse) {
            Some(Ok(port)) => listen_everywhere(port),
            _ => resolve(address).and_then(|addresses| TcpListener::bind(&*addresses)),
        };
        let listener = listener.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let process = Process::current();
        Ok(Self { listener, sessions: Sessions::default(), token: None, process })
    }

    /// Requires peers to prove that they have this token before any other message, also to resume a
    /// link, and proves to them that this side has it.
    pub fn with_token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Returns the address that it listens at.
    ///
    /// # Errors
    ///
    /// The system reports an error.
    pub fn local_addr(&self) -> Result<SocketAddr, LinkError> {
        let failed = |source| LinkError::Io { doing: "asking for the local address", source };
        self.listener.local_addr().map_err(failed)
    }

    /// Returns the next link, if there is one. Its peer has sent nothing yet, and may be any
    /// process that can reach the port: limit how many such links there are, and for how long, as
    /// [`Arrivals`] do. If this side has a token, nothing is sent to the peer before it has proved
    /// that it has the token, too.
    ///
    /// # Errors
    ///
    /// The system reports an error; a lack of resources is temporary. Or this process is a fork of
    /// the one that made the listener: the connection is left to that process.
    pub fn try_accept<P: Purpose>(
        &self,
        timeouts: &Timeouts,
    ) -> Result<Option<(Link<P>, SocketAddr)>, LinkError> {
        self.process.check()?;
        // More connections that ended early may follow than other work can wait for.
        for _ in 0..ENDED_AT_ONCE {
            match self.listener.accept() {
                Ok((socket, mut peer)) => {
                    // An IPv4 peer of a listener for both versions.
                    peer.set_ip(peer.ip().to_canonical());
                    // A connection that cannot be prepared has ended already.
                    if let Ok(stream) = Tcp::new(socket) {
                        let (sessions, token) = (self.sessions.clone(), self.token.as_ref());
                        let link = Link::accepted(Box::new(stream), sessions, timeouts, token);
                        return Ok(Some((link, peer)));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if ended_early(&error) => {}
                Err(source) => return Err(LinkError::Io { doing: ACCEPTING, source }),
            }
        }
        Ok(None)
    }

    /// Returns whether peers have to prove that they have a token.
    pub(super) const fn has_token(&self) -> bool {
        self.token.is_some()
    }
}

const ACCEPTING: &str = "accepting";

/// Maximum connections that have ended early and are passed over in one call.
const ENDED_AT_ONCE: usize = 64;

/// Listens at every address of this host.
fn listen_everywhere(port: u16) -> io::Result<TcpListener> {
    let both = || {
        let socket =
            socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // The default is a setting of the system (ip-sysctl, bindv6only).
        sockopt::set_ipv6_v6only(&socket, false)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
        listen(&socket, BACKLOG)?;
        Ok(TcpListener::from(socket))
    };
    match both() {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        }
        other => other.map_err(io::Error::from),
    }
}

/// For waiting on many at once.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Peers are refused at once, even if a forked process has the socket, too. That process does not
/// end it.
impl Drop for Listener {
    fn drop(&mut self) {
        if self.process.is_current() {
            // A socket that does not listen any more has nothing to end.
            _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        }
    }
}

/// Returns whether the connection failed, not the waiting for connections: Linux reports what
/// happened to the new connection as an error of `accept` (accept(2), "Error handling").
fn ended_early(error: &io::Error) -> bool {
    let network = matches!(
        Errno::from_io_error(error),
        Some(
            Errno::NETDOWN
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
                | Errno::TIMEDOUT
                | Errno::SOCKTNOSUPPORT
                | Errno::PROTONOSUPPORT
        )
    );
    network || matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted)
}

fn errno_of_accept(error: &LinkError) -> Option<Errno> {
    let LinkError::Io { doing: ACCEPTING, source } = error else { return None };
    Errno::from_io_error(source)
}

/// Returns whether rules of the system forbid the next connection, which may change.
pub(super) fn is_forbidden(error: &LinkError) -> bool {
    errno_of_accept(error) == Some(Errno::PERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ended_early_is_told_from_a_listener_that_did() {
        for errno in [
            Errno::CONNABORTED,
            Errno::INTR,
            Errno::PROTO,
            Errno::HOSTUNREACH,
            Errno::NONET,
            Errno::OPNOTSUPP,
            Errno::TIMEDOUT,
        ] {
            assert!(ended_early(&errno.into()), "{errno}");
        }
        for errno in [Errno::MFILE, Errno::INVAL, Errno::WOULDBLOCK] {
            assert!(!ended_early(&errno.into()), "{errno}");
        }
    }

    #[test]
    fn lack_of_resources_is_temporary_and_other_errors_are_not() {
        let accepting = |errno: Errno| LinkError::Io { doing: ACCEPTING, source: errno.into() };
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::NOSR] {
            assert!(accepting(errno).lacks_resources(), "{errno}");
        }
        assert!(!accepting(Errno::INVAL).lacks_resources());
        assert!(is_forbidden(&accepting(Errno::PERM)) && !accepting(Errno::PERM).lacks_resources());
        assert!(!is_forbidden(&accepting(Errno::INVAL)));
        let other = LinkError::Io { doing: ACCEPTING, source: ErrorKind::Other.into() };
        let hung_up = LinkError::HungUp { pending: 0 };
        assert!(!other.lacks_resources() && !hung_up.lacks_resources());
    }
}
