//! A connection: its end, its link, and its requests and registrations.

use super::arrived::Arrived;
use super::memory::Memory;
use super::news;
use super::requests::Requests;
use crate::devices::Device;
use crate::guard::{Code, Refusal};
use crate::log;
use crate::meet::door::Door;
use crate::meet::{Link, Message, Met, Terms};
use crate::metrics;
use crate::rails::Wire;
use polyrail::chain::Chain;
use polyrail::link::{HexBytes, LinkError};
use polyrail::metrics::Source;
use polyrail::p2p::{HealingLink, HealingMessage, RecvHandle};
use polyrail::virtual_qp::{FailedBecause, RailEventKind};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

/// How long requests wait after the peer has ended, since data in flight may still arrive.
const LAST_ARRIVALS_TIMEOUT: Duration = Duration::from_secs(1);

/// How long devices may still access buffers after a failure.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long closing waits for devices. Destroyed queue pairs access no buffers either.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum messages of the peer that one read handles.
const AT_ONCE: usize = 64;

/// Polls between two polls that also send messages to the peer.
const SEND_EVERY: u64 = 16;

/// A connection.
pub(crate) struct Connection {
    pub(crate) role: Role,
    /// The communicator whose end closes the connection; 0 if there is none.
    pub(crate) context: u64,
    pub(super) wire: Box<dyn Wire>,
    /// The repair messages of `wire`; `None` if rails are not re-routed.
    healing: Option<HealingLink>,
    /// `None` once it has ended: the peer finds it closed, and its attempts to resume it are
    /// refused.
    link: Option<Box<Link>>,
    /// Whether the link was broken at the last check.
    was_broken: bool,
    /// Whether there may be received messages that were not handled.
    has_more: bool,
    /// The receiver's door, at which the sender resumes the link.
    _door: Option<Arc<Door>>,
    /// The place in the table of connections, once it is registered with the caretaker.
    place: Option<u16>,
    pub(super) terms: Terms,
    pub(super) device: Arc<Device>,
    pub(super) always_flush: bool,
    pub(super) memory: Memory,
    pub(super) requests: Requests,
    pub(super) arrived: Arrived,
    /// Receives in flight that were reported as done when they were posted.
    pub(super) early: Vec<RecvHandle>,
    /// Whether the last test found its request done.
    pub(super) found: bool,
    polls: u64,
    /// The value of `polls` in the caretaker's last round.
    polls_seen: u64,
    /// `None` if metrics are not exported.
    metrics: Option<Source>,
    /// When and why the link to the peer ended.
    ended: Option<(Instant, String)>,
    /// When and why the connection failed.
    failed: Option<(Instant, String)>,
}

impl Connection {
    /// Makes a connection of two connected ends. Its requests have serial numbers from `spent` on.
    pub(crate) fn new(
        role: Role,
        met: Met,
        (context, device): (u64, &Arc<Device>),
        always_flush: bool,
        spent: u64,
    ) -> Self {
        let Met { wire, link, peer, terms, door, .. } = met;
        let name = &device.description.name;
        log::trace(&format!("{role:?} on {name}, with {peer}: {terms:?}"));
        Self {
            role,
            context,
            healing: wire.healing_link(),
            wire,
            link: Some(link),
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
            found: false,
            polls: 0,
            polls_seen: 0,
            metrics: metrics::source(),
            ended: None,
            failed: None,
        }
    }

