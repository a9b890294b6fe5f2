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
//! | error | why it ended | `qp` | its owner first asks why: a rail, the peer, a protocol error |
//! | info | connected | `qp`, `rails` | all queue pairs of a connection for messages are in RTS |
//! | warn | cannot connect: why | `qp` | its two ends do not match, or a queue pair refused |
//! | warn, info | as for rails | `qp`, `end`, `place`, and those of rails | one of its queue pairs failed, was drained, returned |
//! | debug | no new queue pair yet: why | `qp`, `end`, `place` | an attempt to make or to connect one failed; there will be others |
//! | error | why it ended | `qp`, `end` | an end failed: too few rails, the peer, a protocol error, its owner |
//! | warn | the control connection broke: how | `session` | its link is made anew |
//! | info | the control connection was made anew | `session` | |
//!
//! Connecting is a span, `connect`, with the fields `qp` and `rails`, around what happens meanwhile. `qp` is the number
//! of the virtual queue pair; of a connection for messages, that of the first queue pair that it was made with. `end` is
//! `sender` or `receiver`, and `place` tells its queue pairs apart. All have the target `polyrail::trace`, by which subscribers filter.
//!
//! Polls do not look for it that an endpoint has ended, so why it did is told once, when its owner asks:
//! [`explain`](crate::endpoint::EndpointQp::explain), after a completion that failed or in
//! [`QpState::Error`](crate::virtual_qp::QpState::Error). Of an owner that never asks, nothing is told.
//! A [`ProgressThread`](crate::progress::ProgressThread) asks by itself.

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

/// One end of a connection for messages.
#[derive(Clone, Copy)]
pub(crate) struct MessageEnd {
    /// What tells the connection from others.
    pub(crate) qp: u32,
    /// `sender` or `receiver`.
    pub(crate) end: &'static str,
}

/// Something happened to a queue pair of a connection for messages; `words` say it all.
pub(crate) fn queue_pair_event(
    of: MessageEnd,
    place: usize,
    event: &RailEvent,
    device: &str,
    words: &dyn Display,
) {
    let MessageEnd { qp, end } = of;
    let RailEvent { rail, generation, kind, .. } = *event;
    match kind {
        RailEventKind::Failed { .. } => {
            told!(tracing::warn!(qp, end, place, %rail, device, generation, "{words}"));
        }
        RailEventKind::Fenced { arrived, again } => {
            told!(
                tracing::info!(qp, end, place, %rail, device, generation, arrived, again, "{words}")
            );
        }
        RailEventKind::Returned => {
            told!(tracing::info!(qp, end, place, %rail, device, generation, "{words}"));
        }
    }
}

/// An attempt to bring a queue pair of a connection for messages back failed.
pub(crate) fn no_queue_pair_for(of: MessageEnd, place: usize, error: &dyn Error) {
    let MessageEnd { qp, end } = of;
    told!(tracing::debug!(qp, end, place, "no new queue pair yet: {}", Chain(error)));
}

/// An end of a connection for messages failed, for this reason.
#[cold]
pub(crate) fn end_failed(of: MessageEnd, error: &dyn Error) {
    let MessageEnd { qp, end } = of;
    told!(tracing::error!(qp, end, "{}", Chain(error)));
}

/// The link of a control connection broke, and is to be made anew.
pub(crate) fn link_broke(session: &dyn Display, error: &dyn Error) {
    told!(tracing::warn!(%session, "the control connection broke: {}", Chain(error)));
}

/// It was made anew.
pub(crate) fn link_is_back(session: &dyn Display) {
    told!(tracing::info!(%session, "the control connection was made anew"));
}
