//! What happens to connections, as spans and events of the crate `tracing`, with the feature of that name (on by
//! default). Nothing of it is on the way of a request.
//!
//! | level | event | fields | when |
//! |---|---|---|---|
//! | info | connected | `qp`, `rails` | all queue pairs of an endpoint are in RTS |
//! | warn | cannot connect: why | `qp` | the two ends do not match, or a queue pair refused |
//! | warn | what failed | `qp`, `rail`, `device`, `generation` | a rail failed |
//! | info | what arrived | the same, `arrived`, `again` | both ends know what arrived on it |
//! | info | it is back | the same without those | it is in service again |
//! | debug | no new queue pair yet: why | `qp`, `rail` | an attempt to bring it back failed; there will be others |
//! | error | why it ended | `qp` | its owner first asks why a request failed: a rail, the peer, a protocol error |
//! | warn | the control connection broke: how | `session` | its link is made anew |
//! | info | the control connection was made anew | `session` | |
//!
//! Connecting is a span, `connect`, with the fields `qp` and `rails`, around what happens meanwhile. `qp` is the number
//! of the virtual queue pair. All have the target `polyrail::trace`, by which subscribers filter.

use crate::chain::Chain;
use polyrail_core::virtual_qp::{RailEvent, RailEventKind, RailId};
use std::error::Error;
use std::fmt::Display;

/// Does what is in the braces if there is someone to tell.
macro_rules! told {
    ($told:expr) => {
        #[cfg(feature = "tracing")]
        $told
    };
}

/// Runs what connects a virtual queue pair of so many rails.
pub(crate) fn connect<E>(
    qp: u32,
    rails: usize,
    connect: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    #[cfg(feature = "tracing")]
    let _span = tracing::info_span!("connect", qp, rails).entered();
    connect()?;
    told!(tracing::info!(qp, rails, "connected"));
    Ok(())
}

/// Two ends do not match, or a queue pair refused.
pub(crate) fn not_connected(qp: u32, error: &dyn Error) {
    told!(tracing::warn!(qp, "cannot connect: {}", Chain(error)));
}

/// Something happened to a rail; `words` say it all.
pub(crate) fn rail_event(qp: u32, event: &RailEvent, device: &str, words: &dyn Display) {
    let RailEvent { rail, generation, kind, .. } = *event;
    match kind {
        RailEventKind::Failed { .. } => {
            told!(tracing::warn!(qp, %rail, device, generation, "{words}"));
        }
        RailEventKind::Fenced { arrived, again } => {
            told!(tracing::info!(qp, %rail, device, generation, arrived, again, "{words}"));
        }
        RailEventKind::Returned => {
            told!(tracing::info!(qp, %rail, device, generation, "{words}"));
        }
    }
}

/// An attempt to bring a rail back failed.
pub(crate) fn no_new_queue_pair(qp: u32, rail: RailId, error: &dyn Error) {
    told!(tracing::debug!(qp, %rail, "no new queue pair yet: {}", Chain(error)));
}

/// A virtual queue pair failed, for this reason.
#[cold]
pub(crate) fn ended(qp: u32, error: &dyn Error) {
    told!(tracing::error!(qp, "{}", Chain(error)));
}

/// The link of a control connection broke, and is to be made anew.
pub(crate) fn link_broke(session: &dyn Display, error: &dyn Error) {
    told!(tracing::warn!(%session, "the control connection broke: {}", Chain(error)));
}

/// It was made anew.
pub(crate) fn link_is_back(session: &dyn Display) {
    told!(tracing::info!(%session, "the control connection was made anew"));
}
