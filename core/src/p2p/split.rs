//! Which rail carries which part of a buffer.
//!
//! The split is decided when the message is sent, from the rails that are in service and have
//! credits at that moment, and from their outstanding bytes. Parts follow each other in the order
//! of rails, and begin at multiples of 128 bytes.

use super::immediate::SIZE_UNIT;
use super::mask::Mask;
use crate::rail::MAX_RAILS;

/// How messages above the threshold are divided among rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitPolicy {
    /// Each rail carries the same number of 128-byte blocks, or one more.
    #[default]
    Even,
    /// In proportion to weights. A rail of weight 0 carries messages only if it is the only one.
    Weighted {
        /// Weight of each rail. Only the ratios matter.
        weights: [u32; MAX_RAILS],
    },
    /// All rails finish at the same time, their outstanding bytes included: a busy rail gets less,
    /// or nothing.
    LeastFinishTime {
        /// Bandwidth of each rail in Mbit/s, of which only the ratios matter.
        bandwidth_mbps: [u32; MAX_RAILS],
    },
}

/// `FROM[r][p]` has all bits set if place `p` is at or behind rail `r`.
// A table of masks sets eight ends without a branch.
const FROM: [[u32; MAX_RAILS]; MAX_RAILS] = {
    let mut from = [[0; MAX_RAILS]; MAX_RAILS];
    let mut at = 0;
    while at < MAX_RAILS * MAX_RAILS {
        let (rail, place) = (at / MAX_RAILS, at % MAX_RAILS);
        from[rail][place] = if place < rail { 0 } else { u32::MAX };
        at += 1;
    }
    from
};

/// Which rail carries which part of one buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// End of each rail's part. The part begins at the end of the previous rail's part.
    // Ends alone say both where a part begins and how long it is, at half the size.
    ends: [u32; MAX_RAILS],
}

impl Parts {
    /// No bytes for any rail.
    pub(crate) const NONE: Self = Self { ends: [0; MAX_RAILS] };

    /// All of it on one rail.
    #[inline]
    pub(crate) fn whole(rail: u8, bytes: u32) -> Self {
        Self { ends: FROM[usize::from(rail) % MAX_RAILS].map(|is_behind| is_behind & bytes) }
    }

    /// The first byte and the length of a rail's part.
    #[inline]
    pub fn part(&self, rail: u8) -> (u32, u32) {
        let at = usize::from(rail);
        let end = self.ends.get(at).copied().unwrap_or_default();
        let start = if at == 0 { 0 } else { self.ends.get(at - 1).copied().unwrap_or(end) };
        (start, end - start)
    }

    /// The rails that carry a byte.
    pub fn mask(&self) -> Mask {
        let carries = |rail: &u8| self.part(*rail).1 > 0;
        (0..MAX_RAILS as u8).filter(carries).fold(Mask::EMPTY, |mask, rail| mask | Mask::of(rail))
    }
}

/// Iterates over the parts of an even split, in the order of the rails: each part has the same
/// number of blocks, and the first ones have one more. Each part follows from the previous one, so
/// no part has to be stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvenParts {
    /// Blocks of a part, and the number of the next parts that have one block more.
    each: u32,
    more: u32,
    /// First byte of the next part, and the number of bytes from there on.
    offset: u32,
    left: u32,
}

impl EvenParts {
    /// Returns the parts of `bytes` for these rails, at least two, and the rails that carry a part.
    #[inline]
    pub(super) fn new(bytes: u32, available: Mask) -> (Self, Mask) {
        let blocks = bytes.div_ceil(SIZE_UNIT);
        let rails = available.count();
        // A rail without a byte would still cost a request and a receive.
        let carriers = if blocks < rails { available.lowest(blocks) } else { available };
        let (each, more) = (blocks / rails, blocks % rails);
        (Self { each, more, offset: 0, left: bytes }, carriers)
    }

