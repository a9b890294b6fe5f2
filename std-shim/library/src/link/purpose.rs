//! What two sides meet for, as far as a control connection has to know.

use super::error::HandshakeError;
use super::field::Place;
use serde::Serialize;
use std::fmt::Debug;

/// What two sides meet for: the side that asks states it in its hello, and in the end both report
/// what they did. Users of the connection define what there can be.
///
/// Both travel as JSON. Reading is strict, as for everything that a peer sends: [`Place`] has the
/// methods.
pub trait Purpose: Clone + Debug + PartialEq + Eq + Serialize {
    /// What a side did, in the end.
    type Outcome: Clone + Debug + PartialEq + Eq + Serialize;

    /// Reads a purpose.
    ///
    /// # Errors
    ///
    /// The value is something else.
    fn read(place: &Place<'_>) -> Result<Self, HandshakeError>;

    /// Reads an outcome.
    ///
    /// # Errors
    ///
    /// The value is something else.
    fn read_outcome(place: &Place<'_>) -> Result<Self::Outcome, HandshakeError>;
}

/// The purpose of sides that know without asking what they meet for: it has no values, so their
/// hellos state none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum NoPurpose {}

/// What sides without a [purpose](NoPurpose) report in the end: only that it is the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NoOutcome {}

impl Purpose for NoPurpose {
    type Outcome = NoOutcome;

    fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        Err(place.wrong("nothing: neither side asks"))
    }

    fn read_outcome(place: &Place<'_>) -> Result<NoOutcome, HandshakeError> {
        place.object(&[]).map(|_| NoOutcome {})
    }
}
