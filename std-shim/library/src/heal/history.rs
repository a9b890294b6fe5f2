//! The history of a rail: its failures, by reason, and how long it was in service, being drained,
//! and down.

use super::repaired::Detected;
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{FailedBecause, RailEventKind};
use std::time::{Duration, Instant};

/// Why a rail failed, without details. Reasons are counted by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureReason {
    /// A completion failed with this status, or the driver refused a post (GENERAL_ERR). Statuses
    /// that verbs do not define are [`UnknownStatus`](Self::UnknownStatus).
    Status(WcStatus),
    /// A completion failed with a status that verbs do not define.
    UnknownStatus,
    /// [`Detected::PortDown`].
    PortDown,
    /// [`Detected::DeviceGone`].
    DeviceGone,
    /// [`Detected::Silent`].
    Silent,
    /// [`Detected::Home`]: not a fault, but a return to the rail's own device.
    Home,
    /// [`Detected::NoOtherEnd`].
    NoOtherEnd,
    /// [`Detected::NotConnected`].
    NotConnected,
    /// [`Detected::NotReached`].
    NotReached,
    /// [`Detected::NotFenced`].
    NotFenced,
    /// The owner of the endpoint failed the rail.
    Owner,
    /// The rail failed at the peer.
    Peer,
    /// The queue pair is gone, and nothing was detected about its device.
    Lost,
    /// Not a fault: the rail was fenced to take requests back.
    OnPurpose,
    /// Not a fault: the peer asked for a fence to take requests back.
    PeerOnPurpose,
}

/// Statuses have numbers below this.
const STATUSES: usize = 22;

/// The reasons that are not statuses, in the order of their places.
const OTHERS: [FailureReason; 14] = [
    FailureReason::UnknownStatus,
    FailureReason::PortDown,
    FailureReason::DeviceGone,
    FailureReason::Silent,
    FailureReason::Home,
    FailureReason::NoOtherEnd,
    FailureReason::NotConnected,
    FailureReason::NotReached,
    FailureReason::NotFenced,
    FailureReason::Owner,
    FailureReason::Peer,
    FailureReason::Lost,
    FailureReason::OnPurpose,
    FailureReason::PeerOnPurpose,
];

const REASONS: usize = STATUSES + OTHERS.len();

impl FailureReason {
    /// Returns the reason of a failure, of which an endpoint detected something or not.
    pub(crate) fn new(why: FailedBecause, detected: Option<Detected>) -> Self {
        match (detected, why) {
            (Some(Detected::PortDown), _) => Self::PortDown,
            (Some(Detected::DeviceGone), _) => Self::DeviceGone,
            (Some(Detected::Silent(_)), _) => Self::Silent,
            (Some(Detected::Home), _) => Self::Home,
            (Some(Detected::NoOtherEnd), _) => Self::NoOtherEnd,
            (Some(Detected::NotConnected), _) => Self::NotConnected,
            (Some(Detected::NotReached(_)), _) => Self::NotReached,
            (Some(Detected::NotFenced(_)), _) => Self::NotFenced,
            (None, FailedBecause::Error(error)) if error.status.name().is_some() => {
                Self::Status(error.status)
            }
            (None, FailedBecause::Error(_)) => Self::UnknownStatus,
            (None, FailedBecause::Owner) => Self::Owner,
            (None, FailedBecause::Peer) => Self::Peer,
            (None, FailedBecause::Lost) => Self::Lost,
            (None, FailedBecause::OnPurpose) => Self::OnPurpose,
            (None, FailedBecause::PeerOnPurpose) => Self::PeerOnPurpose,
        }
    }

