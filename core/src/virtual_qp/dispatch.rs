//! Step 2: requests go to the rails, oldest first, in batches of fragments.

use super::choose::{Chooser, Load};
use super::keys::Keys;
use super::parts::front_bytes;
use super::qp::VirtualQp;
use super::scheme::dqplb::SendNumbers;
use super::scheme::{Numbering, Unnumbered};
use super::slot::{SendSlot, SlotState};
use crate::hardware::{QueuePair, Refusal, SendBatch, Taken};
use crate::rail::tag::Tag;
use crate::rail::{Batch, Content, MAX_RAILS, PhysicalRail, Rail, RailError};
use crate::verbs::{Imm, SendFlags, SendRequest, Sge};

/// How far the dispatch of one request got.
#[derive(Debug)]
pub(super) enum Progress {
    /// All of the request is posted.
    Posted,
    /// The request has no fragments.
    Nothing,
    /// The rest waits for a completion.
    Waits,
    /// A driver refused the request for good; fragments that it accepted before stay posted.
    Refused(RailError),
    /// The virtual queue pair failed: what was not posted is cancelled.
    Failed,
}

/// A batch of which a driver accepted nothing or only the front.
pub(super) struct Truncated {
    /// Its rail.
    pub(super) at: usize,
    /// Requests in it.
    pub(super) count: u32,
    /// Requests that the driver accepted.
    pub(super) taken: u32,
    pub(super) refusal: Refusal,
}

/// The fragments of a batch that a driver is to be offered.
#[derive(Clone, Copy)]
pub(super) struct Offered<N: Numbering> {
    /// How many, at least 1.
    pub(super) count: u32,
    /// First byte of them within the request.
    pub(super) offset: u32,
    /// Bytes of the last one; the others are full.
    pub(super) last_length: u32,
    /// Tag and number of the first one.
    pub(super) tag: Tag,
    pub(super) number: N::Number,
    /// The request ends with them.
    pub(super) is_end: bool,
}

impl<N: Numbering> Offered<N> {
    /// Returns the fragments of `batch` from `index` on, the first with `tag`.
    fn rest<const RAILS: usize>(
        batch: &Batch,
        index: u32,
        tag: Tag,
        slot: &SendSlot<RAILS>,
        size: u32,
    ) -> Self {
        let count = u32::from(batch.count);
        let end = batch.offset + batch.length;
        Self {
            count: count - index,
            offset: batch.offset + index * size,
            // Only the last fragment of a batch can be shorter than the others.
            last_length: batch.length - (count - 1) * size,
            tag,
            number: N::number_of(batch, index),
            is_end: end == slot.local.length(),
        }
    }
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Posts the requests that wait for rails, oldest first, until one has to wait.
    pub(super) fn dispatch_pending(&mut self) {
        self.chooser.prefer_freed();
        while let Some(id) = self.sends.front_pending() {
            match self.dispatch(id) {
                Progress::Posted | Progress::Nothing => self.sends.pop_pending(),
                Progress::Waits | Progress::Failed => return,
                Progress::Refused(error) => return self.request_refused(id, error),
            }
        }
    }

    /// Posts as much as it can of the front pending request.
    #[inline(never)]
    pub(super) fn dispatch(&mut self, id: u64) -> Progress {
        let slot = self.sends.slot(id);
        const NO_FRAGMENTS: SlotState = SlotState::PASS_THROUGH
            .union(SlotState::NO_DATA)
            .union(SlotState::PART)
            .union(SlotState::TAKEN_BACK);
        if slot.state.intersects(NO_FRAGMENTS) {
            return if self.waits_for_fence(id) { Progress::Waits } else { Progress::Nothing };
        }
        // Apart from `dispatch_now`, so that requests without a list carry no code for lists.
        if slot.state.contains(SlotState::LISTED) {
            return self.dispatch_listed(id);
        }
        self.dispatch_now(id)
    }

