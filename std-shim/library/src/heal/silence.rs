//! Queue pairs that fall silent. Some drivers never complete a request whose peer is gone, so only
//! a clock shows it.

use std::time::{Duration, Instant};

/// Looks within one timeout. Two looks are compared, so a silent queue pair is found after the
/// timeout and at most one eighth of it more. With fewer looks it would be much more; more looks
/// only cost time.
const LOOKS: u32 = 8;

/// What one look finds at one place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// The oldest request is the same as at the look before.
    pub(crate) is_stalled: bool,
    /// The peer is not merely late: other queue pairs of the same peer complete requests, or have
    /// none.
    pub(crate) peer_is_alive: bool,
}

/// What earlier looks found at one place.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Looks in a row that found the oldest request unchanged.
    unmoved: u32,
    /// The peer was alive at one of these looks.
    peer_was_alive: bool,
}

/// The watch over queue pairs in `PLACES` places.
#[derive(Clone, Debug)]
pub(crate) struct SilenceWatch<const PLACES: usize> {
    /// The next look; `None` before the first one.
    next: Option<Instant>,
    seen: [Seen; PLACES],
}

impl<const PLACES: usize> SilenceWatch<PLACES> {
    pub(crate) const fn new() -> Self {
        Self { next: None, seen: [Seen { unmoved: 0, peer_was_alive: false }; PLACES] }
    }

    /// Returns how long there may be between two looks; with longer pauses a silent queue pair is
    /// found later.
    pub(crate) fn interval(timeout: Duration) -> Duration {
        timeout / LOOKS
    }

    /// Returns whether it is time to look; then the next look is an interval away.
    pub(crate) fn is_due(&mut self, now: Instant, timeout: Duration) -> bool {
        let is_due = self.next.is_none_or(|next| now >= next);
        if is_due {
            // An eighth of the longest duration does not overflow the clock of any platform that we
            // know.
            self.next = now.checked_add(Self::interval(timeout)).or(self.next);
        }
        is_due
    }

    /// Takes what a look found. Returns the places that have been silent for the timeout.
    pub(crate) fn look(
        &mut self,
        looks: [Look; PLACES],
    ) -> impl Iterator<Item = usize> + use<PLACES> {
        for (seen, look) in self.seen.iter_mut().zip(looks) {
            *seen = if look.is_stalled {
                let peer_was_alive = seen.peer_was_alive || look.peer_is_alive;
                Seen { unmoved: seen.unmoved.saturating_add(1), peer_was_alive }
            } else {
                Seen::default()
            };
        }
        let seen = self.seen;
        (0..PLACES).filter(move |at| seen[*at].unmoved >= LOOKS && seen[*at].peer_was_alive)
    }
}

/// How long requests wait that need only devices, behind requests that may wait for the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeldUp {
    /// Since the first look that found them: requests acknowledged by then, and the time that
    /// counts.
    since: Option<(u64, Duration)>,
}

impl HeldUp {
    /// Takes what a look of a watch with this timeout finds: if requests are held up, how many have
    /// been acknowledged. Returns whether none was for the limit, while requests were held up. At
    /// most an eighth of the limit counts of the time between two looks, because an owner who was
    /// away has not waited.
    pub(crate) fn look(
        &mut self,
        acknowledged: Option<u64>,
        timeout: Duration,
        limit: Option<Duration>,
    ) -> bool {
        let interval = SilenceWatch::<0>::interval(timeout);
        let counts = limit.map_or(interval, |limit| interval.min(limit / LOOKS));
        self.since = acknowledged.map(|now| match self.since {
            Some((before, waited)) if before == now => (before, waited.saturating_add(counts)),
            _ => (now, Duration::ZERO),
        });
        self.since.zip(limit).is_some_and(|((_, waited), limit)| waited >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(8);

    /// After how many looks which places are silent.
    fn first_silent(looks: impl Fn(u32) -> [Look; 3]) -> Option<(u32, Vec<usize>)> {
        let mut watch = SilenceWatch::new();
        let mut now = Instant::now();
        for number in 1..100 {
            assert!(watch.is_due(now, TIMEOUT));
            let silent: Vec<usize> = watch.look(looks(number)).collect();
            if !silent.is_empty() {
                return Some((number, silent));
            }
            assert!(!watch.is_due(now, TIMEOUT));
            now += TIMEOUT / LOOKS;
        }
        None
    }

    #[test]
    fn a_place_is_silent_after_the_timeout_if_its_peer_was_alive_once() {
        let stalled = Look { is_stalled: true, peer_is_alive: false };
        assert_eq!(first_silent(|_| [stalled; 3]), None);
        let alive = Look { peer_is_alive: true, ..stalled };
        assert_eq!(first_silent(|_| [alive, stalled, alive]), Some((8, vec![0, 2])));
        let now_and_then = |number: u32| Look { peer_is_alive: number == 5, ..stalled };
        let looks = |number| [stalled, now_and_then(number), stalled];
        assert_eq!(first_silent(looks), Some((8, vec![1])));
    }

    /// After how many looks requests were held up for the limit.
    fn first_held_up(limit: Option<Duration>, looks: impl Fn(u32) -> Option<u64>) -> Option<u32> {
        let mut held_up = HeldUp::default();
        (1..100).find(|number| held_up.look(looks(*number), TIMEOUT, limit))
    }

    #[test]
    fn requests_are_held_up_for_the_limit_while_nothing_is_acknowledged() {
        let limit = Some(TIMEOUT * 3);
        assert_eq!(first_held_up(limit, |_| Some(7)), Some(3 * LOOKS + 1));
        assert_eq!(first_held_up(limit, |number| Some((number / 20).into())), None);
        assert_eq!(first_held_up(limit, |number| (number % 20 > 0).then_some(7)), None);
        assert_eq!(first_held_up(None, |_| Some(7)), None);
        let shorter = Some(TIMEOUT / 2);
        assert_eq!(first_held_up(shorter, |_| Some(7)), Some(LOOKS + 1), "an eighth counts");
    }

    #[test]
    fn the_timeout_begins_again_with_each_request() {
        let look =
            |number: u32| Look { is_stalled: !number.is_multiple_of(8), peer_is_alive: true };
        assert_eq!(first_silent(|number| [look(number); 3]), None);
    }
}
