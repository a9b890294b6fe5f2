//! Events of connections, as spans and events of the crate `tracing`, with the feature of that name
//! (on by default). Nothing is emitted on the path of a request.
//!
//! | level | event | fields | when |
//! |---|---|---|---|
//! | info | connected | `qp`, `rails` | all queue pairs of an endpoint are in RTS |
//! | warn | cannot connect: why | `qp` | the two ends do not match, or a queue pair refused |
//! | warn, info | the failure | `qp`, `rail`, `device`, `generation` | a rail failed; info: it is fenced so that requests are [taken back](crate::cancel) |
//! | info | the requests that arrived | those of a failure, `arrived`, `again` | both ends know which requests arrived on the rail |
//! | info | the return | those of a failure | the rail is in service again |
//! | debug | no new queue pair yet: why | `qp`, `rail` | an attempt to repair a rail failed; others follow |
//! | info | the new rate | `qp`, `device`, `port`, `mbps` | a device reported another data rate; `mbps` is 0 if it is unknown |
//! | error | the reason | `qp` | an endpoint failed, and its owner first asks for the reason: a rail, the peer, a protocol error |
//! | info | connected | `qp`, `rails` | all queue pairs of a message connection are in RTS |
//! | warn | cannot connect: why | `qp` | its two ends do not match, or a queue pair refused |
//! | warn, info | as for rails | `qp`, `end`, `place`, and those of rails | a queue pair failed, was drained, or returned |
//! | debug | no new queue pair yet: why | `qp`, `end`, `place` | an attempt to create or connect a queue pair failed; others follow |
//! | error | the reason | `qp`, `end` | an end failed: too few rails, the peer, a protocol error, its owner |
//! | warn | the link broke: how | `session` | it is resumed |
//! | info | the link was resumed | `session` | |
//! | warn | a peer was refused: why | `address` | the link of a peer ended before its hello, and not because the peer just closed it: another token, no answer in time, a protocol error |
//! | warn | rails use the devices in the order given: why | | rails cannot use the devices of two hosts in [pairs](crate::pairing) |
//! | warn | metrics are not written: why | `path` | a folder for metrics cannot be written to any more (feature `metrics`) |
//! | warn | memory is not registered with this device, which is gone: why | `device` | memory was registered while a device of its domains was removed, or had failed for good |
//! | warn | not used: why | `device` | a device with an active port, or an active port, was not named and is not used (feature `verbs`) |
//!
//! Connecting is a span, `connect`, with the fields `qp` and `rails`, around the events meanwhile;
//! if it is done in steps, a span for each step in which something happens.
//! `qp` is the number of the virtual queue pair; for a message connection, it is the number of its
//! first queue pair. `end` is `sender` or `receiver`, and `place` is the index of a queue pair
//! there. All have the target `polyrail::trace`, by which subscribers can filter.
//!
//! Polls do not check whether an endpoint has failed. The reason is therefore emitted once, when
//! its owner calls [`explain`](crate::endpoint::EndpointQp::explain), after a failed completion or
//! in [`QpState::Error`](crate::virtual_qp::QpState::Error). If the owner never calls it, nothing
//! is emitted. A [`ProgressThread`](crate::progress::ProgressThread) calls it automatically.

use crate::chain::Chain;
use polyrail_core::virtual_qp::{RailEvent, RailEventKind, RailId};
use std::error::Error;
use std::fmt::Display;

/// Emits an event, if feature `tracing` is enabled.
macro_rules! emit {
    ($event:expr) => {
        #[cfg(feature = "tracing")]
        $event
    };
}

/// Runs `connect`, which connects a virtual queue pair of `rails` rails. It returns whether they
/// are connected, or are still being connected.
pub(crate) fn connect<E>(
    qp: u32,
    rails: usize,
    connect: impl FnOnce() -> Result<bool, E>,
) -> Result<bool, E> {
    #[cfg(feature = "tracing")]
    let _span = tracing::info_span!("connect", qp, rails).entered();
    let is_connected = connect()?;
    if is_connected {
        emit!(tracing::info!(qp, rails, "connected"));
    }
    Ok(is_connected)
}

/// Reports that two ends do not match, or a queue pair refused.
pub(crate) fn not_connected(qp: u32, error: &dyn Error) {
    emit!(tracing::warn!(qp, "cannot connect: {}", Chain(error)));
}