    /// Returns the first byte and the length of the part of a rail in `carriers`.
    pub(super) fn part(bytes: u32, carriers: Mask, rail: u8) -> (u32, u32) {
        if carriers == Mask::of(rail) {
            return (0, bytes);
        }
        // The mask and the length determine every part again, so a message stores none.
        let (mut parts, _) = Self::new(bytes, carriers);
        { carriers }.take_while(|before| *before < rail).for_each(|_| _ = parts.next());
        parts.next()
    }

    /// Returns the first byte and the length of the next part.
    #[inline]
    pub(super) fn next(&mut self) -> (u32, u32) {
        let more = u32::from(self.more > 0);
        self.more -= more;
        // No overflow: with at least two parts, each is at most half of 4 GiB and one block.
        let length = ((self.each + more) * SIZE_UNIT).min(self.left);
        let offset = self.offset;
        self.offset += length;
        self.left -= length;
        (offset, length)
    }
}

/// Splits buffers of one sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    policy: SplitPolicy,
    /// Buffers up to this many bytes go over one rail.
    threshold: u32,
    /// The rail of the last turn.
    turn: u8,
}

impl Split {
    pub(crate) const fn new(policy: SplitPolicy, threshold: u32) -> Self {
        // The first turn is then that of rail 0.
        Self { policy, threshold, turn: MAX_RAILS as u8 - 1 }
    }

    pub(crate) const fn set_policy(&mut self, policy: SplitPolicy) {
        self.policy = policy;
    }

    /// Returns the parts of a buffer that is split evenly, and the rails that carry one; `None` if
    /// the buffer is not split, or by another policy.
    #[inline]
    pub(crate) fn evenly(&self, bytes: u32, available: Mask) -> Option<(EvenParts, Mask)> {
        let is_even = self.policy == SplitPolicy::Even;
        (is_even && bytes > self.threshold && available.count() > 1)
            .then(|| EvenParts::new(bytes, available))
    }

    /// Splits a buffer over the available rails, at least one, and returns the rails that carry a
    /// byte. `outstanding` is the outstanding bytes of each rail.
    #[inline]
    pub(crate) fn split(
        &mut self,
        bytes: u32,
        available: Mask,
        outstanding: &[u64; MAX_RAILS],
    ) -> (Parts, Mask) {
        if bytes > self.threshold && available.count() > 1 {
            return self.divide(bytes, available, outstanding);
        }
        let rail = self.one(available, outstanding);
        let mask = if bytes == 0 { Mask::EMPTY } else { Mask::of(rail) };
        (Parts::whole(rail, bytes), mask)
    }

    fn divide(&self, bytes: u32, available: Mask, outstanding: &[u64; MAX_RAILS]) -> (Parts, Mask) {
        match &self.policy {
            SplitPolicy::Even => even(bytes, available),
            SplitPolicy::Weighted { weights } => {
                // In 128 bits: the shares of the least finish time add up to at most 2^102, and
                // times 2^25 blocks to 2^127.
                let shares = weights.map(u128::from);
                // With no weight among the available rails, their bytes still have to go somewhere.
                by_shares(bytes, available, &shares).unwrap_or_else(|| even(bytes, available))
            }
            SplitPolicy::LeastFinishTime { bandwidth_mbps } => {
                let shares = finish_together(bytes, available, outstanding, bandwidth_mbps);
                by_shares(bytes, available, &shares).unwrap_or_else(|| even(bytes, available))
            }
        }
    }

    /// Returns the rail for a message that is not split: the next in turn, or the first to finish.
    #[inline]
    pub(crate) fn one(&mut self, available: Mask, outstanding: &[u64; MAX_RAILS]) -> u8 {
        self.turn = match available.leader() {
            // A single rail needs no choice, whatever the policy.
            Some(rail) if available == Mask::of(rail) => rail,
            _ => self.choose(available, outstanding),
        };
        self.turn
    }

