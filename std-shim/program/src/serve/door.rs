//! Peers that have connected and are not served yet. All are polled together, so that a peer cannot
//! delay another one by what it sends, or by sending nothing.

use super::visitor::Visitor;
use crate::job::{Hello, Job, Link, Message};
use crate::session::{Patience, SessionError, tell_failure};
use polyrail::link::{HELLO, LinkError, Listener, Session};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Limit of peers that have not sent a hello, and of peers that have and wait for their turn. Each
/// takes a socket and about 8 KiB.
const PLACES: usize = 64;

/// Longest wait for peers, between checks for interrupts.
const TICK: Duration = Duration::from_millis(100);

/// Called with the reason why a peer was not served.
pub(super) type Stray<'a> = dyn FnMut(SocketAddr, SessionError) + 'a;

/// Peers that are not served yet.
#[derive(Debug)]
pub(super) struct Door<'a> {
    listener: &'a Listener,
    patience: Patience,
    /// Becomes readable when a served peer is finished.
    bell: UnixStream,
    /// Peers that have not sent a hello, in order of arrival.
    silent: VecDeque<Guest>,
    /// Peers that have sent a hello, in the order of their hellos, with the time of each.
    waiting: VecDeque<(Visitor, Instant)>,
    /// Whether the system lacked resources for the last connection.
    full: bool,
}

/// A peer that has not sent a hello.
#[derive(Debug)]
struct Guest {
    control: Link,
    address: SocketAddr,
    since: Instant,
}

impl<'a> Door<'a> {
    pub(super) fn new(listener: &'a Listener, patience: Patience, bell: UnixStream) -> Self {
        let silent = VecDeque::new();
        let waiting = VecDeque::new();
        Self { listener, patience, bell, silent, waiting, full: false }
    }

    /// Returns the peer whose turn it is.
    pub(super) fn next(&mut self) -> Option<Visitor> {
        self.waiting.pop_front().map(|(visitor, _)| visitor)
    }

    /// Waits briefly for an event, and handles all peers that are not served yet. `inside` is the
    /// number of peers that are served at a time, for the error that refuses others.
    ///
    /// # Errors
    ///
    /// The server can no longer listen.
    pub(super) fn attend(&mut self, inside: usize, stray: &mut Stray<'_>) -> Result<(), LinkError> {
        self.wait()?;
        // First, so that a new peer cannot take the place of a peer whose hello has just arrived.
        self.read_from_silent(stray);
        self.let_in(stray)?;
        self.read_from_silent(stray);
        self.check_waiting(inside, stray);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), LinkError> {
        let silent = self.silent.iter().map(|guest| guest.control.as_fd());
        let waiting = self.waiting.iter().map(|(visitor, _)| visitor.control.as_fd());
        let listener = (!self.full).then(|| self.listener.as_fd());
        let fds = silent.chain(waiting).chain(listener).chain([self.bell.as_fd()]);
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        match poll(&mut fds, Some(&tick)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                return Err(LinkError::Io { doing: "waiting for peers", source: error.into() });
            }
        }
        while matches!((&self.bell).read(&mut [0; 64]), Ok(1..)) {}
        Ok(())
    }

    /// Accepts new connections. If there is no place for one, refuses the peer that has been silent
    /// longest: a proper peer sends its hello at once.
    fn let_in(&mut self, stray: &mut Stray<'_>) -> Result<(), LinkError> {
        self.full = false;
        let timeouts = self.patience.timeouts();
        // Few enough that peers accepted by this call do not push out each other.
        for _ in 0..PLACES / 2 {
            let accepted = match self.listener.try_accept(&timeouts) {
                Ok(Some(accepted)) => Some(accepted),
                Ok(None) => return Ok(()),
                Err(error) if is_out_of_room(&error) => None,
                Err(error) => return Err(error),
            };
            self.full = accepted.is_none();
            if (self.full || self.silent.len() == PLACES)
                && let Some(guest) = self.silent.pop_front()
            {
                guest.leave_silently(stray);
            }
            let Some((control, address)) = accepted else { return Ok(()) };
            self.silent.push_back(Guest { control, address, since: Instant::now() });
        }
        Ok(())
    }

    fn read_from_silent(&mut self, stray: &mut Stray<'_>) {
        for _ in 0..self.silent.len() {
            let Some(mut guest) = self.silent.pop_front() else { return };
            let said = match guest.control.try_recv() {
                Ok(None) if guest.since.elapsed() < self.patience.answer => {
                    self.silent.push_back(guest);
                    continue;
                }
                Ok(None) => {
                    guest.leave_silently(stray);
                    continue;
                }
                Ok(Some(Message::Resume { session })) => {
                    guest.join(session, stray);
                    continue;
                }
                Ok(Some(message)) => what_it_asks(message),
                Err(error) => Err(error.into()),
            };
            let Guest { mut control, address, .. } = guest;
            match said {
                Ok((hello, purpose)) => {
                    self.waiting
                        .push_back((Visitor { control, hello, purpose, address }, Instant::now()));
                }
                Err(error) => send_away(&mut control, address, error, stray),
            }
        }
    }

    /// Refuses peers that have waited for nearly the answer timeout, since the server is busy.
    fn check_waiting(&mut self, inside: usize, stray: &mut Stray<'_>) {
        // Before the peer itself gives up: its timeout is the same by default.
        let patience = self.patience.answer.mul_f64(0.8);
        for place in 0..self.waiting.len() {
            let Some((mut visitor, since)) = self.waiting.pop_front() else { return };
            let late = since.elapsed() >= patience || place >= PLACES;
            let error = match visitor.control.try_recv() {
                Ok(None) if !late => {
                    self.waiting.push_back((visitor, since));
                    continue;
                }
                Ok(None) => SessionError::Busy { peers: inside },
                Ok(Some(Message::Failed { reason })) => SessionError::Peer(reason),
                Ok(Some(message)) => SessionError::out_of_turn(&message, "nothing more"),
                Err(error) => error.into(),
            };
            send_away(&mut visitor.control, visitor.address, error, stray);
        }
    }

    /// Refuses all peers that wait for their turn.
    pub(super) fn close(mut self, stray: &mut Stray<'_>) {
        while let Some(mut visitor) = self.next() {
            send_away(&mut visitor.control, visitor.address, SessionError::Interrupted, stray);
        }
    }
}

