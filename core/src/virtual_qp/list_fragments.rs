//! The fragments of a request with a list, on their way to the rails. They are what those of other requests
//! are (see `fragments`), but that a fragment has several buffers where it passes their borders, and that not
//! all of a batch need be as long.

use super::choose::Chooser;
use super::dispatch::{Truncated, load, unacknowledged};
use super::fragments::{fragment_request, post_rest};
use super::parts::{Cut, Gathered, Walk};
use super::scheme::dqplb::SendNumbers;
use super::scheme::{Numbering, Unnumbered};
use super::slot::{SendSlot, Sends, SlotState};
use crate::hardware::{QueuePair, SendBatch, Taken, add_gathered};
use crate::rail::tag::Tag;
use crate::rail::{Batch, Rail};
use crate::verbs::{SendFlags, Sge};

/// Splits what is left of request `id` into one share for each rail that has credits, and returns whether all
/// of it is with the rails.
pub(super) fn dispatch_parts<
    N: Numbering,
    Q: QueuePair,
    const RAILS: usize,
    const DEPTH: usize,
    const WRS: usize,
>(
    rails: &mut [Rail<Q, DEPTH>],
    sends: &mut Sends<RAILS, WRS>,
    chooser: &mut Chooser<RAILS>,
    numbers: &mut N,
    cut: Cut,
    id: u64,
) -> Result<bool, Truncated> {
    let slot = *sends.slot(id);
    let mut offset = slot.offset;
    let mut walk = Walk::at(sends, id, offset);
    let all = walk.fragments_left(sends, cut);
    if all == 0 {
        return Ok(true);
    }
    let share = chooser.share(all);
    let mut left = numbers.room(all, || unacknowledged(rails));
    let without_number = all - left;
    let mut round = chooser.round();
    while left > 0 {
        let Some((at, most)) = chooser.next(&mut round, left, share, || load(rails)) else { break };
        let rail = &mut rails[at];
        let count = most.min(rail.sends.credits());
        left -= count;
        let is_end = left + without_number == 0;
        let from = walk;
        let length = walk.pass_many(sends, cut, count);
        let number = numbers.take(count);
        let remembered = N::remembered(number);
        let batch = Batch::fragments(id, N::CONTENT, offset, length, remembered, count);
        let tag = rail.sends.push(batch);
        if rail.sends.credits() == 0 {
            chooser.set_exhausted(rail.turn_bit);
        }
        let offered = OfferedParts::<N> { count, offset, tag, number, is_end, from };
        let taken = post_parts(rail, sends, &slot, offered, cut);
        offset += length;
        let slot = sends.slot(id);
        slot.offset = offset;
        slot.batches_in_flight += 1;
        if let Some(refusal) = taken.refusal {
            return Err(Truncated { at, count, taken: taken.count, refusal });
        }
        if is_end {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The fragments of a batch that a driver is to be offered.
#[derive(Clone, Copy)]
struct OfferedParts<N: Numbering> {
    /// How many, at least 1.
    count: u32,
    /// First byte of them within the request.
    offset: u32,
    /// Tag and number of the first one.
    tag: Tag,
    number: N::Number,
    /// The request ends with them.
    is_end: bool,
    /// Where they begin.
    from: Walk,
}

/// Posts fragments of a request with a list to one rail.
fn post_parts<
    N: Numbering,
    Q: QueuePair,
    const RAILS: usize,
    const DEPTH: usize,
    const WRS: usize,
>(
    rail: &mut Rail<Q, DEPTH>,
    list: &Sends<RAILS, WRS>,
    slot: &SendSlot<RAILS>,
    offered: OfferedParts<N>,
    cut: Cut,
) -> Taken {
    let OfferedParts { count, offset, mut tag, mut number, is_end, from: mut walk } = offered;
    let keys = slot.keys[usize::from(rail.keys_at)];
    let inner_flags = N::inner_flags(slot);
    let mut remote_addr = slot.remote_addr + u64::from(offset);
    let mut gathered = Gathered::new();
    let mut sends = rail.qp.start_send();
    for at in 1..=count {
        let length = walk.gather(list, cut, rail.keys_at, &mut gathered);
        let is_last = at == count;
        let ends = is_last && is_end;
        let mut flags = if ends { slot.last_flags } else { inner_flags };
        // Its completion retires all of them.
        flags.set(SendFlags::SIGNALED, is_last);
        let own_tag = if is_last { tag.last() } else { tag };
        let request = fragment_request::<N, RAILS>(slot, keys, own_tag, flags);
        let request = request(N::imm(number, ends), Sge::EMPTY, remote_addr);
        add_gathered(&mut sends, request, &gathered);
        tag = tag.next_of_batch();
        number = N::after(number);
        remote_addr += u64::from(length);
    }
    Taken::of(count, sends.commit())
}

/// Posts the fragments of a batch from `index` on, the first of them under `tag`, whether their request has a
/// list or not.
pub(super) fn post_rest_of<
    Q: QueuePair,
    const RAILS: usize,
    const DEPTH: usize,
    const WRS: usize,
>(
    rail: &mut Rail<Q, DEPTH>,
    sends: &mut Sends<RAILS, WRS>,
    batch: &Batch,
    index: u32,
    tag: Tag,
    cut: Cut,
) -> Taken {
    let slot = *sends.slot(batch.wr);
    if !slot.state.contains(SlotState::LISTED) {
        return post_rest(rail, &slot, batch, index, tag, cut.size);
    }
    if slot.is_numbered() {
        let rest = rest_of_parts::<SendNumbers, RAILS, WRS>(sends, batch, index, tag, cut);
        post_parts(rail, sends, &slot, rest, cut)
    } else {
        let rest = rest_of_parts::<Unnumbered, RAILS, WRS>(sends, batch, index, tag, cut);
        post_parts(rail, sends, &slot, rest, cut)
    }
}

fn rest_of_parts<N: Numbering, const RAILS: usize, const WRS: usize>(
    sends: &mut Sends<RAILS, WRS>,
    batch: &Batch,
    index: u32,
    tag: Tag,
    cut: Cut,
) -> OfferedParts<N> {
    let mut from = Walk::at(sends, batch.wr, batch.offset);
    let offset = batch.offset + from.pass_many(sends, cut, index);
    let is_end = batch.offset + batch.length == sends.slot(batch.wr).local.length();
    let count = u32::from(batch.count) - index;
    OfferedParts { count, offset, tag, number: N::number_of(batch, index), is_end, from }
}
