//! The events of rails that fail and return, for the owner.

use super::error::RailError;
use super::id::RailId;
use crate::hardware::Refusal;
use crate::verbs::DeviceId;

/// A rail failed, was fenced, or is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailEvent {
    /// Which rail.
    pub rail: RailId,
    /// The device of the queue pair that was in its place at that time.
    pub device: DeviceId,
    /// The generation of the rail: 0 for its first queue pair.
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
    /// Both ends know what arrived. A [new queue pair](crate::virtual_qp::VirtualQp::replace_rail)
    /// may take its place.
    Fenced {
        /// Physical requests that were in flight and had arrived.
        arrived: u32,
        /// Physical requests that were in flight and are posted again, whether they had arrived or
        /// not, unless their request was taken back.
        again: u32,
    },
}

/// Why a rail failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedBecause {
    /// A completion failed, or its driver refused.
    Error(RailError),
    /// Its owner reported that it failed.
    Owner,
    /// Its owner reported that its queue pair is destroyed.
    Lost,
    /// The peer reported that it failed.
    Peer,
    /// It did not fail: it is fenced, so that requests can be
    /// [taken back](crate::virtual_qp::VirtualQp::cancel).
    OnPurpose,
    /// The same, for the peer.
    PeerOnPurpose,
}

impl FailedBecause {
    /// Whether nothing is wrong with the rail.
    pub const fn is_on_purpose(&self) -> bool {
        matches!(self, Self::OnPurpose | Self::PeerOnPurpose)
    }
}

/// The number of events that are kept of one rail.
// One call adds at most four: the rail's failure and fence, and those of the peer's next queue
// pair, which failed before there was one here. More than five do not fit the memory that a virtual
// queue pair of four rails may take, 66 KiB.
const KEPT: usize = 5;

/// The events of one rail that its owner has not taken, oldest first. The oldest are dropped if
/// there are more than [`KEPT`].
#[derive(Clone, Debug, Default)]
pub(crate) struct RailEvents(heapless::Deque<RailEvent, KEPT>);

impl RailEvents {
    pub(crate) fn add(&mut self, event: RailEvent) {
        // The newest events say where the rail stands, and an owner that reads after each call
        // misses none.
        if self.0.is_full() {
            self.0.pop_front();
        }
        let added = self.0.push_back(event);
        debug_assert!(added.is_ok(), "one place is free");
    }

    /// Takes the oldest event.
    pub(crate) fn take(&mut self) -> Option<RailEvent> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: RailEventKind =
        RailEventKind::Failed { why: FailedBecause::Owner, refused: None };
    const FENCED: RailEventKind = RailEventKind::Fenced { arrived: 1, again: 2 };

    const fn event(generation: u16, kind: RailEventKind) -> RailEvent {
        RailEvent { rail: RailId::Data(1), device: DeviceId(3), generation, kind }
    }

    #[test]
    fn events_come_out_as_they_happened() {
        let mut events = RailEvents::default();
        assert_eq!(events.take(), None);
        let happened = [
            event(u16::MAX, FAILED),
            event(u16::MAX, FENCED),
            event(0, FAILED),
            event(0, RailEventKind::Returned),
            event(0, FENCED),
        ];
        happened.into_iter().for_each(|event| events.add(event));
        for event in happened {
            assert_eq!(events.take(), Some(event));
        }
        assert_eq!(events.take(), None);
    }

    #[test]
    fn the_newest_are_kept() {
        let mut events = RailEvents::default();
        (0..KEPT as u16 + 3).for_each(|generation| events.add(event(generation, FAILED)));
        for generation in 3..KEPT as u16 + 3 {
            assert_eq!(events.take(), Some(event(generation, FAILED)));
        }
        assert_eq!(events.take(), None);
    }
}
