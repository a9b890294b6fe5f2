//! What happened to rails, with the names of devices, for people.

use super::health::{NamedRailError, system_error};
use polyrail_core::hardware::Refusal;
use polyrail_core::virtual_qp::{FailedBecause, RailEvent, RailEventKind};
use std::fmt;

/// A rail failed, was fenced, or is back; with its device's name.
///
/// Of one failure there are two events at each end, and a third one if the rail returns. Shown, such as:
///
/// ```text
/// rail 2 (device mlx5_2, queue pair 291) failed: RETRY_EXC_ERR: ..., vendor code 0x81
/// rail 2 (device mlx5_2) is drained: 3 requests in flight had arrived, 61 are posted again
/// rail 2 (device mlx5_2) is back in service: generation 1
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRailEvent {
    /// What happened.
    pub event: RailEvent,
    /// Name of the device of the queue pair in the rail's place.
    pub device: String,
}

impl fmt::Display for NamedRailEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RailEvent { rail, generation, kind, .. } = self.event;
        let device = &self.device;
        match kind {
            RailEventKind::Failed { why: FailedBecause::Error(error), refused } => {
                let device = device.clone();
                write!(f, "{}{}", NamedRailError { error, device }, StillThere(refused))
            }
            RailEventKind::Failed { why, refused } => {
                write!(f, "{rail} (device {device}) {}{}", cause(why), StillThere(refused))
            }
            RailEventKind::Fenced { arrived, again } => write!(
                f,
                "{rail} (device {device}) is drained: {arrived} requests in flight had arrived, {again} are posted again"
            ),
            RailEventKind::Returned => {
                write!(f, "{rail} (device {device}) is back in service: generation {generation}")
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
    }
}

/// The driver's refusal to move a queue pair to the error state, if it did refuse.
struct StillThere(Option<Refusal>);

impl fmt::Display for StillThere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(refusal) = self.0 else { return Ok(()) };
        f.write_str("; it cannot be drained, the driver did not move it to ERR")?;
        refusal.errno().map_or(Ok(()), |errno| write!(f, ": {}", system_error(errno)))
    }
}
