//! Which rail gets the next fragments, and how many.

use super::config::{BuildError, Config, RailChoice};
use crate::rail::{MAX_DEPTH, MAX_RAILS, Rail, RailId};
use arrayvec::ArrayVec;

/// Limit of the fragments that one call distributes: the fragments of the longest request (4 GiB in
/// fragments of 128 bytes), for which [`share`](Chooser::share) is exact. All rails together have
/// credits for far fewer.
pub(super) const MOST_SHARED: u32 = 1 << 25;
static_assertions::const_assert!(MOST_SHARED as usize > MAX_RAILS * MAX_DEPTH);

/// The rails that can take fragments, and whose turn it is.
///
/// Rails take turns in an order that interleaves devices. A request's fragments are split into
/// contiguous shares, one for each rail that has credits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chooser<const RAILS: usize> {
    /// Bit `turn` of every rail that accepts fragments and has credits.
    available: u32,
    /// Bit `turn` of every rail whose turn comes before the order starts again.
    ahead: u32,
    /// The turn bit of the rail that completions came from last: waiting requests go there first.
    last_freed_turn: u8,
    /// Masks the turns of a round: all bits, or no bits with least finish time, which has no turns.
    turns: u32,
    /// The rail of each turn. Of full length, so that no turn is out of bounds.
    order: [u8; MAX_RAILS],
    fragment: Divisor,
    policy: Policy<RAILS>,
}

#[derive(Clone, Copy, Debug)]
enum Policy<const RAILS: usize> {
    RoundRobin,
    /// Time for one byte on each rail, in units of 2^-40 us.
    LeastFinishTime([u64; RAILS]),
}

/// What least finish time looks at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Payload bytes in flight.
    pub(super) bytes: u64,
    pub(super) credits: u32,
}

/// The turns of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// The low eight bits are the rails whose turn comes before the order starts again; the next
    /// eight bits are the rails that have had their turn. Always empty with least finish time,
    /// which has no turns.
    left: u32,
}

impl<const RAILS: usize> Chooser<RAILS> {
    pub(super) const EMPTY: Self = Self {
        available: 0,
        ahead: u32::MAX,
        last_freed_turn: 1,
        turns: u32::MAX,
        order: [0; MAX_RAILS],
        fragment: Divisor::new(1),
        policy: Policy::RoundRobin,
    };

    /// Gives every rail its turn.
    pub(super) fn new<Q, const DEPTH: usize>(
        config: &Config,
        rails: &mut ArrayVec<Rail<Q, DEPTH>, RAILS>,
    ) -> Result<Self, BuildError> {
        let mut chooser = Self { fragment: Divisor::new(config.max_msg_size), ..Self::EMPTY };
        chooser.set_choice(config.rail_choice, rails.len())?;
        for (turn, rail) in interleave(rails).into_iter().enumerate() {
            chooser.order[turn] = rail;
            rails[rail as usize].turn_bit = 1 << turn;
            chooser.available |= 1 << turn;
        }
        Ok(chooser)
    }

    /// Sets which of this number of rails gets the next fragments.
    pub(super) fn set_choice(
        &mut self,
        choice: RailChoice,
        rails: usize,
    ) -> Result<(), BuildError> {
        let RailChoice::LeastFinishTime { bandwidth_mbps } = choice else {
            (self.policy, self.turns) = (Policy::RoundRobin, Self::EMPTY.turns);
            return Ok(());
        };
        let mut cost = [0; RAILS];
        for (rail, mbps) in bandwidth_mbps.into_iter().enumerate().take(rails) {
            let time = (1u64 << 40).checked_div(u64::from(mbps));
            cost[rail] = time.ok_or(BuildError::Bandwidth { rail: rail as u8 })?;
        }
        // Its empty rounds lead `next` to `first_to_finish`, so that taking turns needs no test of
        // the policy.
        (self.policy, self.turns) = (Policy::LeastFinishTime(cost), 0);
        Ok(())
    }

    /// Sets the fragment size in bytes.
    pub(super) fn set_fragment(&mut self, bytes: u32) {
        self.fragment = Divisor::new(bytes);
    }

