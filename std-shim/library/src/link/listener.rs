//! Accepting links.

use super::dial::resolve;
use super::end::Link;
use super::error::{LinkError, Reason};
use super::hello::Hello;
use super::message::{HELLO, Message};
use super::purpose::Purpose;
use super::resume::Sessions;
use super::stream::wait;
use super::tcp::Tcp;
use super::timeouts::Timeouts;
use super::token::Token;
use polyrail_process::Process;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Connections that the system keeps for a listener, as the standard library has it.
const BACKLOG: i32 = 128;

/// Accepts links, and new streams for links that it accepted earlier ([`Link::join`]): a link that
/// is to be resumed needs its listener, and an owner that goes on to accept.
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

    /// Waits for the next link, and until its peer has proved that it has this side's token, if
    /// there is one. The peer's messages show which peer it is. [`Arrivals`] accept many at once.
    ///
    /// # Errors
    ///
    /// No peer connected in time; the peer that did does not have the token.
    pub fn accept<P: Purpose>(
        &self,
        timeouts: &Timeouts,
    ) -> Result<(Link<P>, SocketAddr), LinkError> {
        let deadline = timeouts.accept.and_then(|accept| Instant::now().checked_add(accept));
        loop {
            if let Some((mut link, peer)) = self.try_accept(timeouts)? {
                if let Err(error) = link.wait_until_open() {
                    refuse(&mut link, &error);
                    return Err(error);
                }
                return Ok((link, peer));
            }
            if !wait(self.as_fd(), PollFlags::IN, deadline)? {
                return Err(LinkError::NoPeer { waited: timeouts.accept.unwrap_or_default() });
            }
        }
    }

    /// Returns the next link, if there is one. If this side has a token, its peer has proved
    /// nothing yet: nothing is sent to it before it has.
    ///
    /// # Errors
    ///
    /// The system reports an error.
    pub fn try_accept<P: Purpose>(
        &self,
        timeouts: &Timeouts,
    ) -> Result<Option<(Link<P>, SocketAddr)>, LinkError> {
        loop {
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
    }
}

const ACCEPTING: &str = "accepting";

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

/// Returns whether the connection failed, not the waiting for connections (`accept(2)`, "Error
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

/// Sends the reason, if the peer is still there.
fn refuse<P: Purpose>(link: &mut Link<P>, error: &LinkError) {
    _ = link.offer(&Message::Failed { reason: Reason::new(error) });
}

/// Limit of links whose first message has not come. Each takes a socket and about 17 KiB.
const PLACES: usize = 64;

/// How long a peer without a proof keeps its place while others wait. A peer sends each message of
/// the proof at once, so this is the time of a round trip.
const GRACE: Duration = Duration::from_millis(200);

/// The links of a [`Listener`] whose first message has not come: they prove that they have the
/// token, resume earlier links, or bring a hello. All go on together, so that no peer delays
/// another one by what it sends, or by sending nothing.
#[derive(Debug)]
pub struct Arrivals<P: Purpose> {
    /// In the order of their arrival.
    guests: VecDeque<Guest<P>>,
    /// Whether the system lacked resources for the last connection.
    lacks_resources: bool,
}

/// A link whose first message has not come.
#[derive(Debug)]
struct Guest<P: Purpose> {
    link: Link<P>,
    address: SocketAddr,
    /// When it was accepted.
    since: Instant,
}

/// A link whose peer has sent a hello.
#[derive(Debug)]
pub struct Arrival<P: Purpose> {
    /// The link.
    pub link: Link<P>,
    /// The peer's hello.
    pub hello: Hello<P>,
    /// The peer's address.
    pub address: SocketAddr,
}

/// Called with the address of a peer whose link ended before its hello, and the reason.
type Refused<'a> = dyn FnMut(SocketAddr, LinkError) + 'a;

impl<P: Purpose> Default for Arrivals<P> {
    fn default() -> Self {
        Self { guests: VecDeque::new(), lacks_resources: false }
    }
}

impl<P: Purpose> Arrivals<P> {
    /// Accepts new links, goes on with all of them, and returns those whose hello has come. Never
    /// waits. If there is no place for a new link, the oldest peer that has not proved that it has
    /// the token loses its place. Calls `refused` for each peer whose link ends here.
    ///
    /// # Errors
    ///
    /// The listener can no longer accept. A lack of resources is not an error, since it is
    /// temporary.
    pub fn step(
        &mut self,
        listener: &Listener,
        timeouts: &Timeouts,
        mut refused: impl FnMut(SocketAddr, LinkError),
    ) -> Result<Vec<Arrival<P>>, LinkError> {
        let refused: &mut Refused<'_> = &mut refused;
        // First, so that a new peer cannot take the place of a peer whose hello has just come.
        let mut arrived = self.go_on(timeouts, refused);
        self.accept(listener, timeouts, refused)?;
        arrived.extend(self.go_on(timeouts, refused));
        Ok(arrived)
    }

