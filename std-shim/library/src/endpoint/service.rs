//! The rate at which each rail serves requests, measured by looks at what is in flight.

use std::time::{Duration, Instant};

/// Shortest time between two looks. A look adds up what is in flight.
const LOOK: Duration = Duration::from_micros(20);

/// Longest time between two looks that are compared. After a longer one, the owner was away, and
/// what completed meanwhile waited for it. Longer than the 10 ms for which an owner that waits for
/// events sleeps between two repair steps.
const AWAY: Duration = Duration::from_millis(12);

/// What one measurement of a rail takes at least: busy time, looks in it, and looks that find that
/// something has completed, so that a share that is half done matters little.
const MEASURED_OVER: Duration = Duration::from_millis(2);
const LOOKS: u32 = 16;
const COMPLETIONS: u32 = 4;

/// Busy time after which a measurement ends at the next look that finds a completion. Until then,
/// what completed and what is in flight are the most that the rail can have carried.
const MEASURED_BY: Duration = Duration::from_millis(100);

/// A rail that carries too little to be measured for this long is believed to be faster, so that it is
/// given more, and measured again.
const TRUST_AFTER: Duration = Duration::from_millis(200);

/// The part of a new measurement in the average, and of the trust: 1 / 2^n.
const AVERAGE_SHIFT: u32 = 1;
const TRUST_SHIFT: u32 = 3;

/// What a look finds at one rail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Carrying {
    /// Payload bytes that completed so far.
    pub(crate) completed: u64,
    /// Payload bytes of requests in flight.
    pub(crate) in_flight: u64,
    /// The oldest request may wait for the peer, not for the rail.
    pub(crate) is_held: bool,
}

/// The measured rate of one rail.
#[derive(Clone, Copy, Debug, Default)]
struct Service {
    /// Bytes that had completed by the last look; `None` before the first one.
    completed: Option<u64>,
    /// Since the last measurement: bytes that completed, looks that found some, the time in which
    /// the rail was busy, and the looks that found it busy.
    bytes: u64,
    completions: u32,
    busy: Duration,
    looks: u32,
    /// The average in bytes per second; 0: not measured yet.
    rate: u64,
    measured_at: Option<Instant>,
}

/// The measured rates of `RAILS` rails.
///
/// The rate of a rail is the bytes that it completed, divided by the time in which it was busy.
/// Looks are taken in polls, at times that do not depend on the rail, so the part of the looks that
/// find it busy is the part of the time in which it is busy.
#[derive(Clone, Debug)]
pub(crate) struct ServiceRates<const RAILS: usize> {
    last_look: Option<Instant>,
    rails: [Service; RAILS],
}

impl<const RAILS: usize> ServiceRates<RAILS> {
    pub(crate) fn new() -> Self {
        Self { last_look: None, rails: [Service::default(); RAILS] }
    }

    /// Whether it is time for a look.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.last_look.is_none_or(|last| now.saturating_duration_since(last) >= LOOK)
    }

    /// Takes what a look found; `None` for a rail that is not in service. Returns whether a rate
    /// changed.
    pub(crate) fn look(&mut self, now: Instant, found: [Option<Carrying>; RAILS]) -> bool {
        let since = self.last_look.map(|last| now.saturating_duration_since(last));
        self.last_look = Some(now);
        let passed = since.filter(|passed| *passed <= AWAY);
        let mut has_changed = false;
        for (rail, found) in self.rails.iter_mut().zip(found) {
            let Some(found) = found else {
                // Its next queue pair starts over, and what it lost was not carried.
                *rail = Service::default();
                continue;
            };
            has_changed |= rail.look(now, passed, found);
        }
        has_changed |= self.trust(now);
        has_changed
    }

    /// Returns the rate of each rail in bytes per second; 0: unknown.
    pub(crate) fn rates(&self) -> [u64; RAILS] {
        self.rails.map(|rail| rail.rate)
    }

    /// Raises the rates of rails that were not measured for long, although others were.
    fn trust(&mut self, now: Instant) -> bool {
        let fastest = self.rails.iter().map(|rail| rail.rate).max().unwrap_or(0);
        let newest = self.rails.iter().filter_map(|rail| rail.measured_at).max();
        let mut has_changed = false;
        for rail in &mut self.rails {
            let age = rail
                .measured_at
                .zip(newest)
                .map(|(at, newest)| newest.saturating_duration_since(at));
            if age.is_some_and(|age| age >= TRUST_AFTER) && rail.rate < fastest {
                rail.rate += ((fastest - rail.rate) >> TRUST_SHIFT).max(1);
                rail.measured_at = Some(now);
                has_changed = true;
            }
        }
        has_changed
    }
}

