//! How the buffers of a list are cut into fragments.
//!
//! A fragment has the full fragment size, unless it would need more buffers than a request can
//! have; then it ends with the last buffer that fits. The start of the first fragment therefore
//! determines all others, and the fragments of a batch can be computed again when they are posted
//! again.

use super::keys::Keys;
use super::slot::{SendSlot, Sends, SlotState};
use crate::hardware::MAX_SGE;
use crate::rail::Batch;
use crate::verbs::{LocalBuffer, Sge};
use arrayvec::ArrayVec;

/// The buffers of one physical request.
pub(super) type Gathered = ArrayVec<Sge, MAX_SGE>;

/// The limits of a fragment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Maximum bytes of a fragment. Without a list, all fragments of a request but the last have
    /// exactly this size.
    pub(super) size: u32,
    /// Maximum buffers of a fragment, at most [`MAX_SGE`].
    pub(super) buffers: u32,
}

/// A position in the buffers of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// The id of the buffer in the ring.
    part: u64,
    /// Bytes of the buffer before the position.
    offset: u32,
}

impl Walk {
    /// Returns the position `offset` bytes behind the first byte of request `id`, which has a list.
    pub(super) fn at<const RAILS: usize, const WRS: usize>(
        sends: &Sends<RAILS, WRS>,
        id: u64,
        mut offset: u32,
    ) -> Self {
        // `add_parts` puts the buffers right behind their request.
        let mut part = id + 1;
        while let Some(slot) = find(sends, part)
            && offset >= slot.local.length()
        {
            offset -= slot.local.length();
            part += 1;
        }
        Self { part, offset }
    }

    /// Passes a fragment, and calls `each` with its buffers and their keys. Returns its bytes.
    pub(super) fn pass<const RAILS: usize, const WRS: usize>(
        &mut self,
        sends: &Sends<RAILS, WRS>,
        cut: Cut,
        mut each: impl FnMut(LocalBuffer, &[Keys; RAILS]),
    ) -> u32 {
        let mut room = cut.size;
        // A driver refuses a request with more buffers than its queue pair was created with.
        for _ in 0..cut.buffers {
            let Some(slot) = find(sends, self.part).filter(|_| room > 0) else { break };
            let left = slot.local.length() - self.offset;
            let length = left.min(room);
            each(slot.local.part(self.offset, length), &slot.keys);
            room -= length;
            self.advance(length, left);
        }
        cut.size - room
    }

    /// Passes up to `most` full fragments inside the current buffer in one step. Returns how many.
    // Counted one by one at each dispatch, 512 MiB in fragments of 4 KiB took 125 times as long as
    // without a list.
    #[cold]
    fn pass_full<const RAILS: usize, const WRS: usize>(
        &mut self,
        sends: &Sends<RAILS, WRS>,
        cut: Cut,
        most: u32,
    ) -> u32 {
        let Some(slot) = find(sends, self.part) else { return 0 };
        let left = slot.local.length() - self.offset;
        // The next fragment passes the border of this buffer, which is for `pass`.
        if left < cut.size {
            return 0;
        }
        let count = (left / cut.size).min(most);
        self.advance(count * cut.size, left);
        count
    }

    /// Advances by `length` bytes of the `left` bytes that remain in the current buffer.
    #[inline]
    fn advance(&mut self, length: u32, left: u32) {
        let ends = length == left;
        self.part += u64::from(ends);
        self.offset = if ends { 0 } else { self.offset + length };
    }

    /// Passes `count` fragments. Returns their bytes.
    pub(super) fn pass_many<const RAILS: usize, const WRS: usize>(
        &mut self,
        sends: &Sends<RAILS, WRS>,
        cut: Cut,
        count: u32,
    ) -> u32 {
        let mut left = count;
        let mut bytes = 0;
        while left > 0 {
            let length = self.pass(sends, cut, |_, _| ());
            bytes += length;
            left -= 1;
            // Behind a full fragment there may be more.
            if length == cut.size && left > 0 {
                let full = self.pass_full(sends, cut, left);
                bytes += full * cut.size;
                left -= full;
            }
        }
        bytes
    }

    /// Returns how many fragments there are up to the end of the list.
    pub(super) fn fragments_left<const RAILS: usize, const WRS: usize>(
        mut self,
        sends: &Sends<RAILS, WRS>,
        cut: Cut,
    ) -> u32 {
        let mut count = 0;
        loop {
            let length = self.pass(sends, cut, |_, _| ());
            if length == 0 {
                return count;
            }
            count += 1;
            if length == cut.size {
                count += self.pass_full(sends, cut, u32::MAX);
            }
        }
    }

    /// Passes a fragment, and puts its buffers into `gathered`, with their lkeys for the device at
    /// this place. Returns its bytes.
    pub(super) fn gather<const RAILS: usize, const WRS: usize>(
        &mut self,
        sends: &Sends<RAILS, WRS>,
        cut: Cut,
        keys_at: u8,
        gathered: &mut Gathered,
    ) -> u32 {
        // Filled in place: a returned value was copied twice for each fragment.
        gathered.clear();
        self.pass(sends, cut, |local, keys| {
            gathered.push(local.sge(keys[usize::from(keys_at)].lkey));
        })
    }
}

/// Returns the buffer with this id in the ring, if there is one.
fn find<const RAILS: usize, const WRS: usize>(
    sends: &Sends<RAILS, WRS>,
    id: u64,
) -> Option<&SendSlot<RAILS>> {
    // The place behind the last buffer is of another request, or free: the list ends.
    sends.find(id).filter(|slot| slot.state.contains(SlotState::PART))
}

/// Returns the bytes of the first `count` requests of a batch.
pub(super) fn front_bytes<const RAILS: usize, const WRS: usize>(
    sends: &Sends<RAILS, WRS>,
    batch: &Batch,
    count: u32,
    cut: Cut,
) -> u32 {
    let slot = sends.find(batch.wr).filter(|_| batch.content.is_fragments());
    // Only the fragments of a request without a list are all full.
    if slot.is_some_and(|slot| slot.state.contains(SlotState::LISTED)) {
        Walk::at(sends, batch.wr, batch.offset).pass_many(sends, cut, count)
    } else {
        batch.bytes_of(count, cut.size)
    }
}
