//! A connection: an end of it, its link, and what NCCL holds of it.

use super::arrived::Arrived;
use super::memory::Memory;
use super::news;
use super::requests::Requests;
use crate::devices::Device;
use crate::guard::{Code, Refusal};
use crate::log;
use crate::meet::{Frame, Kind, Link, Met, Session, Terms, Turn, Way};
use crate::rails::Wire;
use polyrail::chain::Chain;
use polyrail::p2p::{P2pMessage, RecvHandle};
use polyrail::virtual_qp::{FailedBecause, RailEventKind};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which way it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

/// How long requests may wait for a peer that has ended: what is on its way may still come.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long it may take, after a failure, until no device accesses any buffer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a call that closes waits for that; queue pairs that are destroyed then access nothing either.
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// Polls from one to the next in which messages to the peer go out.
const SPEAK_EVERY: u64 = 16;

/// A connection.
pub(crate) struct Connection {
    pub(crate) role: Role,
    /// The communicator that it ends with, 0 if there is none.
    pub(crate) context: u64,
    pub(super) wire: Box<dyn Wire>,
    way: Way,
    /// Where the caretaker finds it, once it does.
    place: Option<u16>,
    pub(super) terms: Terms,
    pub(super) device: Arc<Device>,
    pub(super) always_flush: bool,
    pub(super) memory: Memory,
    pub(super) requests: Requests,
    pub(super) arrived: Arrived,
    /// Receives that have not arrived, and for whose completion nobody waits.
    pub(super) early: Vec<RecvHandle>,
    polls: u64,
    /// The polls at the caretaker's last visit.
    polls_seen: u64,
    /// When there was no way to the peer any more, and why.
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
        let Met { wire, way, terms } = met;
        let name = &device.description.name;
        log::trace(&format!("{role:?} on {name}, with {}: {terms:?}", way.peer()));
        Self {
            role,
            context,
            wire,
            way,
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

    /// Of its link, if there is one now.
    pub(super) fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        self.way.fd()
    }

    /// From now on the caretaker finds it here, and is told what its link has.
    pub(super) fn watch(&mut self, place: u16) -> Result<(), Errno> {
        self.place = Some(place);
        self.way.fd().map_or(Ok(()), |link| news::watch(place, link))
    }

    /// Serial numbers of requests below this were given.
    pub(crate) const fn spent(&self) -> u64 {
        self.requests.spent()
    }

    /// Takes completions, and does what they call for.
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

    /// What is not done with every poll.
    #[cold]
    fn attend(&mut self) {
        self.reap_early();
        if let Some(turn) = self.way.mend() {
            self.take(turn);
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

    /// Receives that nobody waits for.
    fn reap_early(&mut self) {
        let Self { early, wire, .. } = self;
        early.retain(|handle| matches!(wire.test_recv(*handle), Ok(None)));
    }

    /// Tells the peer what there is to tell.
    fn speak(&mut self) {
        while self.way.is_open()
            && let Some(message) = self.wire.next_message()
        {
            self.way.push(Kind::Message, message.to_json().as_bytes());
        }
        self.send();
    }

    fn send(&mut self) {
        if let Some(turn) = self.way.send() {
            self.take(turn);
        }
    }

    /// Hears what the peer says.
    pub(super) fn hear(&mut self) {
        self.read();
        self.attend();
    }

    fn read(&mut self) {
        loop {
            match self.way.read() {
                Ok(Some(Frame { kind: Kind::Message, body })) => self.take_message(&body),
                Ok(Some(Frame { kind, .. })) => {
                    let turn = self.way.end(format!("the peer sent {kind:?} out of turn"));
                    self.take(turn);
                }
                Ok(None) => return,
                Err(turn) => self.take(turn),
            }
        }
    }

    /// Takes a link that the peer has made anew, if it is for this connection.
    pub(super) fn resume(&mut self, session: &Session, link: Link) -> Option<Link> {
        if let Err(link) = self.way.resume(session, link) {
            return Some(link);
        }
        self.take(Turn::Resumed);
        self.send();
        None
    }

    /// Something has become of the link.
    fn take(&mut self, turn: Turn) {
        let name = &self.device.description.name;
        match turn {
            Turn::Broke(why) => {
                log::info(&format!(
                    "{:?} on {name}: the link broke, and is made anew: {why}",
                    self.role
                ));
            }
            Turn::Resumed => {
                log::info(&format!("{:?} on {name}: the link is made anew", self.role));
                if self.terms.reroutes {
                    self.wire.link_restored();
                }
                let watched = self.place.map_or(Ok(()), |place| self.watch(place));
                if let Err(error) = watched {
                    let turn = self.way.end(format!("the link to the peer: {error}"));
                    self.take(turn);
                }
                // There may be more than what said so, which nobody would be told of.
                self.read();
            }
            Turn::Over(why) => {
                log::trace(&format!("{:?} on {name}: {why}", self.role));
                self.ended = Some((Instant::now(), why));
            }
        }
    }

    fn take_message(&mut self, body: &[u8]) {
        match P2pMessage::from_json(body) {
            Ok(message) => {
                if let Err(error) = self.wire.hear(message) {
                    self.fail(Chain(&error).to_string());
                }
            }
            Err(error) => self.fail(Chain(&error).to_string()),
        }
    }

    /// A visit of the caretaker's: somebody polls, whether or not NCCL does.
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
