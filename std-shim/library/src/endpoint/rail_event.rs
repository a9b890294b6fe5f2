//! Events of rails, with device names.

use super::health::{NamedRailError, system_error};
use super::rail_log::LoggedEvent;
use crate::heal::Detected;
use polyrail_core::hardware::Refusal;
use polyrail_core::virtual_qp::{FailedBecause, RailEvent, RailEventKind};
use std::fmt;
use std::time::{Duration, Instant};

/// An event of a rail, with its device's name: the rail failed, was drained, or returned.
///
/// Each failure has two events at each end, and a third if the rail returns. For example:
///
/// ```text
/// rail 2 (device mlx5_2, queue pair 291) failed: RETRY_EXC_ERR: ..., vendor code 0x81
/// rail 2 (device mlx5_2) is drained after 1.2ms: 3 requests in flight had arrived, 61 are posted again
/// rail 2 (device mlx5_2) is back in service after 412ms: generation 1
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRailEvent {
    /// The event.
    pub event: RailEvent,
    /// Name of the device of the rail's queue pair.
    pub device: String,
    /// What the endpoint detected about a rail that it [took out of service](crate::heal::Healing).
    pub detected: Option<Detected>,
    /// Time at which the endpoint detected the event.
    pub at: Instant,
    /// How long the rail had been out of service then; zero when it failed.
    pub out_for: Duration,
}

impl NamedRailEvent {
    pub(super) fn new(logged: LoggedEvent, device: String) -> Self {
        let LoggedEvent { event, detected, at, out_for } = logged;
        Self { event, device, detected, at, out_for }
    }
}

impl fmt::Display for NamedRailEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RailEvent { rail, generation, kind, .. } = self.event;
        let device = &self.device;
        let after = After(self.out_for);
        match kind {
            RailEventKind::Failed { why: FailedBecause::Error(error), refused } => {
                let device = device.clone();
                write!(f, "{}{}", NamedRailError { error, device }, StillThere(refused))
            }
            RailEventKind::Failed { why, refused } => {
                write!(f, "{rail} (device {device}) ")?;
                match self.detected {
                    Some(detected) => write!(f, "{detected}")?,
                    None => f.write_str(cause(why))?,
                }
                // One that is gone needs no draining.
                write!(f, "{}", StillThere(refused.filter(|_| why != FailedBecause::Lost)))
            }
            RailEventKind::Fenced { arrived, again } => write!(
                f,
                "{rail} (device {device}) is drained{after}: {arrived} requests in flight had arrived, {again} \
                 are posted again"
            ),
            RailEventKind::Returned => {
                write!(
                    f,
                    "{rail} (device {device}) is back in service{after}: generation {generation}"
                )
            }
        }
    }
}

/// Why a rail failed without a completion that says so.
fn cause(why: FailedBecause) -> &'static str {
    match why {
        FailedBecause::Error(_) => "failed",
        FailedBecause::Owner => "was given up here",
        FailedBecause::Lost => "failed: its queue pair is gone",
        FailedBecause::Peer => "failed at the peer",
        FailedBecause::OnPurpose => "is fenced to take requests back",
        FailedBecause::PeerOnPurpose => "is fenced for the peer to take requests back",
    }
}

/// How long something took, with as many digits as people read.
struct After(Duration);

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Duration::ZERO => Ok(()),
            short if short < Duration::from_millis(10) => write!(f, " after {short:.1?}"),
            long => write!(f, " after {long:.0?}"),
        }
    }
}

/// The driver's refusal to move a queue pair to the error state, if it did refuse.
struct StillThere(Option<Refusal>);

impl fmt::Display for StillThere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(refusal) = self.0 else { return Ok(()) };
        f.write_str("; it cannot be drained, because the driver did not move it to ERR")?;
        refusal.errno().map_or(Ok(()), |errno| write!(f, ": {}", system_error(errno)))
    }
}
