//! Rails that make no headway while others do. Only a clock tells: some drivers never complete a request
//! whose peer is gone.

use crate::endpoint::place::RAIL_IDS;
use std::time::{Duration, Instant};

/// Looks within one timeout. The engine compares two of them, so a rail is found after the timeout and at most
/// one part of it more.
const LOOKS: u32 = 8;

/// What one look showed of a rail.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    /// Its oldest request is the same as at the look before.
    pub(super) is_stalled: bool,
    /// Requests that it has completed so far.
    pub(super) completed: u64,
    /// It carries requests.
    pub(super) is_in_service: bool,
}

/// What was seen of one rail.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Looks in a row that found its oldest request unchanged.
    unmoved: u32,
    /// Requests that it had completed; `None` before the first look.
    completed: Option<u64>,
    /// Another rail could have moved the request meanwhile.
    others_are_well: bool,
}

/// The watch over all rails of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Headway {
    /// The next look; `None` before the first one.
    next: Option<Instant>,
    seen: [Seen; RAIL_IDS],
}

impl Headway {
    /// Whether it is time to look.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Takes a look's result. Returns the places of rails that were silent for `timeout` while others
    /// completed something, or were idle.
    pub(super) fn look(
        &mut self,
        now: Instant,
        timeout: Duration,
        looks: &[Look; RAIL_IDS],
    ) -> impl Iterator<Item = usize> + use<> {
        // A clock that would overflow: never again.
        self.next = now.checked_add(timeout / LOOKS).or(self.next);
        let seen = self.seen;
        let is_well = |at: usize| {
            let Look { is_stalled, completed, is_in_service } = looks[at];
            let has_moved = seen[at].completed.is_some_and(|before| before != completed);
            is_in_service && (has_moved || !is_stalled)
        };
        let well: [bool; RAIL_IDS] = std::array::from_fn(is_well);
        for (at, seen) in self.seen.iter_mut().enumerate() {
            let Look { is_stalled, completed, is_in_service } = looks[at];
            let completed = Some(completed);
            let others = (0..RAIL_IDS).any(|other| other != at && well[other]);
            *seen = if is_stalled && is_in_service {
                let others_are_well = seen.others_are_well || others;
                Seen { unmoved: seen.unmoved.saturating_add(1), completed, others_are_well }
            } else {
                Seen { completed, ..Seen::default() }
            };
        }
        let silent = |seen: &Seen| seen.unmoved >= LOOKS && seen.others_are_well;
        let silent: [bool; RAIL_IDS] = std::array::from_fn(|at| silent(&self.seen[at]));
        (0..RAIL_IDS).filter(move |at| silent[*at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(8);
    const STALLED: Look = Look { is_stalled: true, completed: 7, is_in_service: true };

    /// After how many looks which rails are silent.
    fn first_silent(looks: impl Fn(u32) -> [Look; RAIL_IDS]) -> Option<(u32, Vec<usize>)> {
        let mut headway = Headway::default();
        let mut now = Instant::now();
        for number in 1..100 {
            assert!(headway.is_due(now));
            let silent: Vec<usize> = headway.look(now, TIMEOUT, &looks(number)).collect();
            if !silent.is_empty() {
                return Some((number, silent));
            }
            assert!(!headway.is_due(now));
            now += TIMEOUT / LOOKS;
        }
        None
    }

    #[test]
    fn a_rail_is_silent_after_the_timeout_if_others_are_well() {
        let mut looks = [Look::default(); RAIL_IDS];
        looks[..3].fill(STALLED);
        // All of them: their peer may be late.
        assert_eq!(first_silent(|_| looks), None);
        // One of them completes something now and then.
        let silent = first_silent(|number| {
            let mut looks = looks;
            let completed = u64::from(number / 5);
            looks[1] = Look { completed, is_stalled: number % 5 != 0, is_in_service: true };
            looks
        });
        assert_eq!(silent, Some((8, vec![0, 2])));
        // Or has nothing to do.
        looks[2].is_stalled = false;
        assert_eq!(first_silent(|_| looks), Some((8, vec![0, 1])));
        // One that is out of service says nothing, and nothing is said of it.
        looks[2].is_in_service = false;
        assert_eq!(first_silent(|_| looks), None);
    }

    #[test]
    fn headway_begins_anew_with_each_request() {
        let mut looks = [Look::default(); RAIL_IDS];
        looks[0] = STALLED;
        looks[1] = Look { is_in_service: true, ..Look::default() };
        let silent = first_silent(|number| {
            let mut looks = looks;
            looks[0].is_stalled = number % 8 != 0;
            looks
        });
        assert_eq!(silent, None);
    }
}
