//! The request in a sender's hello: the listening end to connect to, and the terms of the
//! connection.

use super::terms::Terms;
use crate::settings::Backend;
use polyrail::link::{self, HandshakeError, NoOutcome, Place, Purpose};
use serde::Serialize;

pub(crate) type Link = link::Link<Call>;
pub(crate) type Message = link::Message<Call>;
pub(super) type Hello = link::Hello<Call>;

/// The request of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Call {
    /// The number of the listening end, from the handle.
    pub(super) listener: u64,
    /// The number of the sender's process.
    pub(super) process: u64,
    /// The kind of the sender's devices.
    pub(super) backend: Backend,
    #[serde(flatten)]
    pub(super) terms: Terms,
}

impl Purpose for Call {
    type Outcome = NoOutcome;

    fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        let known = ["listener", "process", "backend", "rails", "queuePairsPerRail", "reroutes"];
        let fields = place.object(&known)?;
        let number = |name| fields.field(name)?.number(0, u64::MAX);
        let byte = |name| Ok(fields.field(name)?.number(0, u8::MAX.into())? as u8);
        Ok(Self {
            listener: number("listener")?,
            process: number("process")?,
            backend: backend(&fields.field("backend")?)?,
            terms: Terms {
                rails: byte("rails")?,
                queue_pairs_per_rail: byte("queuePairsPerRail")?,
                reroutes: fields.field("reroutes")?.flag()?,
            },
        })
    }

    fn read_outcome(place: &Place<'_>) -> Result<NoOutcome, HandshakeError> {
        place.object(&[]).map(|_| NoOutcome {})
    }
}

fn backend(place: &Place<'_>) -> Result<Backend, HandshakeError> {
    let name = place.text()?;
    let found = Backend::NAMES.iter().find(|(known, _)| *known == name);
    found.map(|(_, backend)| *backend).ok_or_else(|| place.wrong("a kind of devices"))
}
