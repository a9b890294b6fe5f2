//! A link that breaks and is resumed: how long the new stream is waited for, and which messages are
//! sent again.
//!
//! ```text
//!           the stream breaks                     time is up, or refused for too long
//!  Whole ──────────────────────► Broken ─────────────────────────────────────────► Lost
//!    ▲                             │
//!    └── the peer has resumed it ──┘
//!
//!  the side that connects                          the side that listens
//!    ── knock, challenge, proof, proof (token) ──►
//!    ── resume: session ─────────────────────────► its listener finds the link
//!    ◄──────────────────────────────── resumed ───
//!    ── ready, done, failed, as sent before ─────►
//!    ◄──── ready, done, failed, as sent before ───
//! ```
//!
//! The side that listens may not have noticed that the stream broke: a new stream takes the place
//! of the old one at any time. An attempt that comes to nothing is reset, never closed: if the
//! other side has taken it, a close would be the end of the link.

use super::channel::{NewStream, Target};
use super::counts::{LINK_BREAKS, LINK_RESUMPTIONS};
use super::error::LinkError;
use super::hello::Session;
use super::message::Message;
use super::pace::Pace;
use super::purpose::Purpose;
use super::redial::{NeverAgain, Redial};
use super::stream::is_reset;
use super::timeouts::Timeouts;
use crate::trace;
use polyrail_process::Process;
use rustix::event::PollFlags;
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// Where the side that listens leaves a new stream for the link that it belongs to.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Read at every receive, so it must not cost a lock.
    has_mail: AtomicBool,
    stream: Mutex<Option<NewStream>>,
}

impl Mailbox {
    fn put(&self, stream: NewStream) {
        *lock(&self.stream) = Some(stream);
        self.has_mail.store(true, Ordering::Release);
    }

    fn take(&self) -> Option<NewStream> {
        self.has_mail.swap(false, Ordering::AcqRel).then(|| lock(&self.stream).take())?
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Plain data, which a panic leaves whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The links of a listener that can be resumed.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions(Arc<Mutex<HashMap<Session, Weak<Mailbox>>>>);

impl Sessions {
    /// Hands a new stream to the link that it is for; returns the stream if there is no such link.
    pub(super) fn join(&self, session: Session, stream: NewStream) -> Result<(), NewStream> {
        match lock(&self.0).get(&session).and_then(Weak::upgrade) {
            Some(mailbox) => {
                mailbox.put(stream);
                Ok(())
            }
            None => Err(stream),
        }
    }

    /// Returns whether the session was new.
    fn add(&self, session: Session, mailbox: &Arc<Mailbox>) -> bool {
        let mut sessions = lock(&self.0);
        let is_new = !sessions.contains_key(&session);
        if is_new {
            sessions.insert(session, Arc::downgrade(mailbox));
        }
        is_new
    }

    /// Removes a session of this mailbox, unless another link has the session by now.
    fn remove(&self, session: Session, mailbox: &Arc<Mailbox>) {
        let mut sessions = lock(&self.0);
        if sessions.get(&session).is_some_and(|of| of.as_ptr() == Arc::as_ptr(mailbox)) {
            sessions.remove(&session);
        }
    }
}

/// How a link was made, and so how it is resumed.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// This side connected, and does so again.
    Connected(Box<Target>),
    /// The link was accepted. The peer connects again, to the same listener.
    Accepted { sessions: Sessions, timeouts: Timeouts },
}

impl Origin {
    pub(super) fn timeouts(&self) -> &Timeouts {
        match self {
            Self::Connected(target) => &target.timeouts,
            Self::Accepted { timeouts, .. } => timeouts,
        }
    }
}

/// Whether the link has a stream.
#[derive(Debug)]
enum State {
    Whole,
    Broken(Box<Broken>),
    /// No stream will come.
    Lost,
}

/// A link without a stream.
#[derive(Debug)]
struct Broken {
    since: Instant,
    /// When the link is given up.
    until: Option<Instant>,
    /// Counts what the owner's calls can do.
    pace: Pace,
    /// The attempts of the side that connects.
    redial: Redial,
    /// How the link broke.
    source: io::Error,
}

/// What a link needs that both sides agreed to resume.
#[derive(Debug)]
pub(super) struct Resumption<P: Purpose> {
    session: Session,
    origin: Origin,
    mailbox: Arc<Mailbox>,
    state: State,
    /// Messages that the peer must receive, and may not have received.
    sent: Vec<Message<P>>,
    /// A fork must not wait for the lock of the sessions, which another thread may have held.
    process: Process,
}

impl<P: Purpose> Resumption<P> {
    /// Returns `None` if another link has this session: a peer that takes its name is not resumed.
    pub(super) fn new(session: Session, origin: Origin) -> Option<Self> {
        let mailbox = Arc::default();
        let is_new = match &origin {
            Origin::Connected(_) => true,
            Origin::Accepted { sessions, .. } => sessions.add(session, &mailbox),
        };
        let (state, sent, process) = (State::Whole, Vec::new(), Process::current());
        is_new.then(|| Self { session, origin, mailbox, state, sent, process })
    }