/// Reports an event of a rail; `words` describe it.
pub(crate) fn rail_event(qp: u32, event: &RailEvent, device: &str, words: &dyn Display) {
    let RailEvent { rail, generation, kind, .. } = *event;
    match kind {
        RailEventKind::Failed { why, .. } if why.is_on_purpose() => {
            emit!(tracing::info!(qp, %rail, device, generation, "{words}"));
        }
        RailEventKind::Failed { .. } => {
            emit!(tracing::warn!(qp, %rail, device, generation, "{words}"));
        }
        RailEventKind::Fenced { arrived, again } => {
            emit!(tracing::info!(qp, %rail, device, generation, arrived, again, "{words}"));
        }
        RailEventKind::Returned => {
            emit!(tracing::info!(qp, %rail, device, generation, "{words}"));
        }
    }
}

/// Reports a failed attempt to repair a rail.
pub(crate) fn no_new_queue_pair(qp: u32, rail: RailId, error: &dyn Error) {
    emit!(tracing::debug!(qp, %rail, "no new queue pair yet: {}", Chain(error)));
}

/// Returns whether anyone gets rates of ports: a device needs several calls to find them out.
pub(crate) fn wants_port_speeds() -> bool {
    #[cfg(feature = "tracing")]
    let wanted = tracing::enabled!(tracing::Level::INFO);
    #[cfg(not(feature = "tracing"))]
    let wanted = false;
    wanted
}

/// Reports the present rate of a port that a virtual queue pair uses.
pub(crate) fn port_speed(qp: u32, device: &str, port: u8, mbps: u32) {
    emit!(tracing::info!(qp, device, port, mbps, "the device reported another data rate"));
}

/// Reports why a virtual queue pair failed.
#[cold]
pub(crate) fn ended(qp: u32, error: &dyn Error) {
    emit!(tracing::error!(qp, "{}", Chain(error)));
}

/// One end of a message connection.
#[derive(Clone, Copy)]
pub(crate) struct MessageEnd {
    /// Identifies the connection.
    pub(crate) qp: u32,
    /// `sender` or `receiver`.
    pub(crate) end: &'static str,
}

/// Reports an event of a queue pair of a message connection; `words` describe it.
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
            emit!(tracing::warn!(qp, end, place, %rail, device, generation, "{words}"));
        }
        RailEventKind::Fenced { arrived, again } => {
            emit!(
                tracing::info!(qp, end, place, %rail, device, generation, arrived, again, "{words}")
            );
        }
        RailEventKind::Returned => {
            emit!(tracing::info!(qp, end, place, %rail, device, generation, "{words}"));
        }
    }
}

/// Reports a failed attempt to replace a queue pair of a message connection.
pub(crate) fn no_queue_pair_for(of: MessageEnd, place: usize, error: &dyn Error) {
    let MessageEnd { qp, end } = of;
    emit!(tracing::debug!(qp, end, place, "no new queue pair yet: {}", Chain(error)));
}

/// Reports why an end of a message connection failed.
#[cold]
pub(crate) fn end_failed(of: MessageEnd, error: &dyn Error) {
    let MessageEnd { qp, end } = of;
    emit!(tracing::error!(qp, end, "{}", Chain(error)));
}

/// Reports that a link broke and will be resumed.
pub(crate) fn link_broke(session: &dyn Display, error: &dyn Error) {
    emit!(tracing::warn!(%session, "the link broke: {}", Chain(error)));
}

/// Reports why the link of a peer that connected ended before its hello.
pub(crate) fn peer_refused(address: &dyn Display, error: &dyn Error) {
    emit!(tracing::warn!(%address, "a peer was refused: {}", Chain(error)));
}

/// Reports that the file of metrics cannot be written. It is tried again.
#[cfg(feature = "metrics")]
pub(crate) fn metrics_not_written(path: &dyn Display, error: &dyn Error) {
    emit!(tracing::warn!(%path, "metrics are not written: {}", Chain(error)));
}

/// Reports that memory has no keys of a device, because the device is gone.
pub(crate) fn not_registered(device: &str, error: &dyn Error) {
    emit!(tracing::warn!(
        device,
        "memory is not registered with this device, which is gone: {}",
        Chain(error)
    ));
}

/// Reports that a device, or an active port of it, is not used.
#[cfg(feature = "verbs")]
pub(crate) fn port_not_used(device: &str, reason: &dyn Error) {
    emit!(tracing::warn!(device, "not used: {}", Chain(reason)));
}

/// Reports that devices are not paired by their networks, and what happens instead.
pub(crate) fn not_in_turn(reason: &dyn Error) {
    emit!(tracing::warn!("rails use the devices in the order given: {}", Chain(reason)));
}

/// Reports that a link was resumed.
pub(crate) fn link_is_back(session: &dyn Display) {
    emit!(tracing::info!(%session, "the link was resumed"));
}