    fn accept(
        &mut self,
        listener: &Listener,
        timeouts: &Timeouts,
        refused: &mut Refused<'_>,
    ) -> Result<(), LinkError> {
        self.lacks_resources = false;
        for _ in 0..PLACES / 2 {
            if self.guests.len() >= PLACES && !self.evict(listener, refused) {
                return Ok(());
            }
            match listener.try_accept(timeouts) {
                Ok(Some((link, address))) => {
                    self.guests.push_back(Guest { link, address, since: Instant::now() });
                }
                Ok(None) => return Ok(()),
                Err(error) if error.lacks_resources() => {
                    self.lacks_resources = !self.evict(listener, refused);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Resets the link of the oldest peer that has not proved that it has the token, unless it came
    /// just now. A peer with the token keeps its place for as long as a message may take, because
    /// it may create queue pairs before its hello.
    ///
    /// The link is reset, and no reason is sent: to a peer that resumes an earlier link, a reason
    /// is the end of that link, while after a reset it tries again.
    fn evict(&mut self, listener: &Listener, refused: &mut Refused<'_>) -> bool {
        let has_proved = |guest: &Guest<P>| listener.token.is_some() && guest.link.is_open();
        let oldest = self.guests.iter().position(|guest| !has_proved(guest));
        let is_late = |at: &usize| self.guests[*at].since.elapsed() >= GRACE;
        let Some(guest) = oldest.filter(is_late).and_then(|at| self.guests.remove(at)) else {
            return false;
        };
        guest.link.reset();
        refused(guest.address, guest.no_hello());
        true
    }

    fn go_on(&mut self, timeouts: &Timeouts, refused: &mut Refused<'_>) -> Vec<Arrival<P>> {
        let mut arrived = Vec::new();
        for _ in 0..self.guests.len() {
            let Some(mut guest) = self.guests.pop_front() else { break };
            match guest.link.try_recv() {
                Ok(None) if guest.since.elapsed() >= timeouts.message => guest.leave(refused),
                Ok(None) => self.guests.push_back(guest),
                Ok(Some(message)) => arrived.extend(guest.welcome(message, refused)),
                Err(error) => guest.refuse(error, refused),
            }
        }
        arrived
    }

    /// What can bring news: for waiting on many at once.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.guests.iter().map(|guest| guest.link.as_fd())
    }

    /// Returns whether the next connection can be accepted now. While it cannot, a wait for the
    /// listener would return at once.
    pub fn has_room(&self) -> bool {
        !self.lacks_resources && self.guests.len() < PLACES
    }

    /// Returns whether there is no link whose first message has not come.
    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }
}

impl<P: Purpose> Guest<P> {
    /// Handles the first message.
    fn welcome(self, message: Message<P>, refused: &mut Refused<'_>) -> Option<Arrival<P>> {
        let Self { link, address, since } = self;
        let mut refuse = |link, why: LinkError| Self { link, address, since }.refuse(why, refused);
        match message {
            Message::Hello(hello) => return Some(Arrival { link, hello, address }),
            Message::Resume { session } => {
                if let Err(link) = link.join(session) {
                    refuse(*link, LinkError::NoSession);
                }
            }
            Message::Failed { reason } => refuse(link, LinkError::GaveUp { reason }),
            message => refuse(link, message.out_of_turn(HELLO).into()),
        }
        None
    }

    /// Refuses a peer that has not sent a hello in time.
    fn leave(self, refused: &mut Refused<'_>) {
        let why = self.no_hello();
        self.refuse(why, refused);
    }

    fn no_hello(&self) -> LinkError {
        let waited = Duration::from_millis(self.since.elapsed().as_millis() as u64);
        self.link.no_answer(HELLO, waited)
    }

    fn refuse(mut self, why: LinkError, refused: &mut Refused<'_>) {
        refuse(&mut self.link, &why);
        refused(self.address, why);
    }
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

    #[test]
    fn lack_of_resources_is_temporary_and_other_errors_are_not() {
        let accepting = |errno: Errno| LinkError::Io { doing: ACCEPTING, source: errno.into() };
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(accepting(errno).lacks_resources(), "{errno}");
        }
        assert!(!accepting(Errno::INVAL).lacks_resources());
        let other = LinkError::Io { doing: ACCEPTING, source: ErrorKind::Other.into() };
        let hung_up = LinkError::HungUp { pending: 0 };
        assert!(!other.lacks_resources() && !hung_up.lacks_resources());
    }
}
