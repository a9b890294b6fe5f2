//! A connection: this side's end, its link, and the requests and memory that NCCL has of it.

use super::arrived::Arrived;
use super::memory::Memory;
use super::news;
use super::requests::Requests;
use crate::devices::Device;
use crate::guard::{Code, Refusal};
use crate::log;
use crate::meet::door::Door;
use crate::meet::{Link, Message, Met, Terms};
use crate::rails::Wire;
use polyrail::chain::Chain;
use polyrail::link::{HexBytes, LinkError};
use polyrail::p2p::{HealingMessage, RecvHandle};
use polyrail::virtual_qp::{FailedBecause, RailEventKind};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which end of a connection this side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

/// How long requests may wait after their peer has ended: data on its way may still arrive.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long it may take, after a failure, until no device accesses any buffer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a call that closes waits for that; queue pairs that are destroyed then access nothing either.
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// Messages that are taken from the peer at a time.
const AT_ONCE: usize = 64;

/// Polls from one to the next in which messages to the peer go out.
const SPEAK_EVERY: u64 = 16;

/// A connection.
pub(crate) struct Connection {
    pub(crate) role: Role,
    /// The communicator that it ends with, 0 if there is none.
    pub(crate) context: u64,
    pub(super) wire: Box<dyn Wire>,
    link: Box<Link>,
    /// Whether the link was broken when it was last looked at.
    was_broken: bool,
    /// Whether there may be messages that were read and not taken.
    has_more: bool,
    /// Where the sender comes to resume the link, at the receiver.
    _door: Option<Arc<Door>>,
    /// The place in which the caretaker finds it, once it does.
    place: Option<u16>,
    pub(super) terms: Terms,
    pub(super) device: Arc<Device>,
    pub(super) always_flush: bool,
    pub(super) memory: Memory,
    pub(super) requests: Requests,
    pub(super) arrived: Arrived,
    /// Receives that have not arrived, and that NCCL does not wait for.
    pub(super) early: Vec<RecvHandle>,
    polls: u64,
    /// The polls at the caretaker's last visit.
    polls_seen: u64,
    /// When the link ended, and why.
    ended: Option<(Instant, String)>,
    /// Why it failed, and when.
    failed: Option<(Instant, String)>,
}

impl Connection {
    /// Of two ends that have met. Its requests have serial numbers from `spent` on.
    pub(crate) fn new(
        role: Role,
        met: Met,
        (context, device): (u64, &Arc<Device>),
        always_flush: bool,
        spent: u64,
    ) -> Self {
        let Met { wire, link, peer, terms, door } = met;
        let name = &device.description.name;
        log::trace(&format!("{role:?} on {name}, with {peer}: {terms:?}"));
        Self {
            role,
            context,
            wire,
            link,
            was_broken: false,
            has_more: true,
            _door: door,
            place: None,
            terms,
            device: Arc::clone(device),
            always_flush,
            memory: Memory::default(),
            requests: Requests::new(spent),
            arrived: Arrived::default(),
            early: Vec::new(),
            polls: 0,
            polls_seen: 0,
            ended: None,
            failed: None,
        }
    }