    /// Returns the file descriptor of the link, unless the link is broken or has ended.
    pub(super) fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().and_then(|link| link.fd())
    }

    /// Sets the place of the connection, and reports events of its link to the caretaker.
    pub(super) fn watch(&mut self, place: u16) -> Result<(), Errno> {
        self.place = Some(place);
        self.link_fd().map_or(Ok(()), |link| news::watch(place, link))
    }

    /// Returns the next serial number of requests; lower ones were used.
    pub(crate) const fn spent(&self) -> u64 {
        self.requests.spent()
    }

    /// Polls for completions and handles them.
    #[inline]
    pub(super) fn poll(&mut self) {
        self.polls += 1;
        if let Some(error) = self.wire.poll()
            // With re-routing, the other rails continue if the device of one rail is gone.
            && !self.terms.reroutes
        {
            self.fail(Chain(&error).to_string());
        }
        if self.polls.is_multiple_of(SEND_EVERY) {
            self.attend();
        }
    }

    /// Does the work that not every poll needs to do.
    #[cold]
    fn attend(&mut self) {
        self.reap_early();
        if self.has_more || self.link.as_ref().is_some_and(|link| link.is_due()) {
            self.read();
        }
        if let Some(healing) = self.healing.clone() {
            // What was read is answered now, instead of after one of the next polls.
            self.wire.heal();
            self.send_messages(&healing);
            self.log_events();
        }
        self.log_failure();
        if let Some(metrics) = &mut self.metrics {
            metrics.publish_if_wanted(|| vec![self.wire.metrics()]);
        }
        if self.has_waiting() {
            self.fail_without_peer();
        }
    }

    /// Fails if the peer has ended, and nothing can arrive from it any more.
    #[inline]
    pub(super) fn fail_without_peer(&mut self) {
        if let Some((since, why)) = &self.ended
            && since.elapsed() > LAST_ARRIVALS_TIMEOUT
        {
            self.fail(why.clone());
        }
    }

    fn has_waiting(&self) -> bool {
        !self.requests.is_empty() || !self.early.is_empty()
    }

    /// Removes early receives that have arrived.
    fn reap_early(&mut self) {
        let Self { early, wire, .. } = self;
        early.retain(|handle| matches!(wire.test_recv(*handle), Ok(None)));
    }

    /// Sends the peer the messages of rails, as far as the link has room.
    fn send_messages(&mut self, healing: &HealingLink) {
        while let Some(link) = self.link.as_mut().filter(|link| !link.is_broken()) {
            if !link.go_on_sending() {
                return;
            }
            let Some(message) = healing.next_message() else { return };
            let bytes = HexBytes(message.to_json().into_bytes());
            if let Err(error) = link.offer(&Message::Note { bytes }) {
                self.end(Chain(&error).to_string());
            }
            self.note_break();
        }
    }

    /// Reads the messages of the peer, and does the work that follows.
    pub(super) fn hear(&mut self) {
        self.read();
        self.attend();
    }

    /// Reads a limited number of messages, so that a peer that floods the link does not block
    /// others.
    fn read(&mut self) {
        self.has_more = false;
        for _ in 0..AT_ONCE {
            let Some(link) = &mut self.link else { return };
            match link.try_recv() {
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
        let is_broken = self.link.as_ref().is_some_and(|link| link.is_broken());
        if is_broken && !self.was_broken {
            self.was_broken = true;
            let name = &self.device.description.name;
            log::info(&format!("{:?} on {name}: the link broke, and is to be resumed", self.role));
        }
    }

    /// Handles a resumed link: messages in both directions may have been lost.
    fn resumed(&mut self) {
        self.was_broken = false;
        let name = &self.device.description.name;
        log::info(&format!("{:?} on {name}: the link is resumed", self.role));
        self.healing.iter().for_each(HealingLink::restored);
        let watched = self.place.map_or(Ok(()), |place| self.watch(place));
        if let Err(error) = watched {
            self.end(format!("the link to the peer: {error}"));
        }
    }

    /// Notes that the link to the peer has ended.
    fn end(&mut self, why: String) {
        let name = &self.device.description.name;
        log::trace(&format!("{:?} on {name}: {why}", self.role));
        self.link = None;
        self.ended = Some((Instant::now(), why));
    }

    fn take_message(&mut self, body: &[u8]) {
        let message = match HealingMessage::from_json(body) {
            Ok(message) => message,
            Err(error) => return self.fail(Chain(&error).to_string()),
        };
        let Some(healing) = &self.healing else {
            return self.fail("the peer re-routes rails, but this end does not".to_owned());
        };
        // There is room: a repair step follows every read, and a read takes fewer.
        if let Err(error) = healing.handle(message) {
            self.fail(Chain(&error).to_string());
        }
    }

    /// Polls in the caretaker's round, unless NCCL's polls have [attended](Self::attend) to the
    /// connection since the last round. One poll is not enough: without this, a caller that polls
    /// once in each round would delay messages to the peer for 16 rounds.
    pub(super) fn care(&mut self) {
        if self.polls / SEND_EVERY == self.polls_seen / SEND_EVERY {
            self.poll();
            self.attend();
        }
        self.polls_seen = self.polls;
    }

    /// Fails the connection.
    #[cold]
    pub(super) fn fail(&mut self, why: String) {
        if self.failed.is_none() {
            self.wire.fail();
            self.failed = Some((Instant::now(), why));
        }
    }

    /// Returns why the connection failed, if it did.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failed.as_ref().map(|(_, why)| why.as_str())
    }

    /// Returns the error for requests that are still not done long after the connection failed.
    pub(super) fn overdue(&self) -> Option<Refusal> {
        let (since, why) = self.failed.as_ref()?;
        (since.elapsed() > DRAIN_TIMEOUT).then(|| {
            let words = format!("{why}; devices may still access buffers of this connection");
            Refusal::new(Code::Remote, words)
        })
    }

    /// Logs, once, why the connection failed.
    fn log_failure(&mut self) {
        if self.failed.is_none()
            && let Some(failure) = self.wire.failure()
        {
            let why = Chain(&failure).to_string();
            let name = &self.device.description.name;
            log::warn(&format!("{:?} on {name}: the connection failed: {why}", self.role));
            self.fail(why);
        }
    }

    fn log_events(&mut self) {
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

    /// Closes the connection, so that no device accesses its buffers any more.
    pub(crate) fn close(mut self) {
        let Self { wire, metrics, .. } = &mut self;
        wire.give_up(CLOSE_TIMEOUT);
        if let Some(metrics) = metrics {
            metrics.publish(vec![wire.metrics()]);
        }
    }
}

fn because(why: &FailedBecause) -> String {
    match why {
        FailedBecause::Error(error) => Chain(error).to_string(),
        FailedBecause::Owner => "this side failed it".to_owned(),
        FailedBecause::Lost => "its queue pair is gone".to_owned(),
        FailedBecause::Peer => "the peer reported the failure".to_owned(),
        FailedBecause::OnPurpose | FailedBecause::PeerOnPurpose => {
            "it is fenced to take requests back".to_owned()
        }
    }
}
