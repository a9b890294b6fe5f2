//! Where senders come back whose link broke: one port of this process, for all connections that were accepted at one
//! address of it.

use super::link::{Frame, Kind, Link, Read};
use super::session::Session;
use crate::guard::{Code, Refusal};
use crate::log;
use rustix::net::{Shutdown, shutdown};
use std::io;
use std::iter;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long whoever comes may take to say which connection it is of.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Those that may be about to say it at a time, and that are let in at a time. More wait in the kernel's queue.
const MOST_NEWCOMERS: usize = 64;

/// All there are, and some that are closed.
static DOORS: Mutex<Vec<Weak<Door>>> = Mutex::new(Vec::new());

/// Open as long as somebody has it: who has a connection, or is about to. When there is nobody who would answer, those
/// who come are refused at once.
#[derive(Debug)]
pub(super) struct Door {
    socket: TcpListener,
    address: SocketAddr,
    /// How long their links may be silent.
    patience: Duration,
    newcomers: Mutex<Vec<(Link, Instant)>>,
}

fn locked<T>(data: &Mutex<T>) -> MutexGuard<'_, T> {
    // Plain data, which is whole whoever panicked.
    data.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The door at this address, whose own port does not matter.
pub(super) fn open(at: SocketAddr, patience: Duration) -> Result<Arc<Door>, Refusal> {
    let is_there = |door: &Arc<Door>| {
        let mut there = door.address;
        there.set_port(at.port());
        there == at && door.patience == patience
    };
    let mut doors = locked(&DOORS);
    if let Some(door) = doors.iter().filter_map(Weak::upgrade).find(is_there) {
        return Ok(door);
    }
    let opened = Door::open(at, patience).map_err(|error| {
        Refusal::new(Code::System, format!("cannot listen at {}: {error}", at.ip()))
    })?;
    let opened = Arc::new(opened);
    doors.retain(|door| door.strong_count() > 0);
    doors.push(Arc::downgrade(&opened));
    Ok(opened)
}

fn all() -> Vec<Arc<Door>> {
    locked(&DOORS).iter().filter_map(Weak::upgrade).collect()
}

/// Calls what is done with the socket of each door, until that fails.
pub(crate) fn with_sockets<E>(call: impl Fn(BorrowedFd<'_>) -> Result<(), E>) -> Result<(), E> {
    all().iter().try_for_each(|door| call(door.socket.as_fd()))
}

/// Links that were made anew, each with the connection that it says it is for; and whether others have come who have
/// not said it yet. Never waits.
pub(crate) fn newcomers() -> (Vec<(Session, Link)>, bool) {
    let doors = all();
    let known = doors.iter().flat_map(|door| door.take()).collect();
    (known, doors.iter().any(|door| !locked(&door.newcomers).is_empty()))
}

impl Door {
    fn open(mut at: SocketAddr, patience: Duration) -> io::Result<Self> {
        at.set_port(0);
        let socket = TcpListener::bind(at)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address, patience, newcomers: Mutex::new(Vec::new()) })
    }

    pub(super) const fn port(&self) -> u16 {
        self.address.port()
    }

    fn take(&self) -> Vec<(Session, Link)> {
        let mut newcomers = locked(&self.newcomers);
        // Whatever the error is, there may be somebody the next time.
        let come = iter::from_fn(|| self.socket.accept().ok()).take(MOST_NEWCOMERS);
        let links = come.filter_map(|(stream, _)| Link::new(stream, self.patience).ok());
        newcomers.extend(links.map(|link| (link, Instant::now())));
        let mut known = Vec::new();
        for (mut link, since) in std::mem::take(&mut *newcomers) {
            match link.read() {
                Ok(Read::Nothing) if since.elapsed() < SESSION_TIMEOUT => {
                    newcomers.push((link, since));
                }
                Ok(Read::Frame(Frame { kind: Kind::Again, body }))
                    if body.len() == Session::BYTES =>
                {
                    let mut session = [0; Session::BYTES];
                    session.copy_from_slice(&body);
                    known.push((Session::from_bytes(session), link));
                }
                _ => log::info(&format!(
                    "a link from {} is dropped: it is a stranger's",
                    link.peer()
                )),
            }
        }
        // Senders say it as soon as they come: who has been silent for longest makes room.
        let too_many = newcomers.len().saturating_sub(MOST_NEWCOMERS);
        newcomers.drain(..too_many);
        known
    }
}

/// A process that was forked has the socket too, and answers nobody.
impl Drop for Door {
    fn drop(&mut self) {
        // If it does not listen any more, there is nothing to end.
        _ = shutdown(&self.socket, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::TcpStream;

    /// No other test's, which would have the same door.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn a_door_is_open_as_long_as_somebody_has_it() {
        let [one, same] = [0, 1].map(|_| open(at("127.0.0.1:1"), PATIENCE).unwrap());
        assert_eq!(one.port(), same.port());
        // The address that others reach this process by may change meanwhile.
        let other = open(at("127.0.0.2:1"), PATIENCE).unwrap();
        let (there, elsewhere) = (one.address, other.address);
        assert!(elsewhere.ip() != there.ip());
        drop(one);
        let comes = TcpStream::connect(there).unwrap();
        let mut link = Link::new(comes, PATIENCE).unwrap();
        link.push(Kind::Again, &[7; Session::BYTES]);
        assert!(link.send().unwrap());
        let begin = Instant::now();
        let found = loop {
            if let Some((session, _)) = newcomers().0.pop() {
                break session;
            }
            assert!(begin.elapsed() < PATIENCE);
        };
        assert!(found.is(&Session::from_bytes([7; Session::BYTES])));
        // As a process that was forked has it.
        let _child = same.socket.try_clone().unwrap();
        drop(same);
        assert_eq!(TcpStream::connect(there).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        TcpStream::connect(elsewhere).unwrap();
    }
}
