//! How long requests wait: for rails that are out of service, and for the peer to report what
//! arrived.

use super::options::Healing;
use std::time::{Duration, Instant};

/// Repair steps that there are at least while a limit passes. An owner who was away has not waited:
/// messages of the peer that came meanwhile are not read yet. So only this part of a limit counts
/// between two steps.
const STEPS: u32 = 8;

/// What one repair step finds.
pub(crate) struct Waiting<const PLACES: usize> {
    /// Requests wait for rails that are out of service, or that came back and had nothing
    /// acknowledged since.
    pub(crate) is_waiting: bool,
    /// Requests are in flight on a rail in service that nothing speaks against, so they wait for
    /// the peer, which may be as late as it likes.
    pub(crate) waits_for_peer: bool,
    /// A rail that takes over from others is in service, and nothing speaks against it, so requests
    /// do not wait for rails.
    pub(crate) has_good_rail: bool,
    /// Requests acknowledged so far.
    pub(crate) acknowledged: u64,
    /// The places of queue pairs that failed, if the peer has not reported yet what arrived there.
    pub(crate) unfenced: [bool; PLACES],
    /// The places of queue pairs that are fenced on purpose, if the peer has not done its part yet.
    /// That is limited also while nothing waits, because they count as in service.
    pub(crate) on_purpose: [bool; PLACES],
}

/// A limit that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// [`Healing::fence_timeout`], at this place.
    Fence { place: usize, limit: Duration },
    /// [`Healing::rail_timeout`].
    Rails { limit: Duration },
}

/// Since when requests wait.
#[derive(Debug)]
pub(crate) struct Limits<const PLACES: usize> {
    last_step: Option<Instant>,
    /// For rails, without any progress; and how many requests were acknowledged by then.
    since: Option<(Instant, u64)>,
    /// At the last step requests waited for rails, and none for the peer.
    waits_for_rails: bool,
    /// The next step may begin to count the wait for rails again.
    may_restart: bool,
    /// For the peer's report about each place.
    unfenced_since: [Option<Instant>; PLACES],
}

impl<const PLACES: usize> Limits<PLACES> {
    pub(crate) const fn new() -> Self {
        Self {
            last_step: None,
            since: None,
            waits_for_rails: false,
            may_restart: false,
            unfenced_since: [None; PLACES],
        }
    }

    /// Returns whether a step is due although all rails are in service: rails that came back may
    /// drop what is sent, and without a step the wait would count as the owner's absence. A wait
    /// for the peer needs no step, and neither does an endpoint that has nothing to do.
    pub(crate) fn is_due(&self, now: Instant, options: &Healing) -> bool {
        let limit = options.rail_timeout.filter(|_| self.waits_for_rails);
        let interval = limit.map(|limit| limit / (2 * STEPS));
        let since = self.last_step.map(|last| now.saturating_duration_since(last));
        since.zip(interval).is_some_and(|(since, interval)| since >= interval)
    }

    /// Takes what a step finds. Returns the limit that has passed, if one has.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        options: &Healing,
        waiting: &Waiting<PLACES>,
    ) -> Option<Passed> {
        self.forgive_absence(now, options);
        let restarts = std::mem::take(&mut self.may_restart) && waiting.has_good_rail;
        self.waits_for_rails = waiting.is_waiting && !waiting.waits_for_peer;
        self.since = match self.since {
            _ if !waiting.is_waiting => None,
            Some((since, before)) if before == waiting.acknowledged && !restarts => {
                Some((since, before))
            }
            _ => Some((now, waiting.acknowledged)),
        };
        for (place, since) in self.unfenced_since.iter_mut().enumerate() {
            // Until something waits, the peer may take its time.
            let is_awaited = waiting.is_waiting && waiting.unfenced[place];
            *since = (is_awaited || waiting.on_purpose[place]).then(|| since.unwrap_or(now));
        }
        let has_passed =
            |since: Instant, limit: &Duration| now.saturating_duration_since(since) >= *limit;
        if let Some(limit) = options.fence_timeout {
            let is_late = |since: &Option<Instant>| since.is_some_and(|at| has_passed(at, &limit));
            if let Some(place) = self.unfenced_since.iter().position(is_late) {
                return Some(Passed::Fence { place, limit });
            }
        }
        let (since, _) = self.since.filter(|_| !waiting.waits_for_peer)?;
        let limit = options.rail_timeout.filter(|limit| has_passed(since, limit))?;
        Some(Passed::Rails { limit })
    }

    /// Counts the wait for rails from the next step on, if a good rail is in service then: until
    /// now, requests may have waited for the peer. Without a good rail, other requests waited for
    /// rails.
    pub(crate) const fn restart(&mut self) {
        self.may_restart = true;
    }

    /// Counts the wait for the peer's report about a place from now on.
    pub(crate) const fn restart_fence(&mut self, place: usize) {
        self.unfenced_since[place] = None;
    }

    fn forgive_absence(&mut self, now: Instant, options: &Healing) {
        let last = self.last_step.replace(now).unwrap_or(now);
        let away = now.saturating_duration_since(last);
        let beyond =
            |limit: Option<Duration>| away.saturating_sub(limit.unwrap_or_default() / STEPS);
        for since in self.unfenced_since.iter_mut().flatten() {
            *since += beyond(options.fence_timeout);
        }
        if let Some((since, _)) = &mut self.since {
            *since += beyond(options.rail_timeout);
        }
    }
}