    /// Returns the name of the reason, for labels of metrics: the name of a status without
    /// `IBV_WC_`, such as `RETRY_EXC_ERR`, or one of `unknown_status`, `port_down`, `device_gone`,
    /// `silent`, `home`, `no_other_end`, `not_connected`, `not_reached`, `not_fenced`, `owner`, `peer`,
    /// `lost`, `on_purpose`, `peer_on_purpose`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status(status) => status.name().unwrap_or("unknown_status"),
            Self::UnknownStatus => "unknown_status",
            Self::PortDown => "port_down",
            Self::DeviceGone => "device_gone",
            Self::Silent => "silent",
            Self::Home => "home",
            Self::NoOtherEnd => "no_other_end",
            Self::NotConnected => "not_connected",
            Self::NotReached => "not_reached",
            Self::NotFenced => "not_fenced",
            Self::Owner => "owner",
            Self::Peer => "peer",
            Self::Lost => "lost",
            Self::OnPurpose => "on_purpose",
            Self::PeerOnPurpose => "peer_on_purpose",
        }
    }

    fn place(self) -> usize {
        let other = |reason| OTHERS.iter().position(|other| *other == reason);
        match self {
            Self::Status(status) if (status.0 as usize) < STATUSES => status.0 as usize,
            Self::Status(_) => STATUSES,
            reason => STATUSES + other(reason).unwrap_or(0),
        }
    }

    fn at(place: usize) -> Self {
        match place.checked_sub(STATUSES) {
            None => Self::Status(WcStatus(place as u32)),
            Some(other) => OTHERS[other],
        }
    }
}

/// The number of failures of a rail after which other rails took over, by reason.
// An array, because nothing may be allocated when a rail fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureCounts([u32; REASONS]);

impl Default for FailureCounts {
    fn default() -> Self {
        Self([0; REASONS])
    }
}

impl FailureCounts {
    fn add(&mut self, reason: FailureReason) {
        let count = &mut self.0[reason.place()];
        *count = count.saturating_add(1);
    }

    /// Returns the number of all failures.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    /// Returns the number of failures for this reason.
    pub fn of(&self, reason: FailureReason) -> u64 {
        self.0[reason.place()].into()
    }

    /// Iterates over the reasons that occurred, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (FailureReason, u64)> {
        let counted = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        counted.map(|(place, count)| (FailureReason::at(place), u64::from(*count)))
    }
}

/// How long a rail was in each phase so far. A rail is in service until it fails, is drained until
/// both ends know which requests arrived (the *fence*), and is down until it is in service again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailTimes {
    /// In service, from the moment the endpoint was built. Always, if rails are not re-routed.
    pub in_service: Duration,
    /// From a failure to the fence.
    pub draining: Duration,
    /// From the fence to the return.
    pub down: Duration,
}

/// A phase of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    InService,
    Draining,
    Down,
}

/// The history of one rail. Events are rare, so it costs no request anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RailHistory {
    phase: Phase,
    /// When the phase began.
    since: Instant,
    /// When the rail went out of service, if it is out.
    out_since: Option<Instant>,
    /// Times in earlier phases.
    times: RailTimes,
    /// Why its owner failed it last.
    detected: Option<Detected>,
    pub(crate) failures: FailureCounts,
    /// Failures after which both ends reported what arrived.
    pub(crate) fences: u64,
    /// Requests that were in flight at these failures and had arrived.
    pub(crate) arrived: u64,
    /// Requests that were in flight at these failures and were posted again.
    pub(crate) posted_again: u64,
}

/// What a history adds to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    /// What was detected about a rail that failed.
    pub(crate) detected: Option<Detected>,
    /// How long the rail had been out of service.
    pub(crate) out_for: Duration,
}

