//! The attempts of the side that connects to resume a link that broke: where each is, how long it
//! may take, and which failures mean that the peer has ended.
//!
//! ```text
//!  the address that answered ─► all ─► the address that answered ─► all ─► ...
//!              │ refuses                          │ refuses
//!              └──► each other address, alone, once ──► the address that answered ─► ...
//! ```
//!
//! Once the address that answered has refused each attempt for as long as [`Timeouts::refused`],
//! and each other address was tried, the link is given up.

use super::channel::{Channel, Fault, NewStream, Target};
use super::error::LinkError;
use super::hello::Session;
use super::message::Message;
use super::purpose::NoPurpose;
use super::timeouts::Timeouts;
use rustix::event::PollFlags;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Time between two attempts, at first; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long an attempt may take to connect: the system sends its first packet again after 1 s.
const CONNECT: Duration = Duration::from_secs(2);

/// How long the first attempt may take to connect if the peer has other addresses: the address that
/// answered before may be gone for good.
const CONNECT_SOON: Duration = Duration::from_millis(250);

/// How long an attempt may take for each answer of the peer. The next attempt may find a host that
/// is less busy.
const ATTEMPT: Duration = Duration::from_secs(5);

/// How long an attempt at another address may take to connect, and for each answer, once the
/// address that answered before has refused: the peer has probably ended, and its owner waits for
/// that.
const ATTEMPT_SOON: Duration = Duration::from_secs(1);

const RESUMED: &str = "\"resumed\"";

/// The attempts since the link broke, one after another.
#[derive(Debug)]
pub(super) struct Redial {
    attempt: Attempt,
    /// Where the last attempt was, or is.
    last: Option<At>,
    /// While the address that answered refuses every attempt at it alone.
    refusal: Option<Refusal>,
    pause: Duration,
}

#[derive(Debug)]
enum Attempt {
    /// None is under way, and the next one begins at this time.
    Pause(Instant),
    /// It connects there, and waits for the next answer of the peer since this time.
    Trying(Box<Channel<NoPurpose>>, At, Instant),
}

/// The address that answered as the peer refuses. The peer may live although a relay to it has
/// ended, so its other addresses are tried before the link is given up.
#[derive(Debug)]
struct Refusal {
    since: Instant,
    /// The other addresses that were tried since then.
    tried: Vec<SocketAddr>,
}

/// Where an attempt is. The first one, and every second one as long as there was no refusal, is
/// only at the address that answered as the peer, since a peer that has ended is noticed by its
/// refusals. Another process may listen at another address, and be the first to answer.
#[derive(Clone, Copy, Debug)]
enum At {
    /// The address that answered, for the first time, if the peer has others.
    First(SocketAddr),
    /// The address that answered.
    Met(SocketAddr),
    /// Another one, after the one that answered has refused: alone, so that no other answer, and no
    /// long row of addresses, keeps it from being tried.
    Other(SocketAddr),
    All,
}

impl At {
    fn addresses(self, target: &Target) -> Vec<SocketAddr> {
        match self {
            Self::First(address) | Self::Met(address) | Self::Other(address) => vec![address],
            Self::All => target.addresses.clone(),
        }
    }

    /// Returns how long an attempt may take to connect, and for each answer of the peer.
    const fn limits(self) -> (Duration, Duration) {
        match self {
            Self::First(_) => (CONNECT_SOON, ATTEMPT),
            Self::Other(_) => (ATTEMPT_SOON, ATTEMPT_SOON),
            Self::Met(_) | Self::All => (CONNECT, ATTEMPT),
        }
    }
}

/// Returns the addresses at which the peer may be, apart from the one that answered.
fn others(target: &Target) -> impl Iterator<Item = SocketAddr> {
    target.addresses.iter().copied().filter(|address| Some(*address) != target.met)
}

/// The peer is there and has no such link, or its process has ended.
#[derive(Debug)]
pub(super) struct NeverAgain;

impl Redial {
    /// The first attempt begins after a pause: a link that breaks as soon as it is resumed is not
    /// resumed all the time.
    pub(super) fn begin(now: Instant) -> Self {
        let attempt = Attempt::Pause(now + FIRST_PAUSE);
        Self { attempt, last: None, refusal: None, pause: FIRST_PAUSE }
    }

    /// Continues as far as possible without waiting. Returns the new stream once the peer has
    /// answered that the link is resumed.
    pub(super) fn step(
        &mut self,
        session: Session,
        target: &mut Target,
        now: Instant,
    ) -> Result<Option<NewStream>, NeverAgain> {
        // Each turn after the first begins an attempt at an address that was not tried since the
        // refusal, or the one after the last of these, which never begins another turn.
        loop {
            let (at, error) = match self.go_on(session, target, now) {
                Ok(stream) => return Ok(stream),
                Err(failed) => failed,
            };
            if !self.note_failed(at, &error, target, now)? {
                self.attempt = Attempt::Pause(now + self.pause);
                self.pause = (2 * self.pause).min(LONGEST_PAUSE);
                return Ok(None);
            }
        }
    }