    /// [`dispatch`](Self::dispatch) of fragments, in line with the post: the fast path.
    #[inline(always)]
    pub(super) fn dispatch_now(&mut self, id: u64) -> Progress {
        let slot = self.sends.slot(id);
        if slot.is_fenced() && !self.passes_fence(id) {
            return Progress::Waits;
        }
        // Disjoint fields, because a batch borrows its rail while slot and numbers are in use.
        let Self { rails, sends, chooser, scheme, config, pass_through, .. } = self;
        let size = config.max_msg_size;
        let oldest_in_flight = sends.front_in_flight();
        let slot = sends.slot(id);
        // A single fragment needs no division and no shares, which saves a sixth of the work of a
        // small request.
        let one = slot.unposted() <= size;
        let result = if slot.is_numbered() {
            let pass_through_ahead = pass_through.is_ahead_of(id);
            let numbers = scheme.numbers_for(slot, oldest_in_flight, pass_through_ahead);
            let Some(numbers) = numbers else { return Progress::Waits };
            match one {
                true => dispatch_fragments::<true, _, Q, RAILS, DEPTH>(
                    rails,
                    chooser,
                    slot,
                    numbers,
                    size,
                    id,
                    post_fragments,
                ),
                false => dispatch_fragments::<false, _, Q, RAILS, DEPTH>(
                    rails,
                    chooser,
                    slot,
                    numbers,
                    size,
                    id,
                    post_fragments,
                ),
            }
        } else {
            let none = &mut Unnumbered;
            match one {
                true => dispatch_fragments::<true, _, Q, RAILS, DEPTH>(
                    rails,
                    chooser,
                    slot,
                    none,
                    size,
                    id,
                    post_fragments,
                ),
                false => dispatch_fragments::<false, _, Q, RAILS, DEPTH>(
                    rails,
                    chooser,
                    slot,
                    none,
                    size,
                    id,
                    post_fragments,
                ),
            }
        };
        match result {
            Ok(true) => {
                scheme.dispatched(id, slot);
                Progress::Posted
            }
            Ok(false) => Progress::Waits,
            Err(truncated) => self.taken_in_part(&truncated),
        }
    }

    /// Returns whether the front pending request, which has no fragments to post, waits for its
    /// fence. Only a request without data can: a pass-through request is posted in its own turn.
    #[cold]
    #[inline(never)]
    fn waits_for_fence(&mut self, id: u64) -> bool {
        let slot = self.sends.slot(id);
        if slot.state.contains(SlotState::TAKEN_BACK) {
            self.pass_taken_back(id);
            return false;
        }
        slot.state.contains(SlotState::NO_DATA) && slot.is_fenced() && !self.passes_fence(id)
    }

    /// Returns whether all requests before the front pending request are complete.
    ///
    /// A fence on one rail says nothing about the others, so the request itself waits.
    #[cold]
    pub(super) fn passes_fence(&mut self, id: u64) -> bool {
        let on_rail_0 = &self.rails[0].sends;
        let next = on_rail_0.next_number();
        let oldest = on_rail_0.oldest_request();
        let passes = self.pass_through.passes_fence(id, next, oldest)
            && self.is_acknowledged_before(id)
            && self.sends.front_in_flight().is_none();
        if passes {
            // Removed for good: requests that are posted while this one waits for credits are
            // behind it, and must not hold it back again.
            self.sends.slot(id).flags.remove(SendFlags::FENCE);
            self.pass_through.forget_fence();
        }
        passes
    }

    /// Handles a driver that accepted nothing or only the front of a batch of fragments.
    ///
    /// What it took has no signaled request behind it, so the rest of the batch goes to the same
    /// rail as soon as it takes it, before anything else. Numbers are used up with the first
    /// request taken.
    #[cold]
    pub(super) fn taken_in_part(&mut self, truncated: &Truncated) -> Progress {
        let Truncated { at, count, taken, refusal } = *truncated;
        let rail = &mut self.rails[at];
        let batch = rail.sends.truncate(count, taken);
        let id = batch.wr;
        let rail = rail.id;
        let slot = self.sends.slot(id);
        if taken == 0 {
            // The batch is gone from the rail, so its bytes may go to any rail, with new numbers.
            slot.offset -= batch.length;
            slot.batches_in_flight -= 1;
            if slot.is_numbered() {
                // The receiver waits for every number: one that is never sent would hold back all
                // notifications behind it.
                self.scheme.take_back_numbers(count);
            }
        }
        // An empty fragment has no bytes left in any case, so `taken` decides.
        let all = taken > 0 && slot.unposted() == 0;
        let offset = batch.offset + front_bytes(&self.sends, &batch, taken, self.cut());
        self.offers.sends.insert(rail);
        self.update_availability(at);
        if let Refusal::Driver(errno) = refusal {
            let error = self.rails[at].refusal_error(errno, offset);
            if !self.survives(&error) {
                return Progress::Refused(error);
            }
            self.rail_failed(error);
            if self.health.failed {
                return Progress::Failed;
            }
        }
        if !all {
            // Other rails may have credits for the rest.
            return self.dispatch(id);
        }
        self.scheme.dispatched(id, self.sends.slot(id));
        Progress::Posted
    }