    /// Chooses one of several available rails.
    fn choose(&self, available: Mask, outstanding: &[u64; MAX_RAILS]) -> u8 {
        let behind = Mask::from_bits(available.bits() & !Mask::first(self.turn + 1).bits());
        let next = behind.leader().or(available.leader()).unwrap_or_default();
        match &self.policy {
            SplitPolicy::Even => next,
            SplitPolicy::Weighted { weights } => {
                let has_weight = |rail: &u8| weights[usize::from(*rail)] > 0;
                behind.chain(available).find(has_weight).unwrap_or(next)
            }
            SplitPolicy::LeastFinishTime { bandwidth_mbps } => {
                // Candidates are listed in turn order, and `min_by_key` returns the first minimum,
                // so equally loaded rails take turns.
                let finish = |rail: &u8| {
                    let at = usize::from(*rail);
                    // The caller's bandwidth may be 0, by which nothing can be divided.
                    let bandwidth = u128::from(bandwidth_mbps[at].max(1));
                    (u128::from(outstanding[at]) << 32) / bandwidth
                };
                behind.chain(available).min_by_key(finish).unwrap_or(next)
            }
        }
    }
}

/// Splits into the same number of blocks for each rail, with one more for the first rails.
fn even(bytes: u32, available: Mask) -> (Parts, Mask) {
    let (mut parts, carriers) = EvenParts::new(bytes, available);
    let mut last = 0;
    let ends = core::array::from_fn(|rail| {
        if carriers.contains(rail as u8) {
            let (offset, length) = parts.next();
            last = offset + length;
        }
        last
    });
    (Parts { ends }, carriers)
}

/// Splits in proportion to `shares`; `None` if all shares of available rails are 0.
fn by_shares(bytes: u32, available: Mask, shares: &[u128; MAX_RAILS]) -> Option<(Parts, Mask)> {
    let sum: u128 = available.map(|rail| shares[usize::from(rail)]).sum();
    if sum == 0 {
        return None;
    }
    let blocks = u128::from(bytes.div_ceil(SIZE_UNIT));
    let mut before = 0;
    Some(build(bytes, available, |rail| {
        before += shares[usize::from(rail)];
        // The end is rounded and not the length, so errors do not add up and the last part ends
        // with the buffer.
        (blocks * before / sum) as u32
    }))
}

/// Builds the parts whose end blocks `end` returns, rail by rail, and the rails that carry a byte.
fn build(bytes: u32, available: Mask, mut end: impl FnMut(u8) -> u32) -> (Parts, Mask) {
    // Rails behind the last available one begin and end at the end of the buffer.
    let mut parts = Parts { ends: [bytes; MAX_RAILS] };
    let mut carriers = Mask::EMPTY;
    let mut last = 0;
    for (rail, place) in (0..available.rails_up_to_last()).zip(&mut parts.ends) {
        if available.contains(rail) {
            // The last block may be short, and the end of 4 GiB in whole blocks exceeds 32 bits.
            let end = end(rail).saturating_mul(SIZE_UNIT).min(bytes);
            carriers |= if end > last { Mask::of(rail) } else { Mask::EMPTY };
            last = end;
        }
        *place = last;
    }
    debug_assert_eq!(last, bytes, "every byte has a rail");
    (parts, carriers)
}