impl RailHistory {
    /// The rail is in service from now on.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            phase: Phase::InService,
            since: now,
            out_since: None,
            times: RailTimes::default(),
            detected: None,
            failures: FailureCounts::default(),
            fences: 0,
            arrived: 0,
            posted_again: 0,
        }
    }

    /// Records why the rail is about to be failed.
    pub(crate) fn note_detected(&mut self, detected: Detected) {
        self.detected = Some(detected);
    }

    /// Records an event.
    pub(crate) fn add(&mut self, kind: RailEventKind, at: Instant) -> Added {
        let since = *self.out_since.get_or_insert(at);
        let mut added = Added { detected: None, out_for: at.saturating_duration_since(since) };
        match kind {
            RailEventKind::Failed { why, .. } => {
                added.detected = self.detected.take();
                self.failures.add(FailureReason::new(why, added.detected));
                self.enter(Phase::Draining, at);
            }
            RailEventKind::Fenced { arrived, again } => {
                self.fences += 1;
                self.arrived += u64::from(arrived);
                self.posted_again += u64::from(again);
                self.enter(Phase::Down, at);
            }
            RailEventKind::Returned => {
                self.out_since = None;
                self.enter(Phase::InService, at);
            }
        }
        added
    }

    fn enter(&mut self, phase: Phase, at: Instant) {
        self.times = self.times(at);
        self.since = at;
        self.phase = phase;
    }

    /// Returns the times in each phase until now.
    pub(crate) fn times(&self, now: Instant) -> RailTimes {
        let mut times = self.times;
        let time = match self.phase {
            Phase::InService => &mut times.in_service,
            Phase::Draining => &mut times.draining,
            Phase::Down => &mut times.down,
        };
        *time += now.saturating_duration_since(self.since);
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: RailEventKind =
        RailEventKind::Failed { why: FailedBecause::Owner, refused: None };

    #[test]
    fn every_reason_is_counted_at_its_own_place() {
        for place in 0..REASONS {
            let reason = FailureReason::at(place);
            assert_eq!(reason.place(), place, "{reason:?}");
        }
        let statuses = (0..).map(WcStatus).take_while(|status| status.name().is_some());
        assert_eq!(statuses.count(), STATUSES, "each status that verbs define has a place");
        assert_eq!(FailureReason::Status(WcStatus(1000)).place(), STATUSES);
        let mut counts = FailureCounts::default();
        counts.add(FailureReason::Lost);
        counts.add(FailureReason::Status(WcStatus::RETRY_EXC_ERR));
        counts.add(FailureReason::Lost);
        let named: Vec<_> = counts.iter().map(|(reason, count)| (reason.name(), count)).collect();
        assert_eq!(named, [("RETRY_EXC_ERR", 1), ("lost", 2)]);
        assert_eq!(counts.total(), 3);
    }

    #[test]
    fn the_time_of_each_phase_adds_up_to_the_age_of_the_rail() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut history = RailHistory::new(begin);
        history.add(FAILED, at(10));
        history.add(RailEventKind::Fenced { arrived: 2, again: 3 }, at(11));
        // Its new queue pair failed before it was in service.
        history.add(FAILED, at(15));
        history.add(RailEventKind::Fenced { arrived: 0, again: 1 }, at(18));
        let returned = history.add(RailEventKind::Returned, at(30));
        assert_eq!(returned.out_for, Duration::from_secs(20));
        let seconds = |RailTimes { in_service, draining, down }: RailTimes| {
            [in_service, draining, down].map(|time| time.as_secs())
        };
        assert_eq!(seconds(history.times(at(37))), [17, 4, 16]);
        assert_eq!((history.fences, history.arrived, history.posted_again), (2, 2, 4));
        history.note_detected(Detected::PortDown);
        assert_eq!(history.add(FAILED, at(40)).detected, Some(Detected::PortDown));
        assert_eq!(history.add(FAILED, at(41)).detected, None);
        let reasons: Vec<_> = history.failures.iter().collect();
        assert_eq!(reasons, [(FailureReason::PortDown, 1), (FailureReason::Owner, 3)]);
    }

    #[test]
    fn a_clock_that_jumps_back_takes_no_time_away() {
        let begin = Instant::now();
        let later = begin + Duration::from_secs(5);
        let mut history = RailHistory::new(later);
        history.add(FAILED, begin);
        history.add(RailEventKind::Returned, later);
        let times = history.times(begin);
        assert_eq!((times.in_service, times.draining.as_secs()), (Duration::ZERO, 5));
    }
}