    /// Checks what must hold between slots, batches and rails.
    pub(super) fn dispatch_invariants(&self) {
        let mut in_flight = 0;
        let sends = || self.all_rails().map(|rail| &rail.sends);
        let lost = sends().flat_map(|sends| sends.lost_batches());
        for batch in sends().flat_map(|sends| sends.iter()).chain(lost) {
            let is_counted = matches!(batch.content, Content::WithNotify | Content::Gap);
            if batch.content.is_fragments() || is_counted {
                let slot = self.sends.find(batch.wr).expect("a request in flight is alive");
                assert!(slot.batches_in_flight > 0);
                in_flight += 1;
            }
        }
        let has_failed = |slot: &SendSlot<RAILS>| {
            !slot.final_status().is_success() && !slot.state.contains(SlotState::TAKEN_BACK)
        };
        let failed = self.sends.iter().any(has_failed);
        let alone = failed && !self.health.failed;
        assert!(!alone, "no request fails alone: its receiver could be told of it");
        let batches: u32 = self.sends.iter().map(|slot| slot.batches_in_flight).sum();
        assert_eq!(batches, in_flight, "slots count the batches in flight");
        for (at, rail) in self.rails.iter().enumerate() {
            let carries = rail.is_in_service() && !rail.sends.has_lost();
            assert_eq!(rail.carries, carries, "rail {at} carries");
            assert_eq!(rail.accepts(), self.may_accept(at), "rail {at} accepts");
            let available = rail.accepts() && rail.sends.credits() > 0;
            let known = self.chooser.is_available(rail.turn_bit);
            assert_eq!(known, available, "the chooser knows rail {at}");
            assert!(!(rail.accepts() && self.is_standing_by(at)), "rail {at} stands by");
        }
    }
}

/// Splits the request into one share for each rail that has credits. Returns whether all of it is
/// with the rails. `ONE`: at most one fragment is left. `post` posts a share to its rail.
#[inline(always)]
pub(super) fn dispatch_fragments<
    const ONE: bool,
    N: Numbering,
    Q: QueuePair,
    const RAILS: usize,
    const DEPTH: usize,
