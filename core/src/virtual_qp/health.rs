//! Whether a virtual queue pair has failed, and what was wrong.

use super::error::ProtocolError;
use crate::rail::{ControlError, RailError, RailId};

/// Why a virtual queue pair is in the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A rail failed for good.
    #[error(transparent)]
    Rail(RailError),
    /// Fewer data rails are in service than there have to be.
    #[error("{in_service} rails are in service, of {min_rails} at least")]
    TooFewRails {
        /// Rails in service.
        in_service: u8,
        /// [`Config::min_rails`](super::Config::min_rails).
        min_rails: u8,
    },
    /// The peer failed for good, and said so.
    #[error("the peer gave the connection up")]
    Peer,
    /// The peer said what no correct peer says.
    #[error(transparent)]
    Control(ControlError),
    /// The peer lost completions of requests that are known to have arrived.
    #[error(
        "the peer took {arrived} completions of what arrived on {rail}, {acknowledged} are acknowledged"
    )]
    CompletionsLost {
        /// The rail.
        rail: RailId,
        /// What the peer said, modulo 2^32.
        arrived: u32,
        /// What its queue pair acknowledged, modulo 2^32.
        acknowledged: u32,
    },
    /// Its owner gave it up.
    #[error("the virtual queue pair was given up")]
    Owner,
}

/// The error state, and the first of each kind of error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    /// An error put the virtual queue pair into the error state.
    pub(super) failed: bool,
    /// It is in the error state, or recovers from the failure of a rail: one look tells all that goes well
    /// that there is nothing else to do.
    pub(super) needs_care: bool,
    /// Why it did.
    pub(super) failure: Option<Failure>,
    /// The first failure of a rail.
    pub(super) first_error: Option<RailError>,
    /// The first protocol error that was not read yet.
    pub(super) protocol_error: Option<ProtocolError>,
    /// Protocol errors in all.
    pub(super) protocol_errors: u64,
}

impl Health {
    pub(super) const GOOD: Self = Self {
        failed: false,
        needs_care: false,
        failure: None,
        first_error: None,
        protocol_error: None,
        protocol_errors: 0,
    };

    /// Enters the error state. Returns whether it is new.
    pub(super) fn fail(&mut self, failure: Failure) -> bool {
        self.failure = self.failure.or(Some(failure));
        if let Failure::Rail(error) = failure {
            self.note_error(error);
        }
        self.needs_care = true;
        !core::mem::replace(&mut self.failed, true)
    }

    /// A rail failed.
    pub(super) fn note_error(&mut self, error: RailError) {
        self.first_error = self.first_error.or(Some(error));
    }

    #[cold]
    pub(super) fn note_protocol_error(&mut self, error: ProtocolError) {
        self.protocol_error = self.protocol_error.or(Some(error));
        self.protocol_errors += 1;
    }
}
