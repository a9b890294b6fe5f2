//! The events of an endpoint's rails, with times.

use super::place::{RAIL_IDS, rail_index};
use crate::heal::{Added, Detected, RailHistory};
use polyrail_core::virtual_qp::{RailEvent, RailId};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// An event, with details that the engine does not record.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoggedEvent {
    pub(super) event: RailEvent,
    pub(super) detected: Option<Detected>,
    pub(super) at: Instant,
    pub(super) out_for: Duration,
}

/// The history of all rails.
#[derive(Debug)]
pub(super) struct RailLog {
    /// Of each rail that an endpoint can have. Boxed: endpoints are moved.
    histories: Box<[RailHistory]>,
    /// Unread events. The oldest are dropped beyond a limit, so that memory stays bounded if the
    /// owner never reads.
    unread: VecDeque<LoggedEvent>,
}

impl RailLog {
    /// Two failures and returns of all rails that an endpoint can have.
    const MOST_UNREAD: usize = 2 * 3 * RAIL_IDS;

    /// Makes an empty log. If failed rails are re-routed, it has memory for all events.
    pub(super) fn new(reroutes: bool) -> Self {
        // Otherwise there are no events.
        let most = if reroutes { Self::MOST_UNREAD } else { 0 };
        let histories = vec![RailHistory::new(Instant::now()); RAIL_IDS].into();
        Self { histories, unread: VecDeque::with_capacity(most) }
    }

    /// Records why a rail is about to be failed.
    pub(super) fn note_detected(&mut self, rail: RailId, detected: Detected) {
        if let Some(history) = self.history_mut(rail) {
            history.note_detected(detected);
        }
    }

    /// Returns the history of a rail; `None` if no endpoint can have such a rail.
    pub(super) fn history(&self, rail: RailId) -> Option<&RailHistory> {
        self.histories.get(rail_index(rail)?)
    }

    fn history_mut(&mut self, rail: RailId) -> Option<&mut RailHistory> {
        self.histories.get_mut(rail_index(rail)?)
    }

    /// Keeps an event until it is read.
    pub(super) fn add(&mut self, event: RailEvent, at: Instant) -> LoggedEvent {
        let added = self.history_mut(event.rail).map(|history| history.add(event.kind, at));
        let unknown = Added { detected: None, out_for: Duration::ZERO };
        let Added { detected, out_for } = added.unwrap_or(unknown);
        let logged = LoggedEvent { event, detected, at, out_for };
        if self.unread.len() == Self::MOST_UNREAD {
            self.unread.pop_front();
        }
        self.unread.push_back(logged);
        logged
    }

    /// Removes and returns the oldest unread event.
    pub(super) fn take(&mut self) -> Option<LoggedEvent> {
        self.unread.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::verbs::DeviceId;
    use polyrail_core::virtual_qp::{FailedBecause, RailEventKind};

    fn event(rail: RailId, kind: RailEventKind) -> RailEvent {
        RailEvent { rail, device: DeviceId(0), generation: 0, kind }
    }

    const FAILED: RailEventKind =
        RailEventKind::Failed { why: FailedBecause::Owner, refused: None };

    #[test]
    fn a_rail_is_out_from_its_first_failure_to_its_return() {
        let mut log = RailLog::new(true);
        let begin = Instant::now();
        let rail = RailId::Data(3);
        let mut add = |kind, seconds| {
            log.add(event(rail, kind), begin + Duration::from_secs(seconds)).out_for.as_secs()
        };
        assert_eq!(add(FAILED, 1), 0);
        assert_eq!(add(RailEventKind::Fenced { arrived: 5, again: 7 }, 2), 1);
        // Its new queue pair failed before it was in service.
        assert_eq!(add(FAILED, 5), 4);
        assert_eq!(add(RailEventKind::Fenced { arrived: 0, again: 1 }, 6), 5);
        assert_eq!(add(RailEventKind::Returned, 11), 10);
        assert_eq!(add(FAILED, 20), 0);
        let counts = |rail| {
            let history = log.history(rail).unwrap();
            (history.failures.total(), history.posted_again)
        };
        assert_eq!(counts(rail), (3, 8));
        assert_eq!(counts(RailId::Notify), (0, 0));
    }

    #[test]
    fn what_was_detected_is_reported_once_and_old_events_make_room() {
        let mut log = RailLog::new(true);
        let now = Instant::now();
        log.note_detected(RailId::Notify, Detected::PortDown);
        for _ in 0..100 {
            log.add(event(RailId::Notify, FAILED), now);
            log.add(event(RailId::Data(0), RailEventKind::Returned), now);
        }
        let unread: Vec<LoggedEvent> = std::iter::from_fn(|| log.take()).collect();
        assert_eq!(unread.len(), RailLog::MOST_UNREAD);
        assert!(unread.iter().all(|logged| logged.detected.is_none()));
        log.note_detected(RailId::Notify, Detected::PortDown);
        log.add(event(RailId::Notify, FAILED), now);
        assert_eq!(log.take().and_then(|logged| logged.detected), Some(Detected::PortDown));
    }
}