>(
    rails: &mut [Rail<Q, DEPTH>],
    chooser: &mut Chooser<RAILS>,
    slot: &mut SendSlot<RAILS>,
    numbers: &mut N,
    size: u32,
    id: u64,
    mut post: impl FnMut(&mut Rail<Q, DEPTH>, &SendSlot<RAILS>, Offered<N>, u32) -> Taken,
) -> Result<bool, Truncated> {
    let all = if ONE { 1 } else { chooser.fragments_in(slot.unposted()) };
    let share = if ONE { 1 } else { chooser.share(all) };
    // DQPLB may have numbers for a part only; the rest of the request waits.
    let mut left = numbers.room(all, || unacknowledged(rails));
    let without_number = all - left;
    let mut round = chooser.round();
    while left > 0 {
        let Some((at, most)) = chooser.next(&mut round, left, share, || load(rails)) else { break };
        let rail = &mut rails[at];
        let count = if ONE { 1 } else { most.min(rail.sends.credits()) };
        left -= count;
        let offset = slot.offset;
        let is_end = ONE || left + without_number == 0;
        // All fragments but the last one of a request are full.
        let before_last = (count - 1) * size;
        let last_length = if is_end { slot.unposted() - before_last } else { size };
        let length = before_last + last_length;
        let number = numbers.take(count);
        let remembered = N::remembered(number);
        let batch = Batch::fragments(id, N::CONTENT, offset, length, remembered, count);
        // Recorded before the post, so that nothing has to survive the driver's call. That kept
        // the state in registers, and saved 5% of the instructions over several rails.
        let tag = rail.sends.push(batch);
        if rail.sends.credits() == 0 {
            chooser.set_exhausted(rail.turn_bit);
        }
        slot.offset = offset + length;
        slot.batches_in_flight += 1;
        let offered = Offered { count, offset, last_length, tag, number, is_end };
        let taken = post(rail, slot, offered, size);
        if let Some(refusal) = taken.refusal {
            return Err(Truncated { at, count, taken: taken.count, refusal });
        }
        if is_end {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns a function that makes the requests of a batch of fragments, from the values that differ
/// between them.
#[inline(always)]
pub(super) fn fragment_request<N: Numbering, const RAILS: usize>(
    slot: &SendSlot<RAILS>,
    keys: Keys,
    tag: Tag,
    flags: SendFlags,
) -> impl Fn(Imm, Sge, u64) -> SendRequest {
    let opcode = N::opcode(slot);
    move |imm, sge, remote_addr| SendRequest {
        wr_id: tag.wr_id(),
        opcode,
        flags,
        imm,
        sge,
        remote_addr,
        rkey: keys.rkey,
        compare_add: 0,
        swap: 0,
    }
}

/// Posts fragments of a request to one rail. All but the last one of a request are `size` bytes
/// long.
#[inline(always)]
fn post_fragments<N: Numbering, Q: QueuePair, const RAILS: usize, const DEPTH: usize>(
    rail: &mut Rail<Q, DEPTH>,
    slot: &SendSlot<RAILS>,
    offered: Offered<N>,
    size: u32,
) -> Taken {
    let count = offered.count;
    let mut sends = rail.qp.start_send();
    add_fragments::<N, _, RAILS>(&mut sends, rail.keys_at, slot, offered, size);
    Taken::of(count, sends.commit())
}

/// Adds fragments of a request to the batch of a driver, with the keys at `keys_at`.
#[inline(always)]
pub(super) fn add_fragments<N: Numbering, B: SendBatch, const RAILS: usize>(
    sends: &mut B,
    keys_at: u8,
    slot: &SendSlot<RAILS>,
    offered: Offered<N>,
    size: u32,
) {
    let Offered { count, offset, last_length, mut tag, mut number, is_end } = offered;
    let keys = slot.keys[keys_at as usize];
    let inner_flags = N::inner_flags(slot);
    // Built as if all fragments were full; the last one is cut to its length below.
    let mut sge = slot.local.part(offset, 0).sge(keys.lkey).behind(size);
    let mut remote_addr = slot.remote_addr + u64::from(offset);
    for _ in 1..count {
        let request = fragment_request::<N, RAILS>(slot, keys, tag, inner_flags);
        sends.add(&request(N::imm(number, false), sge, remote_addr));
        sge = sge.behind(size);
        tag = tag.next_of_batch();
        number = N::after(number);
        remote_addr += u64::from(size);
    }
    let sge = sge.first(last_length);
    // Only the last request of a batch is signaled. A reliable connection completes requests in
    // order, so its completion retires the batch (architecture.md, "Rails and batches").
    let flags = if is_end { slot.last_flags } else { inner_flags }.union(SendFlags::SIGNALED);
    let request = fragment_request::<N, RAILS>(slot, keys, tag.last(), flags);
    sends.add(&request(N::imm(number, is_end), sge, remote_addr));
}

/// Posts the fragments of a batch from `index` on, the first of them under `tag`.
pub(super) fn post_rest<Q: QueuePair, const RAILS: usize, const DEPTH: usize>(
    rail: &mut Rail<Q, DEPTH>,
    slot: &SendSlot<RAILS>,
    batch: &Batch,
    index: u32,
    tag: Tag,
    size: u32,
) -> Taken {
    if slot.is_numbered() {
        let rest = Offered::<SendNumbers>::rest(batch, index, tag, slot, size);
        post_fragments::<_, Q, RAILS, DEPTH>(rail, slot, rest, size)
    } else {
        let rest = Offered::<Unnumbered>::rest(batch, index, tag, slot, size);
        post_fragments::<_, Q, RAILS, DEPTH>(rail, slot, rest, size)
    }
}

/// Posts the numbers of a batch from `index` on, the first of them under `tag`, without their data.
#[cold]
pub(super) fn post_gap<Q: QueuePair, const RAILS: usize, const DEPTH: usize>(
    rail: &mut Rail<Q, DEPTH>,
    slot: &SendSlot<RAILS>,
    batch: &Batch,
    index: u32,
    mut tag: Tag,
) -> Taken {
    let count = u32::from(batch.count) - index;
    let keys = slot.keys[usize::from(rail.keys_at)];
    let mut number = SendNumbers::number_of(batch, index);
    let mut sends = rail.qp.start_send();
    for left in (0..count).rev() {
        let is_last = left == 0;
        let own_tag = if is_last { tag.last() } else { tag };
        // The number that arrives last may complete a request that wakes its receiver.
        let mut flags = SendNumbers::inner_flags(slot);
        flags.set(SendFlags::SIGNALED, is_last);
        let request = fragment_request::<SendNumbers, RAILS>(slot, keys, own_tag, flags);
        // Never the mark of the last one: it would notify the peer of a request that is not there.
        sends.add(&request(SendNumbers::imm(number, false), Sge::EMPTY, slot.remote_addr));
        tag = tag.next_of_batch();
        number = SendNumbers::after(number);
    }
    Taken::of(count, sends.commit())
}

/// Returns the load of each rail, for least finish time.
// Out of line: only least finish time needs the loads.
#[cold]
#[inline(never)]
pub(super) fn load<Q: QueuePair, const DEPTH: usize>(
    rails: &[Rail<Q, DEPTH>],
) -> [Load; MAX_RAILS] {
    let mut loads = [Load::default(); MAX_RAILS];
    for (load, rail) in loads.iter_mut().zip(rails) {
        *load = Load { bytes: rail.sends.bytes(), credits: rail.sends.credits() };
    }
    loads
}

/// Returns the oldest unacknowledged number of each rail that has any.
pub(super) fn unacknowledged<Q, const DEPTH: usize>(
    rails: &[Rail<Q, DEPTH>],
) -> impl Iterator<Item = u32> {
    rails.iter().flat_map(|rail| rail.sends.oldest_numbers())
}
