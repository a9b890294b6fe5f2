//! The fragments of a request on their way to one rail.

use super::scheme::Numbering;
use super::slot::SendSlot;
use crate::hardware::{QueuePair, SendBatch, Taken};
use crate::rail::tag::Tag;
use crate::rail::{Batch, Rail};
use crate::verbs::{SendFlags, SendRequest};

/// Posts the fragments of `batch` from `index` on, the first of them under `tag`. All but the last
/// one of a request are `size` bytes long.
#[inline(always)]
pub(super) fn post_fragments<N: Numbering, Q: QueuePair, const RAILS: usize, const DEPTH: usize>(
    rail: &mut Rail<Q, DEPTH>,
    slot: &SendSlot<RAILS>,
    batch: &Batch,
    size: u32,
    mut tag: Tag,
    index: u32,
) -> Taken {
    let keys = slot.keys[rail.keys_at as usize];
    let opcode = N::opcode(slot);
    let inner_flags = N::inner_flags(slot);
    let request = |tag: Tag, flags, offset, length, number, is_last| SendRequest {
        wr_id: tag.wr_id(),
        opcode,
        flags,
        imm: N::imm(number, is_last),
        sge: slot.local.part(offset, length).sge(keys.lkey),
        remote_addr: slot.remote_addr + u64::from(offset),
        rkey: keys.rkey,
        compare_add: 0,
        swap: 0,
    };
    let mut offset = batch.offset + index * size;
    let mut number = N::number_of(batch, index);
    let mut sends = rail.qp.start_send();
    for _ in index + 1..u32::from(batch.count) {
        sends.add(&request(tag, inner_flags, offset, size, number, false));
        tag = tag.plus(1);
        offset += size;
        number = N::after(number);
    }
    let end = batch.offset + batch.length;
    let ends_request = end == slot.local.length();
    // Only the last request of a batch is signaled: its completion retires all of them.
    let ending = if ends_request { slot.last_flags } else { inner_flags };
    let flags = ending.union(SendFlags::SIGNALED);
    sends.add(&request(tag.last(), flags, offset, end - offset, number, ends_request));
    Taken::of(u32::from(batch.count) - index, sends.commit())
}
