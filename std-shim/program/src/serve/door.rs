//! Peers that have connected and are not served yet. All are polled together, so that a peer cannot
//! delay another one by what it sends, or by sending nothing.

use super::devices::Offers;
use super::visitor::Visitor;
use crate::job::{Job, Link, Message};
use crate::session::{PeerTimeouts, SessionError, tell_failure};
use polyrail::link::{Arrival, Arrivals, LinkError, Listener};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limit of peers that have sent a hello and wait for their turn. Each takes a socket and about
/// 17 KiB.
const PLACES: usize = 64;

/// Longest wait for peers, between checks for interrupts.
const TICK: Duration = Duration::from_millis(100);

/// Called with the reason why a peer was not served.
pub(super) type Stray<'a> = dyn FnMut(SocketAddr, SessionError) + 'a;

/// Peers that are not served yet.
#[derive(Debug)]
pub(super) struct Door<'a> {
    listener: &'a Listener,
    timeouts: PeerTimeouts,
    /// Becomes readable when a served peer is finished.
    bell: UnixStream,
    /// Peers that have not sent a hello.
    arrivals: Arrivals<Job>,
    /// Peers that have sent a hello, in the order of their hellos, with the time of each.
    waiting: VecDeque<(Visitor, Instant)>,
}

impl<'a> Door<'a> {
    pub(super) fn new(
        listener: &'a Listener,
        offers: Option<Arc<dyn Offers>>,
        timeouts: PeerTimeouts,
        bell: UnixStream,
    ) -> Self {
        let mut arrivals = Arrivals::default();
        if let Some(offers) = offers {
            arrivals = arrivals.with_offer(move |peer| offers.offer(peer));
        }
        Self { listener, timeouts, bell, arrivals, waiting: VecDeque::new() }
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
        let refused = |address, why: LinkError| stray(address, why.into());
        let arrived = self.arrivals.step(self.listener, &self.timeouts.link(), refused)?;
        for Arrival { mut link, hello, address } in arrived {
            match hello.purpose.clone() {
                Some(purpose) => {
                    let visitor = Visitor { control: link, hello, purpose, address };
                    self.waiting.push_back((visitor, Instant::now()));
                }
                None => {
                    let error = SessionError::Protocol("its hello states no purpose".into());
                    send_away(&mut link, address, error, stray);
                }
            }
        }
        self.check_waiting(inside, stray);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), LinkError> {
        let silent = self.arrivals.fds();
        let waiting = self.waiting.iter().filter_map(|(visitor, _)| visitor.control.fd());
        let listener = self.arrivals.has_room().then(|| self.listener.as_fd());
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

    /// Refuses peers that have waited for nearly the answer timeout, since the server is busy.
    fn check_waiting(&mut self, inside: usize, stray: &mut Stray<'_>) {
        // Before the peer itself gives up: its timeout is the same by default.
        let limit = self.timeouts.answer.mul_f64(0.8);
        for place in 0..self.waiting.len() {
            let Some((mut visitor, since)) = self.waiting.pop_front() else { return };
            let late = since.elapsed() >= limit || place >= PLACES;
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

/// Refuses a peer, with the reason.
pub(super) fn send_away(
    control: &mut Link,
    address: SocketAddr,
    error: SessionError,
    stray: &mut Stray<'_>,
) {
    tell_failure(control, &error);
    stray(address, error);
}
