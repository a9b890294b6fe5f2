//! Whether a virtual queue pair has failed, and what was wrong.

use super::error::ProtocolError;
use crate::rail::RailError;

/// The error state, and the first of each kind of error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    /// An error put the virtual queue pair into the error state.
    pub(super) failed: bool,
    /// The first failure.
    pub(super) first_error: Option<RailError>,
    /// The first protocol error that was not read yet.
    pub(super) protocol_error: Option<ProtocolError>,
    /// Protocol errors in all.
    pub(super) protocol_errors: u64,
}

impl Health {
    pub(super) const GOOD: Self =
        Self { failed: false, first_error: None, protocol_error: None, protocol_errors: 0 };

    /// Enters the error state. Returns whether it is new.
    pub(super) fn fail(&mut self, error: RailError) -> bool {
        self.first_error = self.first_error.or(Some(error));
        !core::mem::replace(&mut self.failed, true)
    }

    #[cold]
    pub(super) fn note_protocol_error(&mut self, error: ProtocolError) {
        self.protocol_error = self.protocol_error.or(Some(error));
        self.protocol_errors += 1;
    }
}