    /// Returns whether there is no stream to send or receive over.
    pub(super) const fn is_broken(&self) -> bool {
        !matches!(self.state, State::Whole)
    }

    /// Returns whether a new stream waits.
    pub(super) fn has_mail(&self) -> bool {
        self.mailbox.has_mail.load(Ordering::Acquire)
    }

    /// Keeps a message that the peer must receive.
    pub(super) fn note_sent(&mut self, message: &Message<P>) {
        if matches!(message, Message::Ready {} | Message::Done(_) | Message::Failed { .. }) {
            self.sent.push(message.clone());
        }
    }

    /// Returns the messages that begin a new stream.
    pub(super) fn opening(&self) -> Vec<Message<P>> {
        let answer = match self.origin {
            Origin::Connected(_) => None,
            Origin::Accepted { .. } => Some(Message::Resumed {}),
        };
        answer.into_iter().chain(self.sent.iter().cloned()).collect()
    }

    /// Notes that the stream broke.
    pub(super) fn note_broken(&mut self, source: io::Error, now: Instant) {
        if self.is_broken() {
            return;
        }
        let Timeouts { resume, reset, .. } = *self.origin.timeouts();
        let limit = match &self.origin {
            Origin::Accepted { .. } if is_reset(&source) => resume.min(reset),
            _ => resume,
        };
        LINK_BREAKS.add_one();
        trace::link_broke(&self.session, &source);
        self.state = State::Broken(Box::new(Broken {
            since: now,
            until: now.checked_add(limit),
            pace: Pace::begin(now),
            redial: Redial::begin(now),
            source,
        }));
    }

    /// Goes on with what brings a new stream, and returns the stream when it is there.
    ///
    /// # Errors
    ///
    /// No stream will come, or it took too long.
    pub(super) fn step(&mut self, now: Instant) -> Result<Option<NewStream>, LinkError> {
        // A link that was given up stays so: its owner has acted on that.
        if !matches!(self.state, State::Lost)
            && let Some(stream) = self.mailbox.take()
        {
            return Ok(Some(self.resumed(stream)));
        }
        let broken = match &mut self.state {
            State::Whole => return Ok(None),
            State::Broken(broken) => broken,
            State::Lost => return Err(LinkError::HungUp { pending: 0 }),
        };
        let counted = broken.pace.at(now);
        if let Origin::Connected(target) = &mut self.origin {
            match broken.redial.step(self.session, target, counted) {
                Ok(Some(stream)) => return Ok(Some(self.resumed(stream))),
                Ok(None) => {}
                Err(NeverAgain) => return Err(self.give_up(now)),
            }
        }
        match broken.until.is_some_and(|until| counted >= until) {
            true => Err(self.give_up(now)),
            false => Ok(None),
        }
    }

    fn resumed(&mut self, stream: NewStream) -> NewStream {
        self.state = State::Whole;
        LINK_RESUMPTIONS.add_one();
        trace::link_is_back(&self.session);
        stream.stream.watch(self.origin.timeouts().silence);
        stream
    }

    fn give_up(&mut self, now: Instant) -> LinkError {
        self.forget();
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Broken(broken) if !is_reset(&broken.source) => {
                let waited = now.saturating_duration_since(broken.since);
                LinkError::NotResumed { waited, source: broken.source }
            }
            _ => LinkError::HungUp { pending: 0 },
        }
    }

    /// Has the peer's attempts refused, because this side no longer takes a stream.
    fn forget(&self) {
        if let Origin::Accepted { sessions, .. } = &self.origin
            && self.process.is_current()
        {
            sessions.remove(self.session, &self.mailbox);
        }
    }

    /// What an attempt waits for, if one is under way.
    pub(super) fn waits_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Broken(broken) => broken.redial.waits_for(),
            _ => None,
        }
    }
}

impl<P: Purpose> Drop for Resumption<P> {
    fn drop(&mut self) {
        self.forget();
    }
}