/// Detects rails that fail and come back without having carried anything: the peer answers, so each
/// rail gets a new queue pair, but what is sent is lost on all of them.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Since when nothing but losses was found, and how many requests had completed then.
    since: Option<(Instant, u64)>,
}

impl Losses {
    /// Notes that requests in flight on a rail that failed were lost, after `completed` requests in
    /// all. Returns whether nothing else was found for the limit.
    pub(crate) fn lost(&mut self, now: Instant, completed: u64, limit: Option<Duration>) -> bool {
        match self.since {
            Some((since, before)) if before == completed => {
                limit.is_some_and(|limit| now.saturating_duration_since(since) >= limit)
            }
            _ => {
                self.since = Some((now, completed));
                false
            }
        }
    }

    /// Notes that some of these requests had arrived.
    pub(crate) fn arrived(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(8);
    const STEP: Duration = Duration::from_secs(1);

    /// After how many steps of one second which limit has passed.
    fn first_passed(steps: impl Fn(u64) -> Waiting<2>) -> Option<(u64, Passed)> {
        let options =
            Healing { rail_timeout: Some(LIMIT), fence_timeout: Some(LIMIT), ..Healing::default() };
        let mut limits = Limits::new();
        let mut now = Instant::now();
        (1..100).find_map(|number| {
            now += STEP;
            Some((number, limits.check(now, &options, &steps(number))?))
        })
    }

    fn waiting(acknowledged: u64, unfenced: bool) -> Waiting<2> {
        let unfenced = [false, unfenced];
        let (is_waiting, waits_for_peer, has_good_rail) = (true, false, false);
        let on_purpose = [false; 2];
        Waiting { is_waiting, waits_for_peer, has_good_rail, acknowledged, unfenced, on_purpose }
    }

    #[test]
    fn a_limit_passes_while_nothing_is_acknowledged_and_nothing_waits_for_the_peer() {
        let rails = Passed::Rails { limit: LIMIT };
        assert_eq!(first_passed(|_| waiting(7, false)), Some((9, rails)));
        assert_eq!(first_passed(|number| waiting(number / 8, false)), None);
        assert_eq!(first_passed(|_| Waiting { waits_for_peer: true, ..waiting(7, false) }), None);
        let now_and_then = |number| Waiting { is_waiting: number % 8 != 0, ..waiting(7, false) };
        assert_eq!(first_passed(now_and_then), None);
    }

    #[test]
    fn the_peers_report_has_a_limit_whatever_else_completes() {
        let fence = Passed::Fence { place: 1, limit: LIMIT };
        assert_eq!(first_passed(|number| waiting(number, true)), Some((9, fence)));
        assert_eq!(first_passed(|number| waiting(number, number % 8 != 0)), None);
        let nobody = |number| Waiting { is_waiting: false, ..waiting(number, true) };
        assert_eq!(first_passed(nobody), None);
    }

    /// It counts as in service, so nothing else would end it.
    #[test]
    fn a_fence_on_purpose_has_a_limit_although_nothing_waits() {
        let on_purpose = [false, true];
        let idle = |number| Waiting { is_waiting: false, on_purpose, ..waiting(number, true) };
        let fence = Passed::Fence { place: 1, limit: LIMIT };
        assert_eq!(first_passed(idle), Some((9, fence)));
    }

    /// A rail whose request may wait for the peer fails again and again.
    #[test]
    fn a_wait_begins_again_only_while_a_good_rail_is_in_service() {
        let options = Healing { rail_timeout: Some(LIMIT), ..Healing::default() };
        for (good_until, expected) in [(0, Some(9)), (20, Some(24)), (100, None)] {
            let mut limits = Limits::new();
            let mut now = Instant::now();
            let passed = (1..100).find(|number| {
                now += STEP;
                if number % 4 == 0 {
                    limits.restart();
                }
                let has_good_rail = *number < good_until;
                let waiting = Waiting { has_good_rail, ..waiting(7, false) };
                limits.check(now, &options, &waiting).is_some()
            });
            assert_eq!(passed, expected);
        }
    }

    #[test]
    fn steps_are_due_while_requests_wait_for_rails_only() {
        let options = Healing { rail_timeout: Some(LIMIT), ..Healing::default() };
        let idle = Waiting { is_waiting: false, ..waiting(7, false) };
        let for_peer = Waiting { waits_for_peer: true, ..waiting(7, false) };
        let mut limits = Limits::new();
        let now = Instant::now();
        assert!(!limits.is_due(now, &options));
        for (found, is_due) in [(waiting(7, false), true), (idle, false), (for_peer, false)] {
            assert_eq!(limits.check(now, &options, &found), None);
            assert_eq!(limits.is_due(now + STEP, &options), is_due);
            assert!(!limits.is_due(now, &options), "there was a step");
        }
        let endless = Healing { rail_timeout: None, ..options };
        assert_eq!(limits.check(now, &endless, &waiting(7, false)), None);
        assert!(!limits.is_due(now + 100 * LIMIT, &endless));
    }

    #[test]
    fn an_owner_who_was_away_has_not_waited() {
        let options = Healing { rail_timeout: Some(LIMIT), ..Healing::default() };
        let mut limits = Limits::new();
        let mut now = Instant::now();
        for _ in 0..8 {
            assert_eq!(limits.check(now, &options, &waiting(7, false)), None);
            now += 100 * LIMIT;
        }
        let passed = limits.check(now, &options, &waiting(7, false));
        assert_eq!(passed, Some(Passed::Rails { limit: LIMIT }));
    }
}