/// Returns shares, of which only the ratios matter, such that all rails finish at the same time.
/// Rails that finish later in any case get nothing.
fn finish_together(
    bytes: u32,
    available: Mask,
    outstanding: &[u64; MAX_RAILS],
    bandwidth: &[u32; MAX_RAILS],
) -> [u128; MAX_RAILS] {
    let mut shares = [0; MAX_RAILS];
    let mut chosen = available;
    loop {
        // All chosen rails finish at `load / speed`. A rail whose outstanding bytes take longer
        // than that is removed, which lowers the load of the others, so the search repeats. It ends
        // after at most one round for each rail.
        let load: u128 = chosen.map(|rail| u128::from(outstanding[usize::from(rail)])).sum();
        let load = load + u128::from(bytes);
        let speed: u128 = chosen.map(|rail| u128::from(bandwidth[usize::from(rail)])).sum();
        let rest = |rail: u8| {
            let at = usize::from(rail);
            (u128::from(bandwidth[at]) * load).checked_sub(u128::from(outstanding[at]) * speed)
        };
        let late = chosen.filter(|rail| rest(*rail).is_none());
        let kept = late.fold(chosen, Mask::without);
        if kept == chosen {
            chosen.for_each(|rail| shares[usize::from(rail)] = rest(rail).unwrap_or_default());
            return shares;
        }
        chosen = kept;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    const ALL: Mask = Mask::first(MAX_RAILS as u8);
    const IDLE: [u64; MAX_RAILS] = [0; MAX_RAILS];
    const KIB: u32 = 1024;

    fn lengths(parts: &Parts) -> Vec<u32> {
        (0..MAX_RAILS as u8).map(|rail| parts.part(rail).1).collect()
    }

    fn weights(first: &[u32]) -> [u32; MAX_RAILS] {
        let mut weights = [0; MAX_RAILS];
        weights[..first.len()].copy_from_slice(first);
        weights
    }

    fn policies() -> [SplitPolicy; 3] {
        let weights = [1, 2, 3, 0, 5, 1000, 7, u32::MAX];
        let bandwidth_mbps = [100, 200, 400, 1, 50, 100, 0, u32::MAX];
        let least = SplitPolicy::LeastFinishTime { bandwidth_mbps };
        [SplitPolicy::Even, SplitPolicy::Weighted { weights }, least]
    }

    #[test]
    fn parts_follow_each_other_at_multiples_of_128_bytes_on_available_rails_only() {
        let busy = [0, 1 << 20, 64, u64::from(u32::MAX), 0, 9999, 5, 1 << 40];
        for policy in policies() {
            let mut split = Split::new(policy, 1000);
            for bits in 1..=u8::MAX {
                let available = Mask::from_bits(bits);
                for bytes in [0, 1, 127, 128, 129, 1000, 1001, 1 << 20, (1 << 30) + 1, u32::MAX] {
                    for outstanding in [IDLE, busy] {
                        let (parts, mask) = split.split(bytes, available, &outstanding);
                        assert_eq!(parts.mask(), mask);
                        let mut end = 0;
                        for rail in 0..MAX_RAILS as u8 {
                            let (offset, length) = parts.part(rail);
                            assert_eq!(offset, end, "{parts:?}");
                            assert!(length == 0 || offset.is_multiple_of(SIZE_UNIT));
                            assert!(length == 0 || available.contains(rail));
                            end += length;
                        }
                        assert_eq!(end, bytes);
                        assert!(parts.mask().eq(parts.mask() & available));
                        assert!(bytes > 1000 || parts.mask().count() <= 1);
                    }
                }
            }
        }
    }

    #[test]
    fn even_parts_differ_by_one_block_at_most() {
        let mut split = Split::new(SplitPolicy::Even, 0);
        let (parts, _) = split.split(1 << 20, Mask::first(4), &IDLE);
        assert_eq!(lengths(&parts), [256 * KIB, 256 * KIB, 256 * KIB, 256 * KIB, 0, 0, 0, 0]);
        let (parts, _) = split.split(128 * 4 + 1, Mask::from_bits(0b1011), &IDLE);
        assert_eq!(lengths(&parts), [256, 256, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn weighted_parts_are_in_proportion() {
        let policy = SplitPolicy::Weighted { weights: weights(&[1, 3, 0]) };
        let mut split = Split::new(policy, 0);
        let (parts, _) = split.split(4 * KIB, Mask::first(3), &IDLE);
        assert_eq!(lengths(&parts), [KIB, 3 * KIB, 0, 0, 0, 0, 0, 0]);
        let (alone, _) = split.split(4 * KIB, Mask::of(2), &IDLE);
        assert_eq!(alone.part(2), (0, 4 * KIB), "a rail of weight 0 that is alone");
        let (without, _) = split.split(4 * KIB, Mask::of(2) | Mask::of(3), &IDLE);
        assert_eq!(without.mask().count(), 2, "nobody has a weight");
    }

    #[test]
    fn least_finish_time_levels_what_is_outstanding() {
        let bandwidth_mbps = weights(&[100, 100, 200]);
        let mut split = Split::new(SplitPolicy::LeastFinishTime { bandwidth_mbps }, 0);
        let three = Mask::first(3);
        let (parts, _) = split.split(4 * KIB, three, &IDLE);
        assert_eq!(lengths(&parts)[..3], [KIB, KIB, 2 * KIB]);
        let mut outstanding = IDLE;
        outstanding[0] = 1 << 30;
        let (parts, _) = split.split(3 * KIB, three, &outstanding);
        assert_eq!(lengths(&parts)[..3], [0, KIB, 2 * KIB]);
        outstanding[0] = u64::from(KIB);
        let (parts, _) = split.split(7 * KIB, three, &outstanding);
        assert_eq!(lengths(&parts)[..3], [KIB, 2 * KIB, 4 * KIB]);
    }

    #[test]
    fn below_the_threshold_rails_take_turns() {
        let mut split = Split::new(SplitPolicy::Even, 64 * KIB);
        let available = Mask::from_bits(0b1011);
        let rails = (0..5).map(|_| split.split(64 * KIB, available, &IDLE).1);
        assert!(rails.eq([0, 1, 3, 0, 1].map(Mask::of)));
        let (parts, _) = split.split(64 * KIB + 1, available, &IDLE);
        assert_eq!(parts.mask(), available);
        assert_eq!(split.one(Mask::of(5), &IDLE), 5, "the only one there is");
    }

    #[test]
    fn below_the_threshold_the_rail_that_is_done_first_is_taken() {
        let bandwidth_mbps = weights(&[100, 100, 200]);
        let policy = SplitPolicy::LeastFinishTime { bandwidth_mbps };
        let mut split = Split::new(policy, 64 * KIB);
        let mut outstanding = IDLE;
        outstanding[..3].copy_from_slice(&[100, 300, 199]);
        assert_eq!(split.one(Mask::first(3), &outstanding), 2);
        assert_eq!(split.one(Mask::first(2), &outstanding), 0);
        assert_eq!([0; 4].map(|_| split.one(Mask::first(3), &IDLE)), [1, 2, 0, 1], "in turn");
        let mut weighted = Split::new(SplitPolicy::Weighted { weights: weights(&[0, 1]) }, 128);
        assert_eq!([0; 2].map(|_| weighted.one(Mask::first(2), &IDLE)), [1, 1]);
    }

    #[test]
    fn all_rails_are_available_and_take_turns() {
        let mut split = Split::new(SplitPolicy::Even, 128);
        let rails = (0..9).map(|_| split.one(ALL, &IDLE));
        assert!(rails.eq([0, 1, 2, 3, 4, 5, 6, 7, 0]));
    }

    #[test]
    fn parts_follow_each_other_and_each_is_found_again() {
        for bits in 1..=u8::MAX {
            let available = Mask::from_bits(bits);
            for bytes in [1, 128, 129, 300, 128 * 7, 128 * 8 + 1, (1 << 20) + 77, u32::MAX] {
                let Some(rail) = available.leader().filter(|_| available.count() == 1) else {
                    follow_each_other(bytes, available);
                    continue;
                };
                assert_eq!(EvenParts::part(bytes, available, rail), (0, bytes));
            }
        }
    }

    fn follow_each_other(bytes: u32, available: Mask) {
        let (mut parts, carriers) = EvenParts::new(bytes, available);
        let blocks = bytes.div_ceil(SIZE_UNIT);
        assert_eq!(carriers.count(), available.count().min(blocks));
        let (mut end, mut longest) = (0, u32::MAX);
        for rail in carriers {
            let (offset, length) = parts.next();
            assert_eq!(EvenParts::part(bytes, carriers, rail), (offset, length));
            assert!(offset == end && offset.is_multiple_of(SIZE_UNIT));
            assert!(length > 0 && length <= longest && available.contains(rail));
            (end, longest) = (end + length, length);
        }
        assert_eq!(end, bytes);
        // The last one alone need not be of whole blocks.
        assert!(blocks / available.count() <= longest.div_ceil(SIZE_UNIT));
    }
}