impl Service {
    fn look(&mut self, now: Instant, passed: Option<Duration>, found: Carrying) -> bool {
        let before = self.completed.unwrap_or(found.completed);
        // Bytes of a share that waits for its queue pair count as in flight before they are posted.
        let bytes = found.completed.saturating_sub(before);
        self.completed = Some(before + bytes);
        let Some(passed) = passed.filter(|_| !found.is_held) else { return false };
        self.bytes += bytes;
        self.completions += u32::from(bytes > 0);
        if found.in_flight > 0 {
            self.busy += passed;
            self.looks += 1;
        }
        let is_long = self.busy >= MEASURED_BY;
        if is_long && bytes == 0 {
            return found.in_flight > 0 && self.limit(now, found.in_flight);
        }
        let is_enough = self.completions >= COMPLETIONS || is_long;
        if self.looks < LOOKS || self.busy < MEASURED_OVER || !is_enough {
            return false;
        }
        let rate = self.rate_of(self.bytes);
        (self.bytes, self.completions, self.busy, self.looks) = (0, 0, Duration::ZERO, 0);
        self.rate = match self.rate {
            0 => rate,
            known if rate >= known => known + ((rate - known) >> AVERAGE_SHIFT),
            known => known - ((known - rate) >> AVERAGE_SHIFT),
        };
        self.measured_at = Some(now);
        true
    }

    /// Limits the rate to what the rail would have carried if all that is in flight completed now:
    /// shares of long requests take longer than a measurement should. Returns whether the rate
    /// changed.
    fn limit(&mut self, now: Instant, in_flight: u64) -> bool {
        let most = self.rate_of(self.bytes.saturating_add(in_flight));
        let is_less = self.rate == 0 || most < self.rate;
        if is_less {
            (self.rate, self.measured_at) = (most, Some(now));
        }
        is_less
    }

