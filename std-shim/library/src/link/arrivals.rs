//! Links whose first message has not come: from any process that can reach the port.

use super::counts::REFUSED_PEERS;
use super::end::Link;
use super::error::{LinkError, Reason};
use super::hello::Hello;
use super::listener::{Listener, is_forbidden};
use super::message::{HELLO, Message};
use super::offer::Offer;
use super::pace::Pace;
use super::purpose::Purpose;
use super::stream::wait_for_any;
use super::timeouts::Timeouts;
use crate::trace;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Limit of links whose first message has not come. Each takes a socket and about 17 KiB.
const PLACES: usize = 64;

/// How long a peer without a proof keeps its place while others wait. A peer sends each message of
/// the proof at once, so this is the time of a round trip.
const GRACE: Duration = Duration::from_millis(200);

/// Longest wait between two steps: the limits of peers that send nothing do not show on a stream.
const LOOK: Duration = Duration::from_millis(100);

/// The links of a [`Listener`] whose first message has not come: they prove that they have the
/// token, resume earlier links, or bring a hello. All go on together, so that no peer delays
/// another one by what it sends, or by sending nothing.
///
/// ```no_run
/// use polyrail::link::{Arrivals, Listener, NoPurpose, Timeouts};
///
/// let listener = Listener::bind("0.0.0.0:7471")?;
/// let mut arrivals = Arrivals::<NoPurpose>::default();
/// let arrival = arrivals.accept(&listener, &Timeouts::default())?;
/// println!("{} is at {:?}", arrival.address, arrival.hello.reach);
/// # Ok::<(), polyrail::link::LinkError>(())
/// ```
#[derive(Debug)]
pub struct Arrivals<P: Purpose> {
    /// In the order of their arrival.
    guests: VecDeque<Guest<P>>,
    /// Links whose hello has come, and which [`accept`](Self::accept) has not returned yet.
    ready: VecDeque<Arrival<P>>,
    /// Whether the system refused the last connection for now.
    is_blocked: bool,
    /// Counts what the owner's calls can do.
    pace: Option<Pace>,
    /// Makes the offer for a peer at an address; `None`: peers may not ask.
    offer: Option<OfferFor>,
}

/// A function that makes the offer for a peer.
struct OfferFor(Box<dyn Fn(SocketAddr) -> Offer + Send>);

impl fmt::Debug for OfferFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OfferFor(..)")
    }
}

/// A link whose first message has not come.
#[derive(Debug)]
struct Guest<P: Purpose> {
    link: Link<P>,
    address: SocketAddr,
    /// When it was accepted, by the clock of the arrivals.
    since: Instant,
    /// Whether it was sent an offer.
    has_asked: bool,
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
        let (guests, ready) = (VecDeque::new(), VecDeque::new());
        Self { guests, ready, is_blocked: false, pace: None, offer: None }
    }
}

impl<P: Purpose> Arrivals<P> {
    /// Answers peers that [ask](Message::Ask) with what `offer` returns for their address. Without
    /// an offer, peers that ask are refused.
    #[must_use]
    pub fn with_offer(mut self, offer: impl Fn(SocketAddr) -> Offer + Send + 'static) -> Self {
        self.offer = Some(OfferFor(Box::new(offer)));
        self
    }

    /// Waits until the hello of a peer has come, for up to [`Timeouts::accept`]. Other peers do not
    /// delay it, whatever they send. They keep their places for the next call.
    ///
    /// # Errors
    ///
    /// No hello came in time: [`LinkError::NoPeer`], with the reason why the last peer that did
    /// connect was refused. The listener can no longer accept.
    pub fn accept(
        &mut self,
        listener: &Listener,
        timeouts: &Timeouts,
    ) -> Result<Arrival<P>, LinkError> {
        let deadline = timeouts.accept.and_then(|accept| Instant::now().checked_add(accept));
        let mut refused = None;
        loop {
            // Before others are accepted: peers must not fill this queue faster than it is emptied.
            if let Some(arrival) = self.ready.pop_front() {
                return Ok(arrival);
            }
            let arrived = self.step(listener, timeouts, |_, why| refused = Some(Box::new(why)))?;
            self.ready.extend(arrived);
            if !self.ready.is_empty() {
                continue;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                let waited = timeouts.accept.unwrap_or_default();
                return Err(LinkError::NoPeer { waited, refused });
            }
            let look = now + LOOK;
            self.wait(listener, deadline.map_or(look, |deadline| deadline.min(look)))?;
        }
    }

    fn wait(&self, listener: &Listener, until: Instant) -> Result<(), LinkError> {
        let connections = self.has_room().then(|| listener.as_fd());
        wait_for_any(self.fds().chain(connections), until)
    }

    /// Accepts new links, goes on with all of them, and returns those whose hello has come. Never
    /// waits. If there is no place for a new link, the oldest peer that has not proved that it has
    /// the token loses its place. Calls `refused` for each peer whose link ends here.
    ///
    /// # Errors
    ///
    /// The listener can no longer accept. What is temporary is not an error: a lack of resources,
    /// and rules that forbid a connection.
    pub fn step(
        &mut self,
        listener: &Listener,
        timeouts: &Timeouts,
        mut refused: impl FnMut(SocketAddr, LinkError),
    ) -> Result<Vec<Arrival<P>>, LinkError> {
        let refused: &mut Refused<'_> = &mut refused;
        // First, so that a new peer cannot take the place of a peer whose hello has just come.
        let now = self.now();
        let mut arrived: Vec<_> = self.ready.drain(..).collect();
        arrived.extend(self.go_on(timeouts, now, refused));
        if let Err(error) = self.let_in(listener, timeouts, now, refused) {
            self.ready.extend(arrived);
            return Err(error);
        }
        arrived.extend(self.go_on(timeouts, now, refused));
        Ok(arrived)
    }

