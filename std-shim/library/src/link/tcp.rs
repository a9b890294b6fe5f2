//! Control connections between processes: TCP, with timeouts on connecting and accepting.

use super::anew::{Attempt, NeverAgain, NewLink, Origin, Sessions, Target};
use super::control::Link;
use super::error::LinkError;
use super::message::Message;
use super::purpose::{NoPurpose, Purpose};
use super::reason::Reason;
use super::session::Session;
use super::stream::{deadline, wait, watch};
use super::timeouts::Timeouts;
use super::token::Token;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long one attempt to connect may take: the system sends its first packet again after 1 s, and each
/// time later.
const ATTEMPT: Duration = Duration::from_secs(2);

impl<P: Purpose> Link<P> {
    /// Connects to a side that [listens](Listener) at `address`, such as `10.0.0.2:7471`.
    ///
    /// # Errors
    ///
    /// The name is not known; nobody listens there; nobody answers in time.
    pub fn connect(address: &str, timeouts: &Timeouts) -> Result<Self, LinkError> {
        Self::connect_with_token(address, timeouts, None)
    }

    /// The same, to a side that wants to know whether this one knows its [`Token`]. Before it has proved that it
    /// does, and the other side too, nothing else is told.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect); the other side has another token, or none.
    pub fn connect_with_token(
        address: &str,
        timeouts: &Timeouts,
        token: Option<&Token>,
    ) -> Result<Self, LinkError> {
        let target =
            Target { address: address.to_owned(), timeouts: *timeouts, token: token.cloned() };
        let mut control = Self::reach(target)?;
        if let Some(token) = token {
            control.prove(token)?;
        }
        Ok(control)
    }

    fn reach(target: Target) -> Result<Self, LinkError> {
        let Target { address, timeouts, .. } = &target;
        let failed = |source| LinkError::Connect { address: address.clone(), source };
        let begin = Instant::now();
        let mut last = io::Error::from(ErrorKind::NotFound);
        for socket_address in address.to_socket_addrs().map_err(failed)? {
            let left = timeouts.connect.saturating_sub(begin.elapsed());
            if left.is_zero() {
                last = ErrorKind::TimedOut.into();
                break;
            }
            match TcpStream::connect_timeout(&socket_address, left) {
                Ok(stream) => return control(stream, Origin::Connected { target, attempt }),
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }
}

/// Waits for connections, and for new links of those that it accepted earlier
/// ([`Link::join`]): as long as one of them agreed to that, it has to be listened on.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    sessions: Sessions,
    token: Option<Token>,
}

impl Listener {
    /// Listens at `address`, such as `0.0.0.0:7471`; with port 0 the system chooses one.
    ///
    /// # Errors
    ///
    /// The address is not local, or it is taken.
    pub fn bind(address: &str) -> Result<Self, LinkError> {
        let failed = |source| LinkError::Listen { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener, sessions: Sessions::default(), token: None })
    }

    /// Those that connect have to prove that they know this token, also for a new link of an earlier connection,
    /// before they are told anything; and it is proved to them that this side does.
    pub fn with_token(self, token: Token) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn local_addr(&self) -> Result<SocketAddr, LinkError> {
        let failed = |source| LinkError::Io { doing: "asking for the local address", source };
        self.listener.local_addr().map_err(failed)
    }

    /// Waits for the next connection, and until it has proved that it knows this side's token, if that has one;
    /// its messages show which peer it is.
    ///
    /// # Errors
    ///
    /// Nobody connected in time; the one that did does not know the token.
    pub fn accept<P: Purpose>(
        &self,
        timeouts: &Timeouts,
    ) -> Result<(Link<P>, SocketAddr), LinkError> {
        let deadline = timeouts.accept.and_then(deadline);
        loop {
            if let Some((mut control, peer)) = self.try_accept(timeouts)? {
                if let Err(error) = control.expect_proof() {
                    // It learns why, if it is still there.
                    _ = control.send(&Message::Failed { reason: Reason::new(error.to_string()) });
                    return Err(error);
                }
                return Ok((control, peer));
            }
            if !wait(&self.listener, PollFlags::IN, deadline)? {
                return Err(LinkError::Nobody { waited: timeouts.accept.unwrap_or_default() });
            }
        }
    }

