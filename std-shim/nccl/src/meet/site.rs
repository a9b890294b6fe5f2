//! Where an end of a connection is made.

use super::terms::Terms;
use super::way::Times;
use crate::devices::Device;
use crate::guard::{Code, Refusal};
use crate::rails::Wire;
use crate::settings::{Backend, Settings};
use polyrail::chain::Chain;
use polyrail::p2p::{End, P2pAddress};
use std::sync::Arc;
use std::time::Duration;

/// A link whose other end answers nothing for so long is broken, and made anew.
const SILENCE: Duration = Duration::from_secs(20);

/// For how long a receiver has to say that there is no such connection, or its system that there is no such process.
const GONE: Duration = Duration::from_secs(5);

/// How long a sender whose link was reset is waited for: it may have been killed.
const RESET: Duration = Duration::from_secs(30);

/// Where an end of a connection is made.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) settings: Arc<Settings>,
    pub(crate) device: Arc<Device>,
    pub(crate) traffic_class: u8,
    /// A number that no other process has.
    pub(crate) process: u64,
}

impl Site {
    pub(super) fn is_software(&self) -> bool {
        self.settings.backend == Backend::Software
    }

    pub(super) fn times(&self) -> Times {
        let away = self.settings.link_timeout;
        Times { patience: SILENCE.min(away / 2), away, gone: GONE, reset: RESET }
    }

    /// An end that is not connected yet.
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

/// Connects an end with the peer's, whose address came as text.
pub(super) fn join(wire: &mut dyn Wire, address: &[u8]) -> Result<(), Refusal> {
    let address = P2pAddress::from_json(address);
    let address = address.map_err(|error| Refusal::new(Code::Remote, Chain(&error)))?;
    wire.connect(&address).map_err(|error| Refusal::new(Code::System, Chain(&error)))
}