    /// Returns the time of this call.
    fn now(&mut self) -> Instant {
        let now = Instant::now();
        self.pace.get_or_insert(Pace::begin(now)).at(now)
    }

    /// Accepts new connections.
    fn let_in(
        &mut self,
        listener: &Listener,
        timeouts: &Timeouts,
        now: Instant,
        refused: &mut Refused<'_>,
    ) -> Result<(), LinkError> {
        self.is_blocked = false;
        for _ in 0..PLACES / 2 {
            if self.guests.len() >= PLACES && !self.evict(listener, now, refused) {
                return Ok(());
            }
            match listener.try_accept(timeouts) {
                Ok(Some((link, address))) => {
                    self.guests.push_back(Guest { link, address, since: now, has_asked: false });
                }
                Ok(None) => return Ok(()),
                Err(error) if error.lacks_resources() => {
                    self.is_blocked = !self.evict(listener, now, refused);
                    return Ok(());
                }
                Err(error) if is_forbidden(&error) => {
                    self.is_blocked = true;
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
    fn evict(&mut self, listener: &Listener, now: Instant, refused: &mut Refused<'_>) -> bool {
        let has_proved = |guest: &Guest<P>| listener.has_token() && guest.link.is_open();
        let oldest = self.guests.iter().position(|guest| !has_proved(guest));
        let is_late = |at: &usize| self.guests[*at].waited(now) >= GRACE;
        let Some(guest) = oldest.filter(is_late).and_then(|at| self.guests.remove(at)) else {
            return false;
        };
        guest.leave(now, refused);
        true
    }

    fn go_on(
        &mut self,
        timeouts: &Timeouts,
        now: Instant,
        refused: &mut Refused<'_>,
    ) -> Vec<Arrival<P>> {
        let mut arrived = Vec::new();
        for _ in 0..self.guests.len() {
            let Some(mut guest) = self.guests.pop_front() else { break };
            match guest.link.receive(now) {
                Ok(None) if guest.waited(now) >= timeouts.message => guest.leave(now, refused),
                Ok(None) => self.guests.push_back(guest),
                Ok(Some(message)) => match (message, &self.offer) {
                    (Message::Ask {}, Some(OfferFor(offer))) => {
                        // If the peer is gone, the next receive shows that.
                        _ = guest.link.offer(&Message::Offer(offer(guest.address)));
                        self.guests.push_back(Guest { has_asked: true, ..guest });
                    }
                    (message, _) => arrived.extend(guest.welcome(message, refused)),
                },
                // It needed no more than the offer.
                Err(LinkError::HungUp { pending: 0 }) if guest.has_asked => {}
                Err(error) => guest.refuse(error, refused),
            }
        }
        arrived
    }

    /// What can bring news: for waiting on many at once.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.guests.iter().filter_map(|guest| guest.link.fd())
    }

    /// Returns whether the next connection can be accepted now. While it cannot, a wait for the
    /// listener would return at once.
    pub fn has_room(&self) -> bool {
        !self.is_blocked && self.guests.len() < PLACES
    }

    /// Returns whether there is no link whose first message has not come.
    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }
}

impl<P: Purpose> Guest<P> {
    /// Handles the first message.
    fn welcome(self, message: Message<P>, refused: &mut Refused<'_>) -> Option<Arrival<P>> {
        let Self { link, address, since, has_asked } = self;
        let mut refuse = |link, why: LinkError| {
            Self { link, address, since, has_asked }.refuse(why, refused);
        };
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
    fn leave(self, now: Instant, refused: &mut Refused<'_>) {
        let why = self.no_hello(now);
        self.refuse(why, refused);
    }

    fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    fn no_hello(&self, now: Instant) -> LinkError {
        let waited = Duration::from_millis(self.waited(now).as_millis() as u64);
        self.link.no_answer(HELLO, waited)
    }

    /// Ends the link. The peer is sent the reason if the reason is what it has sent. Otherwise the
    /// link is reset, because the peer may be about to resume an earlier link: a reason would end
    /// that link, while after a reset the peer tries again.
    fn refuse(mut self, why: LinkError, refused: &mut Refused<'_>) {
        match why {
            LinkError::NoAnswer { .. } | LinkError::Stalled { .. } | LinkError::Io { .. } => {
                self.link.reset();
            }
            // A peer that is gone misses these.
            _ if why.is_about_token() => {
                _ = self.link.offer(&Message::Refused { reason: Reason::new(&why) });
            }
            _ => _ = self.link.offer(&Message::Failed { reason: Reason::new(&why) }),
        }
        if !why.is_just_an_end() {
            REFUSED_PEERS.add_one();
            trace::peer_refused(&self.address, &why);
        }
        refused(self.address, why);
    }
}