    /// The link's stream, if there is one now.
    pub(super) fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        (self.ended.is_none() && !self.link.is_broken()).then(|| self.link.as_fd())
    }

    /// Has the caretaker watch the link, for the connection in this place.
    pub(super) fn watch(&mut self, place: u16) -> Result<(), Errno> {
        self.place = Some(place);
        self.link_fd().map_or(Ok(()), |link| news::watch(place, link))
    }

    /// Serial numbers of requests below this were given.
    pub(crate) const fn spent(&self) -> u64 {
        self.requests.spent()
    }

    /// Takes completions, and acts on them.
    #[inline]
    pub(super) fn poll(&mut self) {
        self.polls += 1;
        if let Err(error) = self.wire.poll()
            // The device of one rail may be gone while others go on.
            && !self.terms.reroutes
        {
            self.fail(Chain(&error).to_string());
        }
        if self.polls.is_multiple_of(SPEAK_EVERY) {
            self.attend();
        }
    }

    /// Work that is too slow for every poll.
    #[cold]
    fn attend(&mut self) {
        self.reap_early();
        if self.has_more || self.link.is_due() {
            self.read();
        }
        if self.terms.reroutes {
            self.speak();
            self.tell_events();
        }
        self.tell_failure();
        if self.has_waiting() {
            self.fail_without_peer();
        }
    }

    /// Fails if the peer has ended, and nothing of it can still come.
    #[inline]
    pub(super) fn fail_without_peer(&mut self) {
        if let Some((since, why)) = &self.ended
            && since.elapsed() > LAST_WORDS
        {
            self.fail(why.clone());
        }
    }

    fn has_waiting(&self) -> bool {
        !self.requests.is_empty() || !self.early.is_empty()
    }

    /// Forgets receives that are complete and that NCCL does not wait for.
    fn reap_early(&mut self) {
        let Self { early, wire, .. } = self;
        early.retain(|handle| matches!(wire.test_recv(*handle), Ok(None)));
    }

    /// Sends the peer what rails need, as far as the link takes it.
    fn speak(&mut self) {
        while self.ended.is_none() && !self.link.is_broken() {
            let sent = match self.link.go_on_sending() {
                Ok(true) => match self.wire.next_message() {
                    Some(message) => {
                        let bytes = HexBytes(message.to_json().into_bytes());
                        self.link.offer(&Message::Note { bytes })
                    }
                    None => return,
                },
                Ok(false) => return,
                Err(error) => Err(error),
            };
            if let Err(error) = sent {
                self.end(Chain(&error).to_string());
            }
            self.note_break();
        }
    }

    /// Takes what the peer sends.
    pub(super) fn hear(&mut self) {
        self.read();
        self.attend();
    }

    /// Takes messages, not more than a few: a peer that floods the link keeps nothing else waiting.
    fn read(&mut self) {
        self.has_more = false;
        for _ in 0..AT_ONCE {
            if self.ended.is_some() {
                return;
            }
            match self.link.try_recv() {
                Ok(Some(Message::Note { bytes })) => self.take_message(&bytes.0),
                Ok(Some(Message::Resumed {})) => self.resumed(),
                Ok(Some(Message::Failed { reason })) => self.end(format!("the peer: {reason}")),
                Ok(Some(message)) => {
                    self.end(format!("the peer sent {:?} out of turn", message.name()));
                }
                Ok(None) => return self.note_break(),
                Err(LinkError::HungUp { .. }) => self.end("the peer has ended".to_owned()),
                Err(error) => self.end(format!("the link to the peer: {}", Chain(&error))),
            }
        }
        self.has_more = true;
    }

    fn note_break(&mut self) {
        if self.link.is_broken() && !self.was_broken {
            self.was_broken = true;
            let name = &self.device.description.name;
            log::info(&format!("{:?} on {name}: the link broke, and is to be resumed", self.role));
        }
    }

    /// Handles a new stream of the link: messages in both directions may be lost.
    fn resumed(&mut self) {
        self.was_broken = false;
        let name = &self.device.description.name;
        log::info(&format!("{:?} on {name}: the link is resumed", self.role));
        if self.terms.reroutes {
            self.wire.restored();
        }
        let watched = self.place.map_or(Ok(()), |place| self.watch(place));
        if let Err(error) = watched {
            self.end(format!("the link to the peer: {error}"));
        }
    }

    /// Notes that the link has ended.
    fn end(&mut self, why: String) {
        let name = &self.device.description.name;
        log::trace(&format!("{:?} on {name}: {why}", self.role));
        self.ended = Some((Instant::now(), why));
    }

    fn take_message(&mut self, body: &[u8]) {
        match HealingMessage::from_json(body) {
            Ok(message) => {
                if let Err(error) = self.wire.handle(message) {
                    self.fail(Chain(&error).to_string());
                }
            }
            Err(error) => self.fail(Chain(&error).to_string()),
        }
    }

    /// A visit of the caretaker: polls if NCCL has not polled since the last visit.
    pub(super) fn care(&mut self) {
        if self.polls == self.polls_seen {
            self.poll();
            self.attend();
        }
        self.polls_seen = self.polls;
    }

    /// It is of no use any more.
    #[cold]
    pub(super) fn fail(&mut self, why: String) {
        if self.failed.is_none() {
            self.wire.fail();
            self.failed = Some((Instant::now(), why));
        }
    }

    /// The words of a failure that is this side's.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failed.as_ref().map(|(_, why)| why.as_str())
    }

    /// The error of a request that will not be done, once no device accesses its buffers, or that took too long.
    pub(super) fn overdue(&self) -> Option<Refusal> {
        let (since, why) = self.failed.as_ref()?;
        (since.elapsed() > DRAIN_TIMEOUT).then(|| {
            let words = format!("{why}; devices may still access buffers of this connection");
            Refusal::new(Code::Remote, words)
        })
    }

    /// Tells, once, why it has failed.
    fn tell_failure(&mut self) {
        if self.failed.is_none()
            && let Some(failure) = self.wire.failure()
        {
            let why = Chain(failure).to_string();
            let name = &self.device.description.name;
            log::warn(&format!("{:?} on {name}: the connection failed: {why}", self.role));
            self.fail(why);
        }
    }

    fn tell_events(&mut self) {
        while let Some((device, event)) = self.wire.take_rail_event() {
            let what = match event.kind {
                RailEventKind::Failed { why, .. } => format!("failed: {}", because(&why)),
                RailEventKind::Fenced { arrived, again } => {
                    format!("is fenced: {arrived} requests had arrived, {again} are sent again")
                }
                RailEventKind::Returned => "is back".to_owned(),
            };
            log::info(&format!("{:?}: a rail on {device} {what}", self.role));
        }
    }

    /// Ends it, so that no device accesses any buffer any more.
    pub(crate) fn close(mut self) {
        let Self { wire, .. } = &mut self;
        wire.give_up(CLOSE_PATIENCE);
    }
}

fn because(why: &FailedBecause) -> String {
    match why {
        FailedBecause::Error(error) => Chain(error).to_string(),
        FailedBecause::Owner => "it was noticed here".to_owned(),
        FailedBecause::Lost => "its queue pair is gone".to_owned(),
        FailedBecause::Peer => "the peer says so".to_owned(),
    }
}
