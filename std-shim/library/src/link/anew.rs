//! A link that is made anew when it breaks: where the new one comes from, how long it is waited for, and
//! what is said again.

use super::error::LinkError;
use super::message::Message;
use super::purpose::Purpose;
use super::session::Session;
use super::stream::{Stream, is_reset};
use super::timeouts::Timeouts;
use super::token::Token;
use crate::trace;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two attempts, at first; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a side that was connected to waits after its link was reset. A process that is killed resets its
/// connections too, so this is how late that is noticed; one that lives connects again within an attempt and
/// a pause.
const AFTER_RESET: Duration = Duration::from_secs(5);

/// A new link, with bytes that were read from it already.
#[derive(Debug)]
pub(super) struct NewLink {
    pub(super) stream: Box<dyn Stream>,
    pub(super) unread: Vec<u8>,
}

/// No new link will come.
#[derive(Debug)]
pub(super) struct NeverAgain;

/// What came of an attempt to connect again; `None`: it may go better later.
pub(super) type Attempt = Option<Result<NewLink, NeverAgain>>;

/// Where a new link is left for the connection that it is for.
#[derive(Debug, Default)]
struct Mailbox {
    /// Read at every receive, so it must not cost a lock.
    has_mail: AtomicBool,
    link: Mutex<Option<Result<NewLink, NeverAgain>>>,
}

impl Mailbox {
    fn put(&self, link: Result<NewLink, NeverAgain>) {
        *lock(&self.link) = Some(link);
        self.has_mail.store(true, Ordering::Release);
    }

    fn take(&self) -> Option<Result<NewLink, NeverAgain>> {
        self.has_mail.swap(false, Ordering::AcqRel).then(|| lock(&self.link).take())?
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Plain data, which is whole whoever panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connections of a listening side whose links are made anew.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions(Arc<Mutex<HashMap<Session, Weak<Mailbox>>>>);

impl Sessions {
    fn find(&self, session: Session) -> Option<Arc<Mailbox>> {
        lock(&self.0).get(&session)?.upgrade()
    }

    /// Hands a new link to the connection that it is for; the link is returned if there is none.
    pub(super) fn join(&self, session: Session, link: NewLink) -> Result<(), NewLink> {
        match self.find(session) {
            Some(mailbox) => {
                mailbox.put(Ok(link));
                Ok(())
            }
            None => Err(link),
        }
    }

    /// Whether the name was new.
    fn add(&self, session: Session, mailbox: &Arc<Mailbox>) -> bool {
        let mut sessions = lock(&self.0);
        let is_new = !sessions.contains_key(&session);
        if is_new {
            sessions.insert(session, Arc::downgrade(mailbox));
        }
        is_new
    }

    fn remove(&self, session: Session) {
        lock(&self.0).remove(&session);
    }
}

/// Where a link came from, and so how a new one is made.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// This side connected, and does so again.
    Connected {
        /// To whom.
        target: Target,
        /// Connects again.
        attempt: fn(Session, &Target) -> Attempt,
    },
    /// It was accepted; the other side connects again, and asks the same listener.
    Accepted { sessions: Sessions, timeouts: Timeouts },
}

/// Whom a side connects to.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// As it was given.
    pub(super) address: String,
    pub(super) timeouts: Timeouts,
    /// What the listening side wants to be known.
    pub(super) token: Option<Token>,
}

impl Origin {
    pub(super) fn timeouts(&self) -> &Timeouts {
        match self {
            Self::Connected { target: Target { timeouts, .. }, .. }
            | Self::Accepted { timeouts, .. } => timeouts,
        }
    }
}

/// Whether there is a link.
#[derive(Debug)]
enum State {
    Whole,
    /// A new one is waited for.
    Broken {
        since: Instant,
        patience: Duration,
        source: io::Error,
    },
    /// None will come.
    Lost,
}

/// What a connection needs whose link is made anew.
#[derive(Debug)]
pub(super) struct Anew<P: Purpose> {
    session: Session,
    origin: Origin,
    mailbox: Arc<Mailbox>,
    state: State,
    /// What the other side must hear once, and may not have heard.
    said: Vec<Message<P>>,
}