    /// Returns the number of fragments of `bytes`, which must not be 0.
    #[inline]
    pub(super) fn fragments_in(&self, bytes: u32) -> u32 {
        debug_assert!(bytes > 0);
        self.fragment.divide(bytes - 1) + 1
    }

    /// Returns the number of rails that can take fragments. It uses a table because x86-64 has
    /// POPCNT only from microarchitecture level 2 on, and distributions build for level 1.
    #[inline]
    const fn available_rails(&self) -> u32 {
        const ONES: [u8; 1 << MAX_RAILS] = {
            let mut table = [0; 1 << MAX_RAILS];
            let mut set = 0;
            while set < table.len() {
                table[set] = set.count_ones() as u8;
                set += 1;
            }
            table
        };
        ONES[self.available as u8 as usize] as u32
    }

    /// Returns how many of `fragments`, which must not be 0, each rail gets; 0 if no rail can take
    /// any.
    #[inline]
    pub(super) fn share(&self, fragments: u32) -> u32 {
        // ceil(2^32 / n): exact for any count of fragments of at least 128 bytes in 4 GiB (2^25),
        // since 2^25 * n < 2^32.
        const RECIPROCAL: [u64; MAX_RAILS + 1] = {
            let mut table = [0; MAX_RAILS + 1];
            let mut n = 1;
            while n <= MAX_RAILS {
                table[n] = (1u64 << 32).div_ceil(n as u64);
                n += 1;
            }
            table
        };
        debug_assert!(fragments > 0);
        let rails = self.available_rails();
        let sum = u64::from(fragments) + u64::from(rails) - 1;
        ((sum * RECIPROCAL[rails as usize]) >> 32) as u32
    }

    /// Returns whether no rail that can take fragments has more bandwidth than this one. Rails that
    /// take turns count as equal.
    pub(super) fn is_fastest(&self, at: usize) -> bool {
        let Policy::LeastFinishTime(cost) = &self.policy else { return true };
        let available = (0..RAILS).filter(|turn| self.available & 1 << turn != 0);
        available.into_iter().all(|turn| cost[at] <= cost[usize::from(self.order[turn])])
    }

    /// Returns the turns of a new request.
    #[inline]
    pub(super) fn round(&self) -> Round {
        let ahead = self.available & self.ahead;
        // One word holds both halves of the order, so a request carries no further state. That
        // saved 6 of 412 instructions for 1 fragment and 35 of 1398 for 16.
        let left = ahead | (self.available ^ ahead) << MAX_RAILS;
        Round { left: left & self.turns }
    }

    /// Returns the next rail, and the limit of its part of the `left` fragments; `None` if no rail
    /// can take any. `share` is the result of [`share`](Self::share) for the whole request.
    #[inline(always)]
    pub(super) fn next(
        &mut self,
        round: &mut Round,
        left: u32,
        share: u32,
        loads: impl FnOnce() -> [Load; MAX_RAILS],
    ) -> Option<(usize, u32)> {
        if round.left == 0 {
            if self.turns == 0 {
                return self.first_to_finish(left, loads());
            }
            *round = self.round();
            if round.left == 0 {
                return None;
            }
        }
        let turn = round.left.trailing_zeros() & 7;
        round.left &= round.left - 1;
        // The next request starts behind this rail, or with this rail if it is the last of a round
        // and gets less than the others. Otherwise the same rail would get less each time: 16
        // fragments over 3 rails went 6, 6 and 4.
        let here = u32::MAX << turn;
        let gets_less = (left < share) & (round.left == 0);
        self.ahead = if gets_less { here } else { here << 1 };
        Some((self.order[turn as usize] as usize, share.min(left)))
    }