    /// The next connection, if there is one. If this side has a token, it has proved nothing yet: it is told
    /// nothing, and nothing is received from it, before it has.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn try_accept<P: Purpose>(
        &self,
        timeouts: &Timeouts,
    ) -> Result<Option<(Link<P>, SocketAddr)>, LinkError> {
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    // One that cannot be prepared has ended already.
                    let sessions = self.sessions.clone();
                    let origin = Origin::Accepted { sessions, timeouts: *timeouts };
                    if let Ok(control) = control(stream, origin) {
                        return Ok(Some((control.behind(self.token.clone()), peer)));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if ended_early(&error) => {}
                Err(source) => return Err(LinkError::Io { doing: "accepting", source }),
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

fn control<P: Purpose>(stream: TcpStream, origin: Origin) -> Result<Link<P>, LinkError> {
    let prepare = || -> io::Result<()> {
        stream.set_nonblocking(true)?;
        // Messages are short, and each is waited for.
        stream.set_nodelay(true)?;
        watch(&stream)
    };
    prepare().map_err(|source| LinkError::Io { doing: "preparing a connection", source })?;
    Ok(Link::over(stream, origin.timeouts().message).from(origin))
}

/// Connects again, for a connection whose link broke.
fn attempt(session: Session, target: &Target) -> Attempt {
    match resume(session, target) {
        Ok(link) => Some(Ok(link)),
        Err(error) if is_final(&error) => Some(Err(NeverAgain)),
        Err(_) => None,
    }
}

fn resume(session: Session, target: &Target) -> Result<NewLink, LinkError> {
    let Target { address, timeouts, token } = target;
    let timeouts = Timeouts { connect: ATTEMPT, ..*timeouts };
    let mut control = Link::<NoPurpose>::connect_with_token(address, &timeouts, token.as_ref())?;
    control.send(&Message::Resume { session })?;
    control.expect_resumed()?;
    Ok(control.into_link())
}

/// Whether the other side is there and has no such connection, or nobody is there: its process ended.
fn is_final(error: &LinkError) -> bool {
    match error {
        LinkError::GaveUp { .. } | LinkError::Handshake(_) | LinkError::WrongToken => true,
        LinkError::Connect { source, .. } => source.kind() == ErrorKind::ConnectionRefused,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HandshakeError, Hello};
    use super::*;
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A stream that the system gives up on request, because nobody answers.
    #[derive(Debug)]
    struct Silent {
        stream: TcpStream,
        is_given_up: Arc<AtomicBool>,
    }

    impl Silent {
        fn check(&self) -> io::Result<&TcpStream> {
            let is_given_up = self.is_given_up.load(Ordering::Relaxed);
            if is_given_up { Err(Errno::TIMEDOUT.into()) } else { Ok(&self.stream) }
        }
    }

    impl Read for Silent {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.check()?.read(bytes)
        }
    }

    impl Write for Silent {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.check()?.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl AsFd for Silent {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }
    }

    const HELLO: &str = r#"{"hello":{"endpoint":{"card":{"notifyQpNum":"0","qpNums":["17"]},"scheme":"spray","maxMsgSize":65536,"rails":[{"device":0,"gid":"fe80::1","lid":0,"mtu":4096,"rdAtomic":16,"psn":7}]},"buffer":{"addr":4096,"length":8192,"rkeys":[5]},"session":"0123456789abcdef0123456789abcdef"}}"#;

    fn hello() -> Result<Message, HandshakeError> {
        Message::from_json(HELLO.as_bytes())
    }

    /// A side whose system gives the link up on request, the other one, and who listens.
    fn sides(timeouts: Timeouts) -> (Link, Link, Listener, Arc<AtomicBool>) {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        let is_given_up = Arc::<AtomicBool>::default();
        let silent = Silent { stream, is_given_up: Arc::clone(&is_given_up) };
        let address = address.to_string();
        let target = Target { address, timeouts, token: None };
        let origin = Origin::Connected { target, attempt };
        let mut near = <Link>::over(silent, timeouts.message).from(origin);
        let (mut far, _) = listener.accept(&timeouts).unwrap();
        near.send(&hello().unwrap()).unwrap();
        let Hello { session, .. } = far.expect_hello().unwrap();
        assert!(session.is_some() && far.session() == session);
        far.send(&hello().unwrap()).unwrap();
        near.expect_hello().unwrap();
        for side in [&mut near, &mut far] {
            side.send(&Message::Ready {}).unwrap();
        }
        far.expect_ready().unwrap();
        near.expect_ready().unwrap();
        (near, far, listener, is_given_up)
    }

    #[test]
    fn a_link_that_only_one_side_has_given_up_is_made_anew() {
        for writes_first in [false, true] {
            let (mut near, mut far, listener, is_given_up) = sides(Timeouts::default());
            is_given_up.store(true, Ordering::Relaxed);
            if writes_first {
                near.send(&Message::Alive {}).unwrap();
            } else {
                assert_eq!(near.try_recv().unwrap(), None);
            }
            assert!(near.is_broken() && !far.is_broken());
            let (mut fresh, _) = listener.accept::<NoPurpose>(&Timeouts::default()).unwrap();
            let asked = fresh.expect(Duration::from_secs(10)).unwrap();
            let Message::Resume { session } = asked else { panic!("{asked:?}") };
            fresh.join(session).unwrap();
            for side in [&mut far, &mut near] {
                assert_eq!(side.expect(Duration::from_secs(10)).unwrap(), Message::Resumed {});
            }
            near.send(&Message::Alive {}).unwrap();
            assert_eq!(far.expect(Duration::from_secs(10)).unwrap(), Message::Alive {});
        }
    }

    #[test]
    fn a_link_that_is_not_made_anew_is_an_error_with_its_cause() {
        let anew = Duration::from_millis(100);
        let (mut near, _far, _listener, is_given_up) =
            sides(Timeouts { anew, ..Timeouts::default() });
        is_given_up.store(true, Ordering::Relaxed);
        let begin = Instant::now();
        let error = near.expect(Duration::from_millis(1)).unwrap_err();
        assert!(begin.elapsed() >= anew, "{:?}", begin.elapsed());
        let LinkError::NotAnew { waited, source } = error else { panic!("{error}") };
        assert!(waited >= anew && source.kind() == ErrorKind::TimedOut, "{source}");
        // And stays so.
        assert!(matches!(near.try_recv(), Err(LinkError::HungUp { .. })));
    }

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