    /// What an attempt waits for, if one is under way.
    pub(super) fn waits_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.attempt {
            Attempt::Trying(channel, ..) => channel.waits_for(),
            Attempt::Pause(_) => None,
        }
    }

    /// Returns the first of the other addresses that was not tried since the one that answered
    /// refuses.
    fn untried(&self, target: &Target) -> Option<SocketAddr> {
        let Refusal { tried, .. } = self.refusal.as_ref()?;
        others(target).find(|address| !tried.contains(address))
    }

    /// Returns where the next attempt is.
    fn next(&self, target: &Target) -> At {
        let Some(met) = target.met else { return At::All };
        if let Some(untried) = self.untried(target) {
            return At::Other(untried);
        }
        let has_others = others(target).next().is_some();
        match self.last {
            None if has_others => At::First(met),
            Some(At::First(_) | At::Met(_)) if has_others => At::All,
            _ => At::Met(met),
        }
    }

    /// Goes on with an attempt, or begins the next one.
    ///
    /// # Errors
    ///
    /// The attempt failed. The next call begins the next one.
    fn go_on(
        &mut self,
        session: Session,
        target: &mut Target,
        now: Instant,
    ) -> Result<Option<NewStream>, (At, Fault)> {
        match std::mem::replace(&mut self.attempt, Attempt::Pause(now)) {
            Attempt::Pause(until) if now < until => {
                self.attempt = Attempt::Pause(until);
                Ok(None)
            }
            Attempt::Pause(_) => {
                let at = self.next(target);
                self.last = Some(at);
                let channel =
                    begin(session, at, target, now).map_err(|error| (at, error.into()))?;
                self.attempt = Attempt::Trying(Box::new(channel), at, now);
                Ok(None)
            }
            Attempt::Trying(mut channel, at, since) => {
                let (_, limit) = at.limits();
                match ask(&mut channel, now) {
                    Ok(true) => {
                        if let Some(answered) = channel.answered() {
                            target.meet(answered, &[]);
                        }
                        Ok(channel.into_stream())
                    }
                    Ok(false) if now.saturating_duration_since(channel.asked(since)) < limit => {
                        let since = channel.asked(since);
                        self.attempt = Attempt::Trying(channel, at, since);
                        Ok(None)
                    }
                    failed => {
                        channel.reset();
                        channel.answered().iter().for_each(|silent| target.put_last(*silent));
                        let late = || Fault::Over(channel.no_answer(RESUMED, limit));
                        Err((at, failed.err().unwrap_or_else(late)))
                    }
                }
            }
        }
    }

    /// Notes that an attempt failed. Returns whether the next one is to begin at once.
    fn note_failed(
        &mut self,
        at: At,
        error: &Fault,
        target: &Target,
        now: Instant,
    ) -> Result<bool, NeverAgain> {
        // Then the attempt was none.
        if matches!(error, Fault::Over(error) if error.lacks_resources()) {
            return Ok(false);
        }
        match at {
            At::First(_) | At::Met(_) if is_refusal(error) => {
                let first = || Refusal { since: now, tried: Vec::new() };
                let Refusal { since, .. } = *self.refusal.get_or_insert_with(first);
                let is_late = now.saturating_duration_since(since) >= target.timeouts.refused;
                match is_late && self.untried(target).is_none() {
                    true => Err(NeverAgain),
                    false => Ok(false),
                }
            }
            At::First(_) | At::Met(_) => {
                self.refusal = None;
                Ok(false)
            }
            At::Other(address) => {
                self.refusal.iter_mut().for_each(|refusal| refusal.tried.push(address));
                Ok(true)
            }
            // What others answer does not show whether the peer has ended.
            At::All => Ok(false),
        }
    }
}

fn begin(
    session: Session,
    at: At,
    target: &Target,
    now: Instant,
) -> Result<Channel<NoPurpose>, LinkError> {
    let (connect, _) = at.limits();
    let timeouts = Timeouts { connect: connect.min(target.timeouts.connect), ..target.timeouts };
    let addresses = at.addresses(target);
    let mut channel = Channel::dial(Target { addresses, timeouts, ..target.clone() }, now)?;
    channel.push(&Message::Resume { session });
    Ok(channel)
}

/// Returns whether the peer has answered that the link is resumed.
fn ask(channel: &mut Channel<NoPurpose>, now: Instant) -> Result<bool, Fault> {
    match channel.receive(now)? {
        None => Ok(false),
        Some(Message::Resumed {}) => Ok(true),
        Some(Message::Failed { reason }) => Err(LinkError::GaveUp { reason }.into()),
        Some(other) => Err(other.out_of_turn(RESUMED).into()),
    }
}

fn is_refusal(fault: &Fault) -> bool {
    match fault {
        Fault::Over(
            LinkError::GaveUp { .. }
            | LinkError::Handshake(_)
            | LinkError::WrongToken
            | LinkError::NoToken
            | LinkError::TokenRefused { .. },
        ) => true,
        Fault::Over(LinkError::Connect { source, .. }) => {
            source.kind() == ErrorKind::ConnectionRefused
        }
        Fault::Over(_) | Fault::Broken { .. } => false,
    }
}