    /// Deals `left` fragments out one by one, each to the rail that would finish it first, and
    /// returns which rail got the first one and how many it got; `None` if no rail can take any.
    #[cold]
    #[inline(never)]
    fn first_to_finish(&self, left: u32, loads: [Load; MAX_RAILS]) -> Option<(usize, u32)> {
        let Policy::LeastFinishTime(cost) = &self.policy else { return None };
        if self.available == 0 {
            return None;
        }
        let fragment = u64::from(self.fragment.divisor);
        // Dealt one by one, because each fragment changes the finish time of its rail.
        let mut dealt = [0u32; RAILS];
        let mut first = None;
        for _ in 0..left {
            let finish = |rail: usize| {
                let bytes = loads[rail].bytes + fragment * (u64::from(dealt[rail]) + 1);
                u128::from(bytes) * u128::from(cost[rail])
            };
            let available = (0..RAILS).filter(|turn| self.available & 1 << turn != 0);
            let open = available
                .map(|turn| self.order[turn] as usize)
                .filter(|rail| dealt[*rail] < loads[*rail].credits);
            let Some(rail) = open.min_by_key(|rail| finish(*rail)) else { break };
            dealt[rail] += 1;
            first = first.or(Some(rail));
        }
        let rail = first.unwrap_or(self.order[self.available.trailing_zeros() as usize] as usize);
        Some((rail, dealt[rail]))
    }

    /// Sets whether the rail with this turn bit can take fragments.
    #[inline]
    pub(super) fn set_available(&mut self, turn_bit: u8, available: bool) {
        self.set_exhausted(turn_bit);
        self.available |= if available { u32::from(turn_bit) } else { 0 };
    }

    /// Notes that the rail with this turn bit has no credits left.
    #[inline]
    pub(super) fn set_exhausted(&mut self, turn_bit: u8) {
        self.available &= !u32::from(turn_bit);
    }

    /// Notes that completions freed credits of the rails with these turn bits; `last` was the last
    /// one.
    #[inline]
    pub(super) fn freed(&mut self, turn_bits: u8, last: u8) {
        self.available |= u32::from(turn_bits);
        self.last_freed_turn = last;
    }

    /// The turn of the rail that was freed last.
    #[inline]
    pub(super) const fn last_freed(&self) -> u8 {
        self.last_freed_turn
    }

    /// Whether the rail with this turn bit can take fragments.
    pub(super) const fn is_available(&self, turn_bit: u8) -> bool {
        self.available & turn_bit as u32 != 0
    }

    /// Makes the rail that was freed last the next one.
    #[inline]
    pub(super) fn prefer_freed(&mut self) {
        // The negative of a single bit is that bit and all above it: the turns from there on.
        self.ahead = u32::from(self.last_freed_turn).wrapping_neg();
    }
}

/// An order of the rails in which devices alternate as far as they can: the first rail of each
/// device, then the second of each, and so on.
fn interleave<Q, const DEPTH: usize, const RAILS: usize>(
    rails: &ArrayVec<Rail<Q, DEPTH>, RAILS>,
) -> ArrayVec<u8, RAILS> {
    let round = |at: usize| rails[..at].iter().filter(|r| r.device == rails[at].device).count();
    let mut order: ArrayVec<u8, RAILS> = (0..rails.len() as u8).collect();
    // With all rails of one device in a row, short requests in succession would share its link.
    order.sort_unstable_by_key(|rail| (round(*rail as usize), *rail));
    debug_assert!(order.iter().all(|rail| rails[*rail as usize].id == RailId::Data(*rail)));
    order
}

/// Division by a number that is known at set-up, as a multiplication.
///
/// With `m = ceil(2^64 / d)`, `m * n >> 64` is `n / d` for all 32-bit n and d > 1 (Lemire,
/// Kaser, Kurz: "Faster remainder by direct computation", 2019).
#[derive(Clone, Copy, Debug)]
struct Divisor {
    divisor: u32,
    reciprocal: u64,
}

impl Divisor {
    const fn new(divisor: u32) -> Self {
        // Only the divisor 1 wraps. No configuration has it: fragments are multiples of 128 bytes.
        Self { divisor, reciprocal: (u64::MAX / divisor as u64).wrapping_add(1) }
    }

