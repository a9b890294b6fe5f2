//! The fragments of a request on their way to one rail.

use super::scheme::dqplb::SendNumbers;
use super::scheme::{Numbering, Unnumbered};
use super::slot::{Keys, SendSlot};
use crate::hardware::{QueuePair, SendBatch, Taken};
use crate::rail::tag::Tag;
use crate::rail::{Batch, Rail};
use crate::verbs::{Imm, SendFlags, SendRequest, Sge};

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
    /// Those of `batch` from `index` on, the first of them under `tag`.
    pub(super) fn rest<const RAILS: usize>(
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
            last_length: batch.length - (count - 1) * size,
            tag,
            number: N::number_of(batch, index),
            is_end: end == slot.local.length(),
        }
    }
}

/// The request of a fragment, but for what differs between those of a batch.
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

/// Posts fragments of a request to one rail. All but the last one of a request are `size` bytes long.
#[inline(always)]
pub(super) fn post_fragments<N: Numbering, Q: QueuePair, const RAILS: usize, const DEPTH: usize>(
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

/// Adds fragments of a request to what goes to a rail, whose device's keys are at `keys_at`.
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
    // As if all were full: the last one is cut to its length.
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
    // Only the last request of a batch is signaled: its completion retires all of them.
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
