//! Methods of a link that wait, for programs that have nothing else to do.

use super::channel::Target;
use super::dial::{alternate, resolve};
use super::end::Link;
use super::error::LinkError;
use super::hello::Hello;
use super::message::{HELLO, Message, OFFER, READY};
use super::offer::Offer;
use super::purpose::Purpose;
use super::stream::wait;
use super::tcp::TcpNetwork;
use super::timeouts::Timeouts;
use super::token::Token;
use rustix::event::PollFlags;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait of a link that may be resumed: neither a new stream nor the time for the next
/// attempt shows on the old stream. The same holds for a link that lacks resources to connect.
const LOOK_FOR_STREAM: Duration = Duration::from_millis(20);

impl<P: Purpose> Link<P> {
    /// Connects to a side that [listens](super::Listener) at `address`, such as `10.0.0.2:7471`. A
    /// name may have several addresses; see [`begin`](Self::begin) for the order of the attempts.
    ///
    /// # Errors
    ///
    /// The name is unknown; no process listens there; the host does not answer, or the system
    /// [lacks resources](LinkError::lacks_resources), until the time is up.
    pub fn connect(address: &str, timeouts: &Timeouts) -> Result<Self, LinkError> {
        Self::connect_with_token(address, timeouts, None)
    }

    /// Connects to a side that requires a [`Token`]. Nothing else is sent before both sides have
    /// proved that they have it.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect); the other side has another token, or none.
    pub fn connect_with_token(
        address: &str,
        timeouts: &Timeouts,
        token: Option<&Token>,
    ) -> Result<Self, LinkError> {
        let failed = |source| LinkError::Connect { address: address.to_owned(), source };
        let target = |addresses: &[SocketAddr]| Target {
            network: Arc::new(TcpNetwork),
            name: address.to_owned(),
            addresses: alternate(addresses),
            met: None,
            timeouts: *timeouts,
            token: token.cloned(),
        };
        let mut begin = None;
        let mut link = loop {
            let found = resolve(address).map_err(failed);
            // The time that a name server took, which may be longer, does not count.
            let begin = *begin.get_or_insert_with(Instant::now);
            match found.and_then(|addresses| Self::dial(target(&addresses), begin)) {
                Err(error) if error.lacks_resources() && begin.elapsed() < timeouts.connect => {
                    thread::sleep(LOOK_FOR_STREAM);
                }
                begun => break begun?,
            }
        };
        link.wait_until_open()?;
        Ok(link)
    }

    /// Waits until this side is connected, and both sides have proved that they have the token.
    pub(super) fn wait_until_open(&mut self) -> Result<(), LinkError> {
        // Not a message more than that: the peer may have no more to send, and be gone.
        while !self.channel.open(Instant::now()).map_err(|fault| self.channel.end(fault))? {
            self.wait_until(Instant::now().checked_add(LOOK_FOR_STREAM))?;
        }
        Ok(())
    }

    /// Sends a message, and waits until the stream has taken it. If the peer is gone, the next
    /// receive shows that, after the peer's last message. Messages that are lost while the link is
    /// [broken](Self::is_broken) are not an error.
    ///
    /// # Errors
    ///
    /// The peer does not take the message, or has not proved yet that it has this side's token:
    /// then only the reason of a refusal is sent.
    pub fn send(&mut self, message: &Message<P>) -> Result<(), LinkError> {
        self.offer(message)?;
        // A stream that is not open takes nothing, although the system finds it writable. A peer
        // that has to prove that it has the token is sent only a refusal, which needs no open
        // stream.
        if !self.channel.is_open() && !self.channel.wants_proof() {
            self.wait_until_open()?;
        }
        let waited = self.message_timeout();
        let deadline = Instant::now().checked_add(waited);
        while !self.go_on_sending() {
            let Some((stream, _)) = self.waits_for() else { return Ok(()) };
            if !wait(stream, PollFlags::OUT, deadline)? {
                return Err(LinkError::Deaf { waited });
            }
        }
        Ok(())
    }

    /// Waits for the next message, all of it: a peer that sends a byte now and then gains nothing,
    /// and a peer whose link breaks gains [a limited time](Self::time_left).
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv); the peer gave up; nothing came within `timeout`.
    pub fn expect(&mut self, timeout: Duration) -> Result<Message<P>, LinkError> {
        self.expect_what("a message", Instant::now(), timeout)
    }

    fn expect_what(
        &mut self,
        expected: &'static str,
        since: Instant,
        timeout: Duration,
    ) -> Result<Message<P>, LinkError> {
        loop {
            match self.try_recv()? {
                Some(Message::Failed { reason }) => return Err(LinkError::GaveUp { reason }),
                Some(message) => return Ok(message),
                None => {}
            }
            let left = self.time_left(since, timeout);
            if left.is_zero() {
                return Err(self.no_answer(expected, timeout));
            }
            let until = Instant::now().checked_add(left);
            let complete_by = self.channel.complete_by();
            self.wait_until([until, complete_by].into_iter().flatten().min())?;
        }
    }

    /// Waits until there is something to receive, or nothing will come any more, for at most
    /// `timeout`. May return early.
    ///
    /// # Errors
    ///
    /// The system reports an error.
    pub fn wait_for_news(&self, timeout: Duration) -> Result<(), LinkError> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, until: Option<Instant>) -> Result<(), LinkError> {
        let look = Instant::now()
            .checked_add(LOOK_FOR_STREAM)
            .filter(|_| self.resumption.is_some() || !self.is_open());
        let until = [until, look].into_iter().flatten().min();
        match (self.waits_for(), until) {
            (Some((stream, flags)), until) => wait(stream, flags, until).map(|_| ()),
            (None, Some(until)) => {
                thread::sleep(until.saturating_duration_since(Instant::now()));
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    /// Asks the side that listens for its [`Offer`], and waits for it, as long as a message may
    /// take. Ask at most once, and before the hello.
    ///
    /// # Errors
    ///
    /// As [`expect`](Self::expect); the other side has no offer.
    pub fn ask(&mut self) -> Result<Offer, LinkError> {
        self.send(&Message::Ask {})?;
        match self.expect_what(OFFER, Instant::now(), self.message_timeout())? {
            Message::Offer(offer) => Ok(offer),
            other => Err(other.out_of_turn(OFFER).into()),
        }
    }

    /// Waits for the peer's hello, as long as a message may take.
    ///
    /// # Errors
    ///
    /// As [`expect`](Self::expect).
    pub fn expect_hello(&mut self) -> Result<Hello<P>, LinkError> {
        match self.expect_what(HELLO, Instant::now(), self.message_timeout())? {
            Message::Hello(hello) => Ok(hello),
            other => Err(other.out_of_turn(HELLO).into()),
        }
    }

    /// Waits until the peer is ready, as long as a message may take.
    ///
    /// # Errors
    ///
    /// As [`expect`](Self::expect).
    pub fn expect_ready(&mut self) -> Result<(), LinkError> {
        let since = Instant::now();
        loop {
            match self.expect_what(READY, since, self.message_timeout())? {
                Message::Ready {} => return Ok(()),
                // Before that there is nothing of which a part could be lost.
                Message::Resumed {} => {}
                other => return Err(other.out_of_turn(READY).into()),
            }
        }
    }
}
