//! Waiting for peers.

use super::door::Door;
use super::visitor::Visitor;
use crate::session::SessionError;
use crate::visit::ServeOptions;
use polyrail::exchange::{ControlError, Listener, Token};
use std::io::Write;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// The port that servers listen at by default.
pub const DEFAULT_PORT: u16 = 7471;

/// Waits for peers.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
}

impl Server {
    /// Listens at `address`, such as `0.0.0.0:7471`.
    ///
    /// # Errors
    ///
    /// See [`Listener::bind`].
    pub fn bind(address: &str) -> Result<Self, ControlError> {
        Ok(Self { listener: Listener::bind(address)? })
    }

    /// Those that connect have to prove that they know this token, before they are told anything; and it is proved
    /// to them that the server does.
    pub fn with_token(self, token: Token) -> Self {
        Self { listener: self.listener.with_token(token) }
    }

    /// Returns the address where it listens.
    ///
    /// # Errors
    ///
    /// The system does not know it.
    pub fn local_addr(&self) -> Result<SocketAddr, ControlError> {
        self.listener.local_addr()
    }

    /// Calls `attend` for each peer that asks for something, in a thread of its own, for
    /// [`ServeOptions::peers`] of them at a time, until `attend` breaks or `interrupted` is set;
    /// returns when all calls have. Calls `stray`, on this thread, for peers that leave before their
    /// turn or are sent away, for example because they send nothing or nonsense.
    ///
    /// Many peers can wait at the door at once without delaying each other. When all places there are
    /// taken, the peer that has been silent longest loses its place.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn run(
        &self,
        options: &ServeOptions,
        interrupted: &AtomicBool,
        attend: impl Fn(Visitor) -> ControlFlow<()> + Sync,
        mut stray: impl FnMut(SocketAddr, SessionError),
    ) -> Result<(), ControlError> {
        let failed = |source| ControlError::Io { doing: "preparing to serve", source };
        let (bell, ringer) = UnixStream::pair().map_err(failed)?;
        bell.set_nonblocking(true).and_then(|()| ringer.set_nonblocking(true)).map_err(failed)?;
        let inside = AtomicUsize::new(0);
        let over = AtomicBool::new(false);
        let peers = options.peers.max(1);
        let mut door = Door::new(&self.listener, options.patience, bell);
        thread::scope(|scope| {
            while !interrupted.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) {
                while inside.load(Ordering::Acquire) < peers
                    && let Some(visitor) = door.next()
                {
                    let visit = Inside::new(&inside, &over, &ringer);
                    let address = visitor.address;
                    let attend = &attend;
                    let work = move || visit.over_if(attend(visitor).is_break());
                    if let Err(source) = thread::Builder::new().spawn_scoped(scope, work) {
                        let error = ControlError::Io { doing: "starting a thread", source };
                        stray(address, error.into());
                    }
                }
                door.attend(peers, &mut stray)?;
            }
            door.close(&mut stray);
            Ok(())
        })
    }
}

/// A peer that is being served: counted until it is finished; then the door's bell rings.
#[derive(Debug)]
struct Inside<'a> {
    count: &'a AtomicUsize,
    over: &'a AtomicBool,
    ringer: &'a UnixStream,
}

impl<'a> Inside<'a> {
    fn new(count: &'a AtomicUsize, over: &'a AtomicBool, ringer: &'a UnixStream) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self { count, over, ringer }
    }

    /// The peer is finished; perhaps it was the last one.
    fn over_if(self, last: bool) {
        self.over.fetch_or(last, Ordering::Relaxed);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // A panic is passed on when all threads have ended: no other peer is let in.
        self.over.fetch_or(thread::panicking(), Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::AcqRel);
        // If the pipe is full, it has been rung already.
        _ = self.ringer.write(&[0]);
    }
}