impl Guest {
    /// Hands this connection over to a peer that is being served and reconnects its control
    /// channel.
    fn join(self, session: Session, stray: &mut Stray<'_>) {
        if let Err(mut control) = self.control.join(session) {
            send_away(&mut control, self.address, SessionError::Ended, stray);
        }
    }

    /// Refuses a peer that has not sent a complete hello in time.
    fn leave_silently(mut self, stray: &mut Stray<'_>) {
        let waited = Duration::from_millis(self.since.elapsed().as_millis() as u64);
        let error = self.control.no_answer(HELLO, waited).into();
        send_away(&mut self.control, self.address, error, stray);
    }
}

fn send_away(control: &mut Link, address: SocketAddr, error: SessionError, stray: &mut Stray<'_>) {
    tell_failure(control, &error);
    stray(address, error);
}

/// Returns the request in the first message of a peer.
fn what_it_asks(message: Message) -> Result<(Hello, Job), SessionError> {
    match message {
        Message::Hello(hello) => match hello.purpose.clone() {
            Some(purpose) => Ok((hello, purpose)),
            None => Err(SessionError::Protocol("its hello states no purpose".into())),
        },
        Message::Failed { reason } => Err(SessionError::Peer(reason)),
        message => Err(SessionError::out_of_turn(&message, HELLO)),
    }
}

/// Returns whether the system lacks resources for a connection, which is temporary.
fn is_out_of_room(error: &LinkError) -> bool {
    let LinkError::Io { source, .. } = error else { return false };
    let errno = Errno::from_io_error(source);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn lack_of_room_is_temporary_and_other_errors_are_not() {
        let accepting = |errno: Errno| LinkError::Io { doing: "accepting", source: errno.into() };
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(is_out_of_room(&accepting(errno)), "{errno}");
        }
        assert!(!is_out_of_room(&accepting(Errno::INVAL)));
        let other = LinkError::Io { doing: "accepting", source: io::ErrorKind::Other.into() };
        assert!(!is_out_of_room(&other) && !is_out_of_room(&LinkError::HungUp { pending: 0 }));
    }
}
