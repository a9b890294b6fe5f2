//! What an end of a connection is made with.

use super::call::{Link, Message};
use super::door::Door;
use super::terms::Terms;
use crate::devices::Device;
use crate::guard::{Code, Refusal};
use crate::rails::Wire;
use crate::settings::{Backend, Settings};
use polyrail::chain::Chain;
use polyrail::link::{Attempts, GaveUp, Reach, Reason, Session, Timeouts};
use polyrail::p2p::{End, P2pAddress, P2pConnectError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time without an answer of the peer's host after which a link breaks.
const SILENCE: Duration = Duration::from_secs(20);

/// Time after which a receiver's process counts as gone if its host refuses to resume the link.
const REFUSED: Duration = Duration::from_secs(5);

/// How long to wait for a sender whose link was reset, since it may have been killed.
const RESET: Duration = Duration::from_secs(30);

/// An end that is connected.
pub(crate) struct Met {
    pub(crate) wire: Box<dyn Wire>,
    pub(crate) link: Box<Link>,
    /// The address of the peer.
    pub(crate) peer: SocketAddr,
    pub(crate) terms: Terms,
    /// When this end began to connect.
    pub(crate) since: Instant,
    /// The receiver's door, at which the sender resumes the link.
    pub(crate) door: Option<Arc<Door>>,
}

/// Why an end of a connection could not be made.
pub(super) struct NotMade {
    pub(super) refusal: Refusal,
    /// Whether this host has no file descriptor for it, which is temporary.
    pub(super) lacks_descriptor: bool,
}

impl From<Refusal> for NotMade {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, lacks_descriptor: false }
    }
}

/// What an end of a connection is made with.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) settings: Arc<Settings>,
    pub(crate) device: Arc<Device>,
    pub(crate) traffic_class: u8,
    /// A number that identifies this process.
    pub(crate) process: u64,
}

impl Site {
    pub(super) fn is_software(&self) -> bool {
        self.settings.backend == Backend::Software
    }

    /// Refuses a peer with devices of another kind, or with software NICs of another process.
    pub(super) fn check_backend(&self, backend: Backend, process: u64) -> Result<(), Refusal> {
        if backend != self.settings.backend {
            return Err(Refusal::new(Code::Usage, "POLYRAIL_BACKEND differs at the two ends"));
        }
        if self.is_software() && process != self.process {
            let words =
                "software NICs of two processes cannot reach each other: set POLYRAIL_BACKEND=tcp";
            return Err(Refusal::new(Code::Usage, words));
        }
        Ok(())
    }

    /// Returns the timeouts of a link.
    pub(super) fn timeouts(&self) -> Timeouts {
        let Settings { connect_timeout, link_timeout, .. } = *self.settings;
        Timeouts {
            connect: connect_timeout,
            accept: None,
            // NCCL may accept late.
            message: connect_timeout,
            resume: link_timeout,
            refused: REFUSED,
            reset: RESET,
            silence: SILENCE.min(link_timeout / 2),
        }
    }

    /// Makes an end, which is not connected yet. The end that answers passes the `peer` that it
    /// answers.
    pub(super) fn wire(
        &self,
        terms: Terms,
        end: End,
        peer: Option<&Reach>,
    ) -> Result<Box<dyn Wire>, NotMade> {
        let flushes = self.device.description.gpu.is_reached() || self.settings.always_flush;
        let builder = terms.builder(&self.settings, self.traffic_class);
        let builder = builder.only(end).flushes(flushes && end == End::Receiver);
        let made = self.device.nics.wire(&builder, &self.settings.device_mbps, peer);
        made.map_err(|error| {
            let name = &self.device.description.name;
            let words = format!("an end of a connection on {name}: {}", Chain(&error));
            let refusal = Refusal::new(Code::System, words);
            NotMade { refusal, lacks_descriptor: error.lacks_descriptor() }
        })
    }
}

/// An end that is being connected to the peer's, without waiting. If no path to the peer is found,
/// or a port is down, connecting is tried again.
pub(super) struct Joining {
    pub(super) wire: Box<dyn Wire>,
    address: P2pAddress,
    attempts: Attempts<P2pConnectError>,
}

impl Joining {
    /// Starts to connect an end to the peer's, which waits for `limit`.
    pub(super) fn new(
        wire: Box<dyn Wire>,
        reach: &Reach,
        limit: Duration,
    ) -> Result<Self, Refusal> {
        let address = reach.messages().cloned().ok_or_else(|| {
            Refusal::new(Code::Remote, "the peer has an endpoint for requests, not for messages")
        })?;
        Ok(Self { wire, address, attempts: Attempts::new(limit) })
    }

    /// Continues to connect, or tries again if that is due. Returns whether the end is connected.
    pub(super) fn step(&mut self) -> Result<bool, Refusal> {
        let Self { wire, address, attempts } = self;
        let step = attempts.step(|| wire.connect(address), P2pConnectError::may_pass);
        step.map_err(|gave_up| match gave_up {
            GaveUp::Failed(error) => Refusal::new(Code::System, Chain(&error)),
            GaveUp::Searching(error) => Refusal::new(Code::System, error),
        })
    }

    /// Returns why the end is not connected, if an attempt failed.
    pub(super) fn failure(&self) -> Option<&P2pConnectError> {
        self.attempts.failure()
    }
}

/// Returns the session with which a link can be resumed.
pub(super) fn session(link: &Link) -> Result<Option<Session>, Refusal> {
    match link.session() {
        Some(session) => Ok(Some(session)),
        None => Err(Refusal::new(Code::System, "the link cannot be resumed")),
    }
}

/// Sends the peer why this end cannot be connected.
pub(super) fn give_up(link: &mut Link, refusal: Refusal) -> Refusal {
    // If the message cannot be sent at once, the peer notices that the link is closed.
    _ = link.offer(&Message::Failed { reason: Reason::new(&refusal.words) });
    refusal
}
