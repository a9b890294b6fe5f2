//! What an end of a connection is made with.

use super::call::Link;
use super::door::Door;
use super::terms::Terms;
use crate::devices::Device;
use crate::guard::{Code, Refusal};
use crate::rails::Wire;
use crate::settings::{Backend, Settings};
use polyrail::chain::Chain;
use polyrail::link::{Reach, Session, Timeouts};
use polyrail::p2p::End;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

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
    /// The receiver's door, at which the sender resumes the link.
    pub(crate) door: Option<Arc<Door>>,
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

    /// Makes an end, which is not connected yet.
    pub(super) fn wire(&self, terms: Terms, end: End) -> Result<Box<dyn Wire>, Refusal> {
        let flushes = self.device.description.gpu.is_reached() || self.settings.always_flush;
        let builder = terms.builder(&self.settings, self.traffic_class);
        let builder = builder.only(end).flushes(flushes && end == End::Receiver);
        let made = self.device.nics.wire(&builder);
        made.map_err(|error| {
            let name = &self.device.description.name;
            Refusal::new(
                Code::System,
                format!("an end of a connection on {name}: {}", Chain(&error)),
            )
        })
    }
}

/// Connects an end to the peer's.
pub(super) fn join(wire: &mut dyn Wire, reach: &Reach) -> Result<(), Refusal> {
    let address = reach.messages();
    let address = address.ok_or_else(|| {
        Refusal::new(Code::Remote, "the peer has an endpoint for requests, not for messages")
    })?;
    wire.connect(address).map_err(|error| Refusal::new(Code::System, Chain(&error)))
}

/// Returns the session with which a link can be resumed.
pub(super) fn session(link: &Link) -> Result<Option<Session>, Refusal> {
    match link.session() {
        Some(session) => Ok(Some(session)),
        None => Err(Refusal::new(Code::System, "the link cannot be resumed")),
    }
}
