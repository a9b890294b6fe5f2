//! The server, and the threads that serve its peers.

use super::devices::Offers;
use super::door::{Door, send_away};
use super::visitor::Visitor;
use crate::session::SessionError;
use crate::visit::ServeOptions;
use polyrail::link::{LinkError, Listener, Token};
use std::io::Write;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder};

/// The port that servers listen at by default.
pub const DEFAULT_PORT: u16 = 7471;

/// A server that waits for peers.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    offers: Option<Arc<dyn Offers>>,
}

impl Server {
    /// Listens at `address`, such as `*:7471`.
    ///
    /// # Errors
    ///
    /// See [`Listener::bind`].
    pub fn bind(address: &str) -> Result<Self, LinkError> {
        Ok(Self { listener: Listener::bind(address)?, offers: None })
    }

    /// Requires peers to prove that they have this token before any other message, and proves to
    /// them that the server has it.
    pub fn with_token(self, token: Token) -> Self {
        Self { listener: self.listener.with_token(token), ..self }
    }

    /// Answers peers that ask for the server's devices. Without an offer, they are refused.
    pub fn with_offers(self, offers: Arc<dyn Offers>) -> Self {
        Self { offers: Some(offers), ..self }
    }

    /// Returns the address that the server listens at.
    ///
    /// # Errors
    ///
    /// The system reports an error.
    pub fn local_addr(&self) -> Result<SocketAddr, LinkError> {
        self.listener.local_addr()
    }

    /// Calls `attend` for each peer that sends a request, each in a separate thread, for up to
    /// [`ServeOptions::peers`] peers at a time, until `attend` breaks or `interrupted` is set.
    /// Returns when all calls have returned. Calls `stray`, on this thread, for peers that leave
    /// before their turn or are refused, for example because they send nothing or an invalid
    /// message.
    ///
    /// Waiting peers do not delay each other. When the places for peers without a request are
    /// taken, the peer that has been silent longest is refused.
    ///
    /// # Errors
    ///
    /// The server can no longer accept connections.
    pub fn run(
        &self,
        options: &ServeOptions,
        interrupted: &AtomicBool,
        attend: impl Fn(Visitor) -> ControlFlow<()> + Sync,
        stray: impl FnMut(SocketAddr, SessionError),
    ) -> Result<(), LinkError> {
        self.run_on(Builder::new, options, interrupted, attend, stray)
    }

    /// Runs with these threads.
    pub(super) fn run_on(
        &self,
        thread: impl Fn() -> Builder,
        options: &ServeOptions,
        interrupted: &AtomicBool,
        attend: impl Fn(Visitor) -> ControlFlow<()> + Sync,
        mut stray: impl FnMut(SocketAddr, SessionError),
    ) -> Result<(), LinkError> {
        let failed = |source| LinkError::Io { doing: "preparing to serve", source };
        let (bell, ringer) = UnixStream::pair().map_err(failed)?;
        bell.set_nonblocking(true).and_then(|()| ringer.set_nonblocking(true)).map_err(failed)?;
        let inside = AtomicUsize::new(0);
        let over = AtomicBool::new(false);
        let peers = options.peers.max(1);
        let mut door = Door::new(&self.listener, self.offers.clone(), options.timeouts, bell);
        thread::scope(|scope| {
            while !interrupted.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) {
                while inside.load(Ordering::Acquire) < peers
                    && let Some(visitor) = door.next()
                {
                    let visit = Inside::new(&inside, &over, &ringer);
                    // A thread that cannot be started drops its work, but not the visitor.
                    let visitor = Arc::new(Mutex::new(Some(visitor)));
                    let handed_over = Arc::clone(&visitor);
                    let attend = &attend;
                    let work = move || {
                        let visitor = take(&handed_over);
                        visit.over_if(visitor.is_some_and(|visitor| attend(visitor).is_break()));
                    };
                    if let Err(source) = thread().spawn_scoped(scope, work)
                        && let Some(Visitor { mut control, address, .. }) = take(&visitor)
                    {
                        let error = LinkError::Io { doing: "starting a thread", source };
                        send_away(&mut control, address, error.into(), &mut stray);
                    }
                }
                door.attend(peers, &mut stray)?;
            }
            door.close(&mut stray);
            Ok(())
        })
    }
}

fn take(visitor: &Mutex<Option<Visitor>>) -> Option<Visitor> {
    visitor.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// A peer that is being served. When it is dropped, the next peer can be served, so the door is
/// woken up.
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

    /// Ends the server if the peer was the last one.
    fn over_if(self, last: bool) {
        self.over.fetch_or(last, Ordering::Relaxed);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // The scope passes on a panic once all threads have ended, so the server has to end.
        self.over.fetch_or(thread::panicking(), Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::AcqRel);
        // If the socket is full, the other end is awake already.
        _ = self.ringer.write(&[0]);
    }
}
