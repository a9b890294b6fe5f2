//! Entries are written into the sender's memory.

use super::end::Receiver;
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::entry::{ENTRY_BYTES, ENTRY_WORDS, MAX_BUFFERS};
use crate::p2p::error::NotNow;
use crate::p2p::lane::{blank, key};
use crate::p2p::memory::Words;
use crate::p2p::queue::Purpose;
use crate::verbs::{Opcode, SendFlags, SendRequest};

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// The queue pair for the entries of a slot: the first one of each device, devices in turn, so that the
    /// entries of one slot follow each other on one connection as long as it works. `None` without a credit:
    /// full is back-pressure.
    pub(super) fn entry_lane(&self, at: usize) -> Option<usize> {
        let devices = self.devices.len();
        let in_turn = (0..devices).map(|step| (at + step) % devices);
        let works = |device: usize| {
            self.lanes.iter().position(|lane| {
                usize::from(lane.device_at) == device && lane.lifecycle.is_in_service()
            })
        };
        let lane = in_turn.filter_map(works).next()?;
        self.lanes[lane].has_room(1).then_some(lane)
    }

    /// Writes the entries of a slot, all with one request. If the driver does not take it, nothing changed.
    pub(super) fn post_entries(
        &mut self,
        at: usize,
        place: usize,
        number: u64,
        count: u8,
        again: bool,
    ) -> Result<(), NotNow> {
        self.stage_entries(at, count);
        let peer = self.peer.unwrap_or_default();
        let lane = &mut self.lanes[place];
        let first = Self::RECORDS_WORDS + at * MAX_BUFFERS * ENTRY_WORDS;
        let bytes = usize::from(count) * ENTRY_BYTES;
        let lkey = self.region.lkey(lane.device);
        let is_inline = bytes as u32 <= lane.qp.limits().max_inline_data;
        let request = SendRequest {
            flags: if is_inline { SendFlags::INLINE } else { SendFlags::empty() },
            sge: self.region.sge(first..first + MAX_BUFFERS * ENTRY_WORDS, bytes, lkey),
            remote_addr: peer.ring.addr + (at * MAX_BUFFERS * ENTRY_BYTES) as u64,
            rkey: key(&peer.ring.rkeys, lane.peer_at),
            ..blank(Opcode::RdmaWrite)
        };
        // Counted, not by slot: whatever the number of devices, and whichever of them is gone, no more than a
        // quarter of the queue waits for a completion that was not asked for.
        let is_due = lane.queue.unsignaled() + 1 >= lane.queue.limit().div_ceil(4);
        let purpose = Purpose::Entries { number, again };
        let rail = lane.rail;
        let taken = lane.post_one(request, is_due || again, purpose);
        match taken.refusal {
            Some(refusal) if taken.count == 0 => Err(NotNow::Refused { rail, refusal }),
            _ => Ok(()),
        }
    }

    /// Puts entries where the request takes them from, which nobody touches until the slot is taken anew.
    fn stage_entries(&self, at: usize, count: u8) {
        let form = self.peer.unwrap_or_default().form;
        let first = Self::RECORDS_WORDS + at * MAX_BUFFERS * ENTRY_WORDS;
        for (index, entry) in self.slots[at].entries[..usize::from(count)].iter().enumerate() {
            let word = first + index * ENTRY_WORDS;
            entry.store(form, self.region.words(word..word + ENTRY_WORDS));
        }
    }
}