    /// Returns the rate at which the rail carried these bytes in its busy time.
    fn rate_of(&self, bytes: u64) -> u64 {
        let nanos = self.busy.as_nanos().max(1);
        (u128::from(bytes) * 1_000_000_000 / nanos).clamp(1, u64::MAX.into()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const STEP: Duration = Duration::from_micros(100);

    /// Lets two rails work for a time: each of these parts of it is busy, and completes these bytes
    /// in each step of its busy time.
    fn work(
        rates: &mut ServiceRates<2>,
        begin: Instant,
        (steps, busy, bytes): (u32, [u32; 2], [u64; 2]),
        completed: &mut [u64; 2],
    ) -> Instant {
        for step in 0..steps {
            // Busy times are spread over the steps.
            let is_busy = [0, 1].map(|rail| step * busy[rail] % 10 < busy[rail]);
            for rail in 0..2 {
                completed[rail] += if is_busy[rail] { bytes[rail] } else { 0 };
            }
            let found = [0, 1].map(|rail: usize| Some(carrying(completed[rail], is_busy[rail])));
            rates.look(begin + STEP * step, found);
        }
        begin + STEP * steps
    }

    const IN_FLIGHT: u64 = 1000;

    fn carrying(completed: u64, is_busy: bool) -> Carrying {
        let in_flight = if is_busy { IN_FLIGHT } else { 0 };
        Carrying { completed, in_flight, is_held: false }
    }

    fn is_about(rate: u64, expected: u64) -> bool {
        rate.abs_diff(expected) <= expected / 20
    }

    #[test]
    fn a_rate_is_bytes_over_busy_time() {
        let mut rates = ServiceRates::<2>::new();
        let mut completed = [0; 2];
        // Both carry the same; the second rail needs all the time for it.
        work(&mut rates, Instant::now(), (5000, [3, 10], [10_000, 3_000]), &mut completed);
        let [fast, slow] = rates.rates();
        assert!(is_about(fast, 100_000_000) && is_about(slow, 30_000_000), "{fast} {slow}");
    }

    #[test]
    fn a_rate_follows_a_change() {
        let mut rates = ServiceRates::<2>::new();
        let mut completed = [0; 2];
        let begin = Instant::now();
        let now = work(&mut rates, begin, (2000, [10; 2], [10_000, 10_000]), &mut completed);
        let now = work(&mut rates, now, (2000, [10; 2], [10_000, 1_000]), &mut completed);
        let [fast, slow] = rates.rates();
        assert!(is_about(fast, 100_000_000) && is_about(slow, 10_000_000), "{fast} {slow}");
        work(&mut rates, now, (2000, [10; 2], [10_000, 10_000]), &mut completed);
        assert!(is_about(rates.rates()[1], 100_000_000), "{:?}", rates.rates());
    }

    /// Half of the time the peer has posted no receive for the oldest request of a rail.
    #[test]
    fn time_in_which_a_rail_waits_for_the_peer_is_not_measured() {
        let mut rates = ServiceRates::<2>::new();
        let begin = Instant::now();
        for look in 0..2000u32 {
            let is_held = look / 100 % 2 == 1;
            let looks_free = look / 200 * 100 + (look % 200).min(100);
            let slow = Carrying { is_held, ..carrying(u64::from(looks_free) * 10_000, true) };
            let other = carrying(u64::from(look) * 10_000, true);
            rates.look(begin + STEP * look, [Some(slow), Some(other)]);
        }
        let [waits, other] = rates.rates();
        assert!(is_about(waits, 100_000_000) && is_about(other, 100_000_000), "{waits} {other}");
    }

    /// An owner that waits for events sleeps for up to 10 ms.
    #[test]
    fn rates_are_measured_by_an_owner_that_sleeps() {
        let mut rates = ServiceRates::<2>::new();
        let begin = Instant::now();
        let nap = Duration::from_millis(10);
        for look in 0..100 {
            let carried = [400_000, 100_000].map(|bytes| u64::from(look) * bytes);
            let found = |completed| Some(carrying(completed, true));
            rates.look(begin + nap * look, carried.map(found));
        }
        let [fast, slow] = rates.rates();
        assert!(is_about(fast, 40_000_000) && is_about(slow, 10_000_000), "{fast} {slow}");
    }

    #[test]
    fn nothing_is_measured_while_the_owner_is_away() {
        let mut rates = ServiceRates::<2>::new();
        let begin = Instant::now();
        for look in 0..100 {
            let found = carrying(u64::from(look) * 1000, true);
            assert!(!rates.look(begin + 2 * AWAY * look, [Some(found); 2]));
        }
        assert_eq!(rates.rates(), [0, 0]);
    }

    #[test]
    fn a_rail_that_carries_nothing_is_trusted_again() {
        let mut rates = ServiceRates::<2>::new();
        let mut completed = [0; 2];
        let now = work(&mut rates, Instant::now(), (2000, [10; 2], [10_000, 100]), &mut completed);
        assert!(is_about(rates.rates()[1], 1_000_000), "{:?}", rates.rates());
        work(&mut rates, now, (20_000, [10, 0], [10_000, 0]), &mut completed);
        assert!(rates.rates()[1] > 50_000_000, "{:?}", rates.rates());
    }

    #[test]
    fn a_rail_that_completes_nothing_is_slow_and_one_out_of_service_is_unknown() {
        let mut rates = ServiceRates::<2>::new();
        let mut completed = [0; 2];
        let now = work(&mut rates, Instant::now(), (2000, [10; 2], [10_000, 0]), &mut completed);
        // At most what is in flight can have been carried in 0.2 s.
        assert!(is_about(rates.rates()[1], 5 * IN_FLIGHT), "{:?}", rates.rates());
        rates.look(now, [Some(carrying(completed[0], false)), None]);
        assert_eq!(rates.rates()[1], 0);
    }

    /// Bytes of a fragment of a request of 1 MiB, and of one of 1 GiB.
    const SHORT: u64 = 64 << 10;
    const LONG: u64 = 64 << 20;

    /// Four rails in virtual time. A request is divided into 16 fragments, each for the rail that
    /// would finish it first, and the share of each rail completes as a whole.
    struct Model {
        /// Bytes of a fragment.
        fragment: u64,
        now: Duration,
        /// Time from one poll to the next.
        poll: Duration,
        rates: [u64; 4],
        /// The shares in flight on each rail: their bytes, and their requests.
        queues: [VecDeque<(u64, usize)>; 4],
        /// Bytes of the front share that were sent.
        sent: [f64; 4],
        completed: [u64; 4],
        /// Shares that each request still waits for.
        missing: Vec<usize>,
        weights: [u64; 4],
        service: Option<ServiceRates<4>>,
    }

    impl Model {
        const FRAGMENTS: u64 = 16;

        /// There are 46 polls while all rails send 1 MiB; for longer requests, one every
        /// millisecond.
        fn new(fragment: u64, rates: [u64; 4], measures: bool) -> Self {
            let often = Duration::from_secs(7000) / rates.into_iter().max().unwrap_or(1) as u32;
            Self {
                fragment,
                now: Duration::ZERO,
                poll: if fragment > SHORT { Duration::from_millis(1) } else { often },
                rates,
                queues: Default::default(),
                sent: [0.0; 4],
                completed: [0; 4],
                missing: Vec::new(),
                weights: [1; 4],
                service: measures.then(ServiceRates::new),
            }
        }

        fn in_flight(&self, rail: usize) -> u64 {
            self.queues[rail].iter().map(|(bytes, _)| bytes).sum()
        }

        fn post(&mut self) {
            let mut shares = [0; 4];
            for _ in 0..Self::FRAGMENTS {
                let finish = |rail: usize| {
                    let bytes = self.in_flight(rail) + shares[rail] + self.fragment;
                    u128::from(bytes) * (1 << 60) / u128::from(self.weights[rail])
                };
                let first = (0..4).min_by_key(|rail| finish(*rail)).unwrap();
                shares[first] += self.fragment;
            }
            let request = self.missing.len();
            self.missing.push(shares.iter().filter(|share| **share > 0).count());
            for (queue, share) in self.queues.iter_mut().zip(shares) {
                queue.extend((share > 0).then_some((share, request)));
            }
        }

        fn poll(&mut self, begin: Instant) {
            self.now += self.poll;
            for rail in 0..4 {
                self.sent[rail] += self.rates[rail] as f64 * self.poll.as_secs_f64();
                while let Some(&(bytes, request)) = self.queues[rail].front() {
                    if self.sent[rail] < bytes as f64 {
                        break;
                    }
                    self.sent[rail] -= bytes as f64;
                    self.completed[rail] += bytes;
                    self.missing[request] -= 1;
                    self.queues[rail].pop_front();
                }
                if self.queues[rail].is_empty() {
                    self.sent[rail] = 0.0;
                }
            }
            let now = begin + self.now;
            let found = [0, 1, 2, 3].map(|rail: usize| {
                let (completed, in_flight) = (self.completed[rail], self.in_flight(rail));
                Some(Carrying { completed, in_flight, is_held: false })
            });
            if let Some(service) = self.service.as_mut().filter(|service| service.is_due(now))
                && service.look(now, found)
            {
                let rates = service.rates();
                let known: Vec<u64> = rates.into_iter().filter(|rate| *rate > 0).collect();
                let average = known.iter().sum::<u64>() / known.len() as u64;
                self.weights = rates.map(|rate| if rate > 0 { rate } else { average });
            }
        }

        /// Carries out this number of requests, of which `window` are unfinished at a time, in
        /// order. Returns the goodput in parts of what the rails can carry.
        fn goodput(&mut self, begin: Instant, requests: usize, window: usize) -> f64 {
            let first = self.missing.len();
            let since = self.now;
            let mut done = first;
            while done < first + requests {
                while self.missing.len() < (done + window).min(first + requests) {
                    self.post();
                }
                self.poll(begin);
                while self.missing.get(done) == Some(&0) {
                    done += 1;
                }
            }
            let bytes = (requests as u64 * Self::FRAGMENTS * self.fragment) as f64;
            let all: u64 = self.rates.iter().sum();
            bytes / (self.now - since).as_secs_f64() / all as f64
        }
    }

    /// One of four rails has a quarter of the others' rate, then another one. The second hundred of
    /// requests reaches 0.95 of what all rails can carry together, each time.
    #[test]
    fn measured_weights_use_all_rails_whatever_is_in_flight() {
        let begin = Instant::now();
        for fast in [50_000_000, 1_000_000_000] {
            for window in [1, 2, 4, 8] {
                let rates = [fast, fast, fast, fast / 4];
                let equal = Model::new(SHORT, rates, false).goodput(begin, 100, window);
                assert!(equal < 0.6, "without weights: {equal}");
                let mut model = Model::new(SHORT, rates, true);
                for rates in [rates, [fast / 4, fast, fast, fast]] {
                    model.rates = rates;
                    let [_, second, third] = [0; 3].map(|_| model.goodput(begin, 100, window));
                    let least = second.min(third);
                    assert!(least >= 0.95, "{window} in flight at {fast}: {second} {third}");
                }
            }
        }
    }

    /// The share of a rail takes longer than a measurement: 0.3 to 1.1 s.
    #[test]
    fn measured_weights_use_all_rails_for_long_requests() {
        let begin = Instant::now();
        for window in [1, 2, 4] {
            let fast = 1_000_000_000;
            let mut model = Model::new(LONG, [fast, fast, fast, fast / 4], true);
            for rates in [model.rates, [fast / 4, fast, fast, fast]] {
                model.rates = rates;
                let [_, second] = [0; 2].map(|_| model.goodput(begin, 40, window));
                assert!(second >= 0.95, "{window} in flight: {second}");
            }
        }
    }
}