impl<P: Purpose> Anew<P> {
    /// `None` if another connection has that name: a peer that takes it is not served twice.
    pub(super) fn new(session: Session, origin: Origin) -> Option<Self> {
        let mailbox = Arc::default();
        let is_new = match &origin {
            Origin::Connected { .. } => true,
            Origin::Accepted { sessions, .. } => sessions.add(session, &mailbox),
        };
        is_new.then(|| Self { session, origin, mailbox, state: State::Whole, said: Vec::new() })
    }

    /// Whether there is no link to send or receive anything over.
    pub(super) fn is_missing(&self) -> bool {
        !matches!(self.state, State::Whole)
    }

    /// Keeps what the other side must hear.
    pub(super) fn note_said(&mut self, message: &Message<P>) {
        if matches!(message, Message::Ready {} | Message::Done(_) | Message::Failed { .. }) {
            self.said.push(message.clone());
        }
    }

    /// What is to be said over a new link before anything else.
    pub(super) fn opening(&self) -> Vec<Message<P>> {
        let answer = match self.origin {
            Origin::Connected { .. } => None,
            Origin::Accepted { .. } => Some(Message::Resumed {}),
        };
        answer.into_iter().chain(self.said.iter().cloned()).collect()
    }

    /// The link broke: has a new one made, if it is this side that connects.
    pub(super) fn note_broken(&mut self, source: io::Error) {
        if self.is_missing() {
            return;
        }
        let whole = self.origin.timeouts().anew;
        let since = Instant::now();
        let patience = match &self.origin {
            Origin::Connected { target, attempt } => {
                let (session, target, attempt) = (self.session, target.clone(), *attempt);
                let again = move || attempt(session, &target);
                keep_trying(again, Arc::downgrade(&self.mailbox), whole);
                whole
            }
            Origin::Accepted { .. } if is_reset(&source) => whole.min(AFTER_RESET),
            Origin::Accepted { .. } => whole,
        };
        trace::link_broke(&self.session, &source);
        self.state = State::Broken { since, patience, source };
    }

    /// The new link, if there is one.
    ///
    /// # Errors
    ///
    /// There will be none, or it took too long.
    pub(super) fn take_link(&mut self) -> Result<Option<NewLink>, LinkError> {
        match self.mailbox.take() {
            Some(Ok(link)) => {
                self.state = State::Whole;
                trace::link_is_back(&self.session);
                Ok(Some(link))
            }
            Some(Err(NeverAgain)) => Err(self.give_up()),
            None if self.is_too_late() => Err(self.give_up()),
            None => Ok(None),
        }
    }

    fn is_too_late(&self) -> bool {
        match self.state {
            State::Whole => false,
            State::Broken { since, patience, .. } => since.elapsed() >= patience,
            State::Lost => true,
        }
    }

    fn give_up(&mut self) -> LinkError {
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Broken { since, source, .. } if !is_reset(&source) => {
                LinkError::NotAnew { waited: since.elapsed(), source }
            }
            _ => LinkError::HungUp { pending: 0 },
        }
    }
}

impl<P: Purpose> Drop for Anew<P> {
    fn drop(&mut self) {
        if let Origin::Accepted { sessions, .. } = &self.origin {
            sessions.remove(self.session);
        }
    }
}

/// Connects again until that succeeds, in a thread of its own: names are looked up and packets waited for, and
/// meanwhile the rails are to be polled. The connection may end first.
fn keep_trying(
    attempt: impl Fn() -> Attempt + Send + 'static,
    mailbox: Weak<Mailbox>,
    patience: Duration,
) {
    let result = Weak::clone(&mailbox);
    let work = move || {
        let begin = Instant::now();
        let mut pause = FIRST_PAUSE;
        while begin.elapsed() < patience && mailbox.strong_count() > 0 {
            if let Some(link) = attempt() {
                return put(&mailbox, link);
            }
            thread::sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    };
    if thread::Builder::new().name("polyrail-link".into()).spawn(work).is_err() {
        put(&result, Err(NeverAgain));
    }
}

fn put(mailbox: &Weak<Mailbox>, link: Result<NewLink, NeverAgain>) {
    if let Some(mailbox) = mailbox.upgrade() {
        mailbox.put(link);
    }
}
