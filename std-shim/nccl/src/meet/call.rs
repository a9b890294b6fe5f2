//! The request in a sender's hello: the listening end to connect to, and the terms of the
//! connection.

use super::terms::Terms;
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
    /// Whether the sender uses software NICs.
    pub(super) software: bool,
    #[serde(flatten)]
    pub(super) terms: Terms,
}

impl Purpose for Call {
    type Outcome = NoOutcome;

    fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        let known = ["listener", "process", "software", "rails", "queuePairsPerRail", "reroutes"];
        let fields = place.object(&known)?;
        let number = |name| fields.field(name)?.number(0, u64::MAX);
        let byte = |name| Ok(fields.field(name)?.number(0, u8::MAX.into())? as u8);
        Ok(Self {
            listener: number("listener")?,
            process: number("process")?,
            software: fields.field("software")?.flag()?,
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
