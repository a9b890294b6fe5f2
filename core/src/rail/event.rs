//! What a virtual queue pair tells its owner about rails that fail and return.

use super::error::RailError;
use super::id::RailId;
use crate::hardware::Refusal;
use crate::verbs::DeviceId;

/// A rail failed, was fenced, or is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailEvent {
    /// Which rail.
    pub rail: RailId,
    /// The device of the queue pair in its place.
    pub device: DeviceId,
    /// Which queue pair in its place: 0 for the first one.
    pub generation: u16,
    /// What happened.
    pub kind: RailEventKind,
}

/// What happened to a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailEventKind {
    /// It is in service: a new queue pair is connected at both ends.
    Returned,
    /// It failed.
    Failed {
        /// Why.
        why: FailedBecause,
        /// The driver did not move the queue pair to the error state, so it may never be drained:
        /// [`lose_rail`](crate::virtual_qp::VirtualQp::lose_rail) ends that.
        refused: Option<Refusal>,
    },
    /// Both ends know what arrived. A [new queue pair](crate::virtual_qp::VirtualQp::replace_rail) may take
    /// its place.
    Fenced {
        /// Physical requests that were in flight and had arrived.
        arrived: u32,
        /// Physical requests that were in flight and are posted again, whether they had arrived or not.
        again: u32,
    },
}

/// Why a rail failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedBecause {
    /// A completion failed, or its driver refused.
    Error(RailError),
    /// Its owner said so.
    Owner,
    /// Its owner said that its queue pair is no more.
    Lost,
    /// The peer said so.
    Peer,
}

/// What is to be told of one rail: the newest of each kind. Between two of a kind its owner was asked for
/// a new queue pair, so one that reads them before it gives one misses none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RailEvents {
    returned: Option<u16>,
    failed: Option<(u16, FailedBecause, Option<Refusal>)>,
    fenced: Option<(u16, u32, u32)>,
}

impl RailEvents {
    pub(crate) fn add(&mut self, generation: u16, kind: RailEventKind) {
        match kind {
            RailEventKind::Returned => self.returned = Some(generation),
            RailEventKind::Failed { why, refused } => {
                self.failed = Some((generation, why, refused))
            }
            RailEventKind::Fenced { arrived, again } => {
                self.fenced = Some((generation, arrived, again))
            }
        }
    }

    /// The oldest one, with its generation. `generation` is the present one.
    pub(crate) fn take(&mut self, generation: u16) -> Option<(u16, RailEventKind)> {
        let age = |of: u16| generation.wrapping_sub(of);
        let returned = self.returned.map(age);
        let failed = self.failed.map(|(of, ..)| age(of));
        let fenced = self.fenced.map(|(of, ..)| age(of));
        let oldest = returned.max(failed).max(fenced)?;
        // Of one generation, in this order.
        if returned == Some(oldest) {
            return self.returned.take().map(|of| (of, RailEventKind::Returned));
        }
        if failed == Some(oldest) {
            let (of, why, refused) = self.failed.take()?;
            return Some((of, RailEventKind::Failed { why, refused }));
        }
        let (of, arrived, again) = self.fenced.take()?;
        Some((of, RailEventKind::Fenced { arrived, again }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: RailEventKind =
        RailEventKind::Failed { why: FailedBecause::Owner, refused: None };
    const FENCED: RailEventKind = RailEventKind::Fenced { arrived: 1, again: 2 };

    #[test]
    fn events_come_out_as_they_happened() {
        let mut events = RailEvents::default();
        assert_eq!(events.take(0), None);
        events.add(u16::MAX, FAILED);
        events.add(u16::MAX, FENCED);
        events.add(0, RailEventKind::Returned);
        assert_eq!(events.take(0), Some((u16::MAX, FAILED)));
        assert_eq!(events.take(0), Some((u16::MAX, FENCED)));
        assert_eq!(events.take(0), Some((0, RailEventKind::Returned)));
        events.add(0, FAILED);
        events.add(0, RailEventKind::Returned);
        assert_eq!(events.take(0), Some((0, RailEventKind::Returned)));
        assert_eq!(events.take(0), Some((0, FAILED)));
        assert_eq!(events.take(0), None);
    }
}
