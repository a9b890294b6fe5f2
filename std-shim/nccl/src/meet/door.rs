//! Where senders come back whose link broke: one port of this process, for all connections that were accepted in it.

use super::link::{Frame, Kind, Link, Read};
use super::session::Session;
use crate::guard::{Code, Refusal};
use crate::log;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long whoever comes may take to say which connection it is of.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Those that may be about to say it at a time. More wait in the kernel's queue.
const MOST_NEWCOMERS: usize = 64;

/// Opened with the first connection that is accepted, and then kept.
static DOOR: Mutex<Option<Door>> = Mutex::new(None);

struct Door {
    socket: TcpListener,
    address: SocketAddr,
    /// How long their links may be silent.
    patience: Duration,
    newcomers: Vec<(Link, Instant)>,
}

fn door() -> MutexGuard<'static, Option<Door>> {
    // Plain data, which is whole whoever panicked.
    DOOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The port of the door at this address, whose own port does not matter.
pub(super) fn port(at: SocketAddr, patience: Duration) -> Result<u16, Refusal> {
    let mut door = door();
    let is_there = |door: &Door| {
        let mut there = door.address;
        there.set_port(at.port());
        there == at && door.patience == patience
    };
    if let Some(door) = &*door
        && is_there(door)
    {
        return Ok(door.address.port());
    }
    // Where settings differ, there is no connection of the former ones.
    let opened = Door::open(at, patience).map_err(|error| {
        Refusal::new(Code::System, format!("cannot listen at {}: {error}", at.ip()))
    })?;
    Ok(door.insert(opened).address.port())
}

/// Calls what is done with its socket, if there is one.
pub(crate) fn with_socket<E>(call: impl FnOnce(BorrowedFd<'_>) -> Result<(), E>) -> Result<(), E> {
    door().as_ref().map_or(Ok(()), |door| call(door.socket.as_fd()))
}

/// Links that were made anew, each with the connection that it says it is for; and whether others have come who have
/// not said it yet. Never waits.
pub(crate) fn newcomers() -> (Vec<(Session, Link)>, bool) {
    match &mut *door() {
        Some(door) => (door.take(), !door.newcomers.is_empty()),
        None => (Vec::new(), false),
    }
}

impl Door {
    fn open(mut at: SocketAddr, patience: Duration) -> io::Result<Self> {
        at.set_port(0);
        let socket = TcpListener::bind(at)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address, patience, newcomers: Vec::new() })
    }

    fn take(&mut self) -> Vec<(Session, Link)> {
        while self.newcomers.len() < MOST_NEWCOMERS
            // Whatever the error is, there may be somebody the next time.
            && let Ok((stream, _)) = self.socket.accept()
        {
            let link = Link::new(stream, self.patience);
            self.newcomers.extend(link.ok().map(|link| (link, Instant::now())));
        }
        let mut known = Vec::new();
        for (mut link, since) in std::mem::take(&mut self.newcomers) {
            match link.read() {
                Ok(Read::Nothing) if since.elapsed() < SESSION_TIMEOUT => {
                    self.newcomers.push((link, since));
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
        known
    }
}