    #[inline]
    const fn divide(&self, n: u32) -> u32 {
        ((self.reciprocal as u128 * n as u128) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_do_not_divide_by_rails_leave_no_rail_with_less() {
        const REQUESTS: u32 = 30;
        for (rails, fragments) in [(3u32, 16u32), (3, 2), (4, 5), (4, 16), (7, 16), (2, 1), (5, 7)]
        {
            let order = [0, 1, 2, 3, 4, 5, 6, 7];
            let available = (1 << rails) - 1;
            let mut chooser = Chooser::<8> { available, order, ..Chooser::EMPTY };
            let mut given = [0u32; 8];
            for _ in 0..REQUESTS * rails {
                let mut left = fragments;
                let share = chooser.share(fragments);
                let mut round = chooser.round();
                while let Some(rest) = core::num::NonZeroU32::new(left) {
                    let (rail, most) = chooser
                        .next(&mut round, rest.get(), share, || IDLE)
                        .expect("all are available");
                    given[rail] += most;
                    left -= most;
                }
            }
            let even = REQUESTS * fragments;
            let uneven =
                given[..rails as usize].iter().find(|given| given.abs_diff(even) > 2 * fragments);
            assert_eq!(uneven, None, "{fragments} over {rails}: {given:?}");
        }
    }

    #[test]
    fn the_divisor_divides() {
        for d in [2, 3, 128, 384, 65_536, 65_664, 1 << 20, u32::MAX - 127, u32::MAX] {
            let divisor = Divisor::new(d);
            for n in [0, 1, d - 1, d, d.saturating_add(1), u32::MAX - 1, u32::MAX] {
                assert_eq!(divisor.divide(n), n / d, "{n} / {d}");
            }
        }
    }

    #[test]
    fn shares_cover_everything_and_no_more_than_needed() {
        for rails in 1..=MAX_RAILS as u32 {
            let chooser = Chooser::<8> { available: (1 << rails) - 1, ..Chooser::EMPTY };
            for fragments in (1..100).chain([1 << 25, (1 << 25) - 1]) {
                assert_eq!(chooser.share(fragments), fragments.div_ceil(rails));
            }
        }
    }

    fn next<const RAILS: usize>(
        chooser: &mut Chooser<RAILS>,
        left: u32,
        loads: [Load; MAX_RAILS],
    ) -> Option<(usize, u32)> {
        let mut round = chooser.round();
        chooser.next(&mut round, left, 2, || loads)
    }

    const IDLE: [Load; MAX_RAILS] = [Load { bytes: 0, credits: 99 }; MAX_RAILS];

    #[test]
    fn round_robin_skips_exhausted_rails_and_wraps() {
        let order = [0, 1, 2, 3, 0, 0, 0, 0];
        let mut chooser = Chooser::<4> { available: 0b1011, order, ..Chooser::EMPTY };
        let turns = [(); 5].map(|()| next(&mut chooser, 8, IDLE).unwrap().0);
        assert_eq!(turns, [0, 1, 3, 0, 1]);
        let mut round = chooser.round();
        let turns = [(); 5].map(|()| chooser.next(&mut round, 8, 2, || IDLE).unwrap().0);
        assert_eq!(turns, [3, 0, 1, 3, 0]);
        chooser.freed(1 << 3, 1 << 3);
        chooser.prefer_freed();
        assert_eq!(next(&mut chooser, 1, IDLE), Some((3, 1)));
        chooser.set_exhausted(0b1011);
        assert_eq!(next(&mut chooser, 1, IDLE), None);
    }

    #[test]
    fn least_finish_time_deals_by_bandwidth_and_load() {
        let chooser = Chooser::<2> {
            available: 0b11,
            order: [0, 1, 0, 0, 0, 0, 0, 0],
            fragment: Divisor::new(1024),
            policy: Policy::LeastFinishTime([1, 3]),
            turns: 0,
            ..Chooser::EMPTY
        };
        // Rail 0 is three times as fast: it gets three of four.
        assert_eq!(next(&mut { chooser }, 4, IDLE), Some((0, 3)));
        let mut busy = IDLE;
        busy[0].bytes = 1 << 20;
        assert_eq!(next(&mut { chooser }, 4, busy), Some((1, 4)));
        busy[1].credits = 2;
        assert_eq!(next(&mut { chooser }, 4, busy), Some((1, 2)));
        // Of idle rails the fastest gets a single fragment, whosever turn it is.
        let policy = Policy::LeastFinishTime([3, 1]);
        assert_eq!(next(&mut Chooser { policy, ..chooser }, 1, IDLE), Some((1, 1)));
    }
}
